"""Fake checks that measure nothing, for the trials of event_streams.py, and a plan for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seatrial.checks.check import Check
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.plan.model import Plan, Setting

CHECKS = ("compute", "bootstrap", "collectives", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeParams:
    """Parameters of the fake checks."""

    min_value: float = 1.0
    timeout_s: float = 60.0
    max_steps: int = 300


def _measure_nothing(context: Any, params: FakeParams) -> None:
    raise AssertionError("a fake check is never measured")


def _judge(evidence: Evidence, params: FakeParams) -> Ruling:
    """Judge ``value`` of each rank by the limit."""
    values = {
        measurement.rank: measurement
        for measurement in evidence.measurements
        if measurement.name == "value" and measurement.stage != "repeat"
    }
    limit = Limit(value=params.min_value, unit="GB/s", origin="plan test.toml:min_value")
    judged = tuple(
        Judged(measurement=values[rank], limit=limit, passed=values[rank].value >= limit.value) for rank in values
    )
    findings = tuple(
        Finding(
            severity="fail",
            check=entry.measurement.check,
            what=f"rank {entry.measurement.rank} is slow",
            culprit=Culprit(kind="rank", name=f"rank {entry.measurement.rank}", ranks=(entry.measurement.rank or 0,)),
            measured=f"{entry.measurement.value} GB/s",
            limit=limit,
        )
        for entry in judged
        if not entry.passed
    )
    absent = tuple(f"value of rank {rank}" for rank in evidence.asked if rank not in values)
    return Ruling(findings=findings, judged=judged, absent=absent)


def fake_load(name: str) -> Check:
    """Return a fake check that judges the measurements of ``Stream``."""
    if name not in CHECKS:
        raise KeyError(name)
    return Check(name=name, scope="world", params=FakeParams, measure=_measure_nothing, judge=_judge)


def a_plan(checks: tuple[str, ...] = CHECKS, not_asked: dict[str, str] | None = None) -> Plan:
    """Return a resolved plan for the checks above."""
    table = {"min_value": Setting(value=1.0, origin="plan test.toml"), "timeout_s": Setting(value=60.0, origin="level")}
    return Plan(
        name="quick",
        checks=checks,
        not_asked=not_asked or {},
        deadline_s=Setting(value=120.0, origin="level quick"),
        settings=dict.fromkeys(checks, table),
    )
