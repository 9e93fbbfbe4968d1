"""How a person gives a trial or a check more time: the option to type, or the key of a plan file. Pure."""

from __future__ import annotations

import math

from seatrial.judge.trial import Trial
from seatrial.plan.plan_file import LEVELS, read_level

_SHORTEST_S = 60.0
"""The deadline of the shortest level: in less time the ranks of a slow machine do not even start."""


def longer_deadline(trial: Trial) -> tuple[str, ...]:
    """Return the option with the deadline to try next: twice the last one, and no less than that of the level."""
    name = str(trial.plan.get("name"))
    of_level = float(read_level(name)["deadline_s"]) if name in LEVELS else _SHORTEST_S
    return "--deadline", str(math.ceil(max(2 * (trial.deadline_s() or 0.0), of_level)))


def longer_timeout(trial: Trial, check: str) -> str:
    """Return the setting of the timeout of a check, as somebody finds and writes it."""
    origin = trial.origin(check, "timeout_s")
    if origin.startswith("plan "):
        return f"timeout_s of [{check}] in {origin.rpartition(':')[0]}"
    return f"timeout_s of [{check}] in a plan file"
