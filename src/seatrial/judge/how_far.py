"""How far ranks came in a step, by the phases that they were in at its end. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.evidence.evidence import a_node
from seatrial.judge.step_view import StepView
from seatrial.judge.trial import TroubleRecord
from seatrial.protocol.connecting import OTHERS_HAD_ITS_CORE
from seatrial.util.text import and_list, as_name, named_ranks

_COUNTED = re.compile(r" \((\d{1,9}) of (\d{1,9})\)$")
"""The end of a phase that ``Context.phase`` has counted."""
_STEP = re.compile(r"\bstep (\d{1,9})\b")
"""A step of the training."""


def how_far(view: StepView, entries: Sequence[TroubleRecord]) -> str:
    """Return how far the slowest of these ranks came: ``3 of 9 operations``; without numbers, its phase."""
    return min(((_number(entry.phase), _words(view, entry)) for entry in entries), default=(0, "nothing was done"))[1]


def needed_s(view: StepView, entries: Sequence[TroubleRecord]) -> float | None:
    """Return the seconds that the slowest of these ranks needs for the whole step at its pace; None: not known."""
    needed = [_needed_s(view, entry) for entry in entries]
    known = [seconds for seconds in needed if seconds is not None]
    return max(known) if known and len(known) == len(needed) else None


def whose_cores(view: StepView, entries: Sequence[TroubleRecord]) -> str:
    """Return the end of a sentence about those of these ranks whose cores other processes had; may be empty."""
    ranks = sorted(entry.rank for entry in entries if entry.detail == OTHERS_HAD_ITS_CORE and entry.rank is not None)
    if not ranks:
        return ""
    nodes = dict.fromkeys(a_node(view.trial.ranks[rank].place) for rank in ranks if rank in view.trial.ranks)
    cores = "core" if len(ranks) == 1 else "cores"
    where = f": end them on {and_list([*nodes][:4])}" if nodes else ""
    return f"; other processes had the {cores} of {named_ranks(ranks)}{where}"


def _needed_s(view: StepView, entry: TroubleRecord) -> float | None:
    step = view.step(entry.step)
    if step is None:
        return None
    if counted := _COUNTED.search(entry.phase):
        done, total = int(counted[1]) - 1, float(counted[2])
    else:
        trained, most = _STEP.search(entry.phase), view.trial.setting(step.check, "max_steps")
        # Data of a number of epochs ends the training before its most steps.
        if trained is None or most is None or view.trial.setting(step.check, "epochs") is not None:
            return None
        done, total = int(trained[1]), most
    return step.timeout_s * total / done if 0 < done < total else None


def _number(phase: str) -> int:
    counted = _COUNTED.search(phase) or _STEP.search(phase)
    return int(counted[1]) if counted else 0


def _words(view: StepView, entry: TroubleRecord) -> str:
    if counted := _COUNTED.search(entry.phase):
        return f"{int(counted[1]) - 1} of {counted[2]} operations"
    step = view.step(entry.step)
    if step is not None and (trained := _STEP.search(entry.phase)):
        total = view.trial.setting(step.check, "max_steps")
        return f"{trained[1]} of {total:.0f} steps" if total is not None else f"{trained[1]} steps"
    return f"it came to {as_name(entry.phase) if entry.phase else 'an unknown phase'}"
