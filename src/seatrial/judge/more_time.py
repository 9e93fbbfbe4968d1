"""How a person gives a trial or a check more time: the option to type, or the parameter of a plan file. Pure."""

from __future__ import annotations

import math

from seatrial.judge.trial import Trial
from seatrial.plan.plan_file import LEVELS, read_level

_LONGEST_S = 1e9
"""Events may contain anything, and twice the largest number is none."""
_SHORTEST_S = 60.0
"""The deadline of the shortest level: in less time the ranks of a slow machine do not even start."""


def longer_deadline(trial: Trial) -> tuple[str, ...]:
    """Return the option with the deadline to try next: twice the last one, and no less than that of the level."""
    name = str(trial.plan.get("name"))
    of_level = float(read_level(name)["deadline_s"]) if name in LEVELS else _SHORTEST_S
    return "--deadline", f"{_whole(max(2 * (trial.deadline_s() or 0.0), of_level))}s"


def longer_timeout(trial: Trial, check: str, needed_s: float | None) -> tuple[str, ...]:
    """Return the timeout to try next, as a parameter of a plan file, and the deadline that has room for it.

    Args:
        trial: The trial.
        check: The check that was too slow.
        needed_s: Seconds that it needs at its pace, of which it gets half as many again; None where that is not known:
            then it gets twice its last timeout.
    """
    last_s = trial.setting(check, "timeout_s") or _SHORTEST_S
    next_s = _whole(max(2 * last_s, 1.5 * (needed_s or 0.0)))
    deadline_s = _whole((trial.deadline_s() or 0.0) + next_s - last_s)
    return f"{check}.timeout_s", str(next_s), "--deadline", f"{deadline_s}s"


def _whole(seconds: float) -> int:
    return math.ceil(min(seconds, _LONGEST_S))
