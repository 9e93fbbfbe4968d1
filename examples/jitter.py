"""How late does a rank wake from a sleep of a millisecond? A host that is busy with something else wakes late."""

from __future__ import annotations

import time
from dataclasses import dataclass

from seatrial.checks.check import Check, Rule, user_rule
from seatrial.checks.shared.culprits import rank_culprit
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.rank.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Number of sleeps, and limit."""

    timeout_s: float = 30.0
    """Deadline of the check, in seconds."""
    num_sleeps: int = 200
    max_late_ms: float | None = None
    """The user's limit; None: only measured."""


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the limit on the latest of all sleeps."""
    return (user_rule("late_ms", "at most", params.max_late_ms, "ms", key="jitter.max_late_ms"),)


def measure(context: Context, params: Params) -> None:
    """Sleep, and report the worst delay of this rank."""
    context.phase("sleep")
    worst_s = 0.0
    for _ in range(params.num_sleeps):
        began = time.perf_counter()
        time.sleep(0.001)
        worst_s = max(worst_s, time.perf_counter() - began - 0.001)
    context.measurement("late_ms", 1000 * worst_s, "ms", "low")


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Hold each rank against the limit."""
    values = {value.rank: value for value in evidence.measurements if value.name == "late_ms"}
    absent = tuple(f"late_ms of rank {rank}" for rank in evidence.asked if rank not in values)
    (rule,) = rules(params)
    if rule.value is None:
        return Ruling(absent=absent, unlimited=("jitter.max_late_ms",))
    judged = tuple(rule.judge(value) for value in values.values())
    findings = tuple(
        Finding(
            severity="fail",
            check="jitter",
            what=f"rank {entry.measurement.rank} woke late",
            culprit=rank_culprit(evidence, [entry.measurement.rank]),
            measured=f"{entry.measurement.value:.1f} ms",
            limit=rule.limit(),
            action="look at what else runs on that node.",
        )
        for entry in judged
        if not entry.passed
    )
    return Ruling(findings=findings, judged=judged, absent=absent)


CHECK = Check(name="jitter", scope="alone", params=Params, measure=measure, judge=judge, rules=rules)
