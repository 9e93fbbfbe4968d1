"""Checks that measure nothing, for trials that never were; and a plan that asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seatrial.checks.base import Check
from seatrial.plan.model import Plan, Setting
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling

__all__ = ["CHECKS", "a_plan", "fake_load"]

CHECKS = ("compute", "bootstrap", "collectives", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeParams:
    """Limits of the check that stands in for real ones."""

    min_value: float = 1.0
    timeout_s: float = 60.0


def _measure_nothing(context: Any, params: FakeParams) -> None:
    raise AssertionError("a check made for judging is not measured")


def _judge(evidence: Evidence, params: FakeParams) -> Ruling:
    """Each asked rank has to tell ``value`` and reach the limit."""
    told = {figure.rank: figure for figure in evidence.figures if figure.name == "value" and figure.stage != "repeat"}
    limit = Limit(value=params.min_value, unit="GB/s", origin="plan test.toml:min_value")
    judged = tuple(Judged(figure=told[rank], limit=limit, passed=told[rank].value >= limit.value) for rank in told)
    findings = tuple(
        Finding(
            severity="fail",
            check=entry.figure.check,
            what=f"rank {entry.figure.rank} is slow",
            culprit=Culprit(kind="rank", name=f"rank {entry.figure.rank}", ranks=(entry.figure.rank or 0,)),
            measured=f"{entry.figure.value} GB/s",
            limit=limit,
        )
        for entry in judged
        if not entry.passed
    )
    absent = tuple(f"value of rank {rank}" for rank in evidence.asked if rank not in told)
    return Ruling(findings=findings, judged=judged, absent=absent)


def fake_load(name: str) -> Check:
    """A check that judges like a real one, from the figures that ``Stream`` tells."""
    if name not in CHECKS:
        raise KeyError(name)
    return Check(name=name, scope="world", params=FakeParams, measure=_measure_nothing, judge=_judge)


def a_plan(checks: tuple[str, ...] = CHECKS, not_asked: dict[str, str] | None = None) -> Plan:
    """A resolved plan for the checks above."""
    table = {"min_value": Setting(value=1.0, origin="plan test.toml"), "timeout_s": Setting(value=60.0, origin="level")}
    return Plan(
        name="quick",
        checks=checks,
        not_asked=not_asked or {},
        deadline_s=Setting(value=120.0, origin="level quick"),
        settings=dict.fromkeys(checks, table),
    )
