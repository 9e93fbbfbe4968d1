"""A check in one file, as somebody adds it; ``test_new_check.py`` copies it into a copy of the package."""

from __future__ import annotations

import os
from dataclasses import dataclass

from seatrial.checks.check import Check, Rule, user_rule
from seatrial.checks.shared.culprits import rank_culprit
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling
from seatrial.rank.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Limit of the check."""

    min_cores: float = 1.0
    """Least number of cores of each host."""
    timeout_s: float = 30.0
    """Deadline of the step, seconds."""


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rule for the number of cores."""
    return (user_rule("toy_cores", "at least", params.min_cores, "cores", key="toy.min_cores"),)


def measure(context: Context, params: Params) -> None:
    """Report the number of cores."""
    context.phase("count the cores")
    context.measurement("toy_cores", os.cpu_count() or 0, "cores", "high")


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail each rank on a host with too few cores."""
    (rule,) = rules(params)
    judged = tuple(rule.judge(measurement) for measurement in evidence.measurements)
    findings = tuple(
        Finding(
            severity="fail",
            check="toy",
            what=f"rank {entry.measurement.rank} runs on a host with too few cores",
            culprit=rank_culprit(evidence, (entry.measurement.rank or 0,)),
            measured=f"{entry.measurement.value:.0f} cores",
            limit=entry.limit,
            action="use a larger host.",
        )
        for entry in judged
        if not entry.passed
    )
    measured = {measurement.rank for measurement in evidence.measurements}
    absent = tuple(f"toy_cores of rank {rank}" for rank in evidence.asked if rank not in measured)
    return Ruling(findings=findings, judged=judged, absent=absent)


CHECK = Check(name="toy", scope="alone", params=Params, measure=measure, judge=judge, rules=rules)
