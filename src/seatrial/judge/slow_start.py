"""Ranks that were not ready when the time to start was over. Pure: names nobody who may have been slow only."""

from __future__ import annotations

from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import NOBODY, Finding
from seatrial.judge.how_far import whose_cores
from seatrial.judge.more_time import longer_deadline
from seatrial.judge.step_view import StepView, in_phase, waited
from seatrial.judge.trial import TroubleRecord

_JOIN_S, _START_S, _KILL_S = 60.0, 180.0, 15.0
"""Time limits: for the nodes to join, for a generation to start, and for ending its ranks after trouble."""


def blame_slow_start(view: StepView) -> list[Finding]:
    """Return a finding where the deadline of the whole trial may have passed before the ranks had time to start, or
    where those that were not ready were at work."""
    entries = [
        entry
        for entry in view.of("late", "stuck", "frozen", "working")
        # A stopped rank (state T) is reported as soon as it is seen, before any deadline.
        if entry.step in (None, -1) and not (entry.how == "frozen" and entry.detail[:7].lower() == "state t")
    ]
    if not entries:
        return []
    deadline_s = view.trial.deadline_s()
    # Of this generation only steps of agents have run: they come before the ranks start.
    steps_before = [step for step in view.trial.steps if step.generation <= view.generation]
    before_s = view.generation * (_START_S + _KILL_S) + sum(step.seconds or 0.0 for step in steps_before)
    is_cut = deadline_s is None or deadline_s < _JOIN_S + before_s + _START_S
    if not is_cut and any(entry.how != "working" for entry in entries):
        return []
    evidence = tuple(f"{on_node(view, entry)} was{in_phase(entry.phase)}{waited(entry)}" for entry in entries[:4])
    count, option = f"{len(entries)} of {len(view.ranks)}", tuple[str, ...]()
    if is_cut:
        deadline = "the trial's deadline" + ("" if deadline_s is None else f" of {deadline_s:.3g} s")
        what = f"{deadline} passed while ranks were starting: {count} were not ready"
        option = longer_deadline(view.trial)
        action = f"give the trial more time ({' '.join(option)})"
    else:
        what = f"{count} ranks were still at work when the {_START_S:.0f} s to start were over"
        action = "see what slows them down"
    if len(entries) < len(view.ranks):
        # It may have been slow only, so it is no culprit; but it is the one to look at.
        what += f"; {evidence[0]}"
        action += ", and look at what that rank reads there, such as torch on a slow file system"
    what += whose_cores(view, entries)
    return [
        Finding(
            severity="error",
            check="trial",
            what=what,
            culprit=NOBODY,
            evidence=evidence,
            action=action,
            options=option,
        )
    ]


def on_node(view: StepView, entry: TroubleRecord) -> str:
    """Return the rank with its node, as words."""
    record = None if entry.rank is None else view.trial.ranks.get(entry.rank)
    return f"rank {entry.rank} on {a_node(record.place)}" if record else f"rank {entry.rank}"
