"""The report as one JSON document. ``tools/make_schema.py`` makes ``schema.json`` of this folder from these types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal

from seatrial.evidence.evidence import RankRecord
from seatrial.evidence.findings import Finding, Judged
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.schema_types import Keywords, Whole
from seatrial.judge.conclude import Conclusion
from seatrial.judge.decide import TRAINING, CheckStatus, Status
from seatrial.judge.trial import ExitRecord, NodeRecord, StepRecord
from seatrial.protocol.events import SCHEMA
from seatrial.report.disturbance import cpu_shortage
from seatrial.report.gpu_diagnostics import HandedReport, NodeReport, gpu_diagnostics, handed_over
from seatrial.report.summary import (
    DIAGNOSTICS,
    MainMeasurement,
    drill,
    error_lines,
    main_measurements,
    summary,
)
from seatrial.util.text import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The verdict in words."""

    status: Status
    summary: Annotated[tuple[str, ...], Keywords(minItems=3)]
    """The lines of the banner under its first one."""
    partial: tuple[str, ...]
    """The limitations of a PASS."""
    unlimited: tuple[str, ...]
    """The speeds that were held against no limit, each as the parameter of the plan that would set one."""
    reasons: tuple[str, ...]
    """Why it is INCONCLUSIVE."""
    interrupted_by: str | None
    disturbed: str
    """Which rank waited for the CPU most, and why: the speeds say little; empty: each rank got enough of it."""
    fault_injection: str
    """The faults that were planted, and that the verdict says nothing about the cluster; empty: none was planted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The results of all checks but the training."""

    checks: Mapping[str, CheckStatus]
    errors: tuple[str, ...]
    main_measurements: tuple[MainMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """The result of the training."""

    status: CheckStatus
    main_measurements: tuple[MainMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport(RankRecord):
    """A rank, and the ``rank`` event that it sent when it started."""

    started: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The status of a check, the measurements that have a limit, and what the judge needed and did not find."""

    status: Annotated[
        CheckStatus,
        Keywords(
            description="absent: requested but never started. skipped: communication on a single rank."
            " not_applicable: there is nothing here that the check is about."
        ),
    ]
    judged: tuple[Judged, ...]
    absent: tuple[str, ...]
    not_applicable: str
    """Why the check is about nothing here; empty where it is about something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """The ranks of one generation."""

    number: Whole
    ranks: tuple[Whole, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything known about a trial. Free objects of the events (plan, job, started) are copied as they are."""

    schema_version: Annotated[int, Keywords(const=SCHEMA)]
    run_id: Annotated[str, Keywords(description="Empty where it is not known.")]
    seatrial_version: str
    test_timestamp: Annotated[
        str, Keywords(pattern=r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$", description="Begin of the trial, UTC.")
    ]
    world_size: int
    status: Literal["success", "failed", "inconclusive", "interrupted"]
    exit_code: Annotated[int, Keywords(enum=[0, 1, 2, 3, 130])]
    acceptance: Acceptance
    validation: Validation
    performance: Performance
    judged_measurements: Whole
    total_measurements: Whole
    plan: Annotated[
        Mapping[str, Any],
        Keywords(description="The resolved plan; each value with its origin. Empty where it is not known."),
    ]
    job: Annotated[
        Mapping[str, Any],
        Keywords(description="Target, nodes, processes, device, backend, planted faults. Empty where it is not known."),
    ]
    backend: str
    device_type: str
    nodes: tuple[NodeRecord, ...]
    ranks: tuple[RankReport, ...]
    checks: Mapping[str, CheckReport]
    measurements: tuple[Measurement, ...]
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]
    steps: tuple[StepRecord, ...]
    generations: tuple[GenerationReport, ...]
    exits: tuple[ExitRecord, ...]
    gpu_diagnostics: Annotated[
        tuple[NodeReport, ...], Keywords(description="GPU state before and after. Empty for a trial of CPUs.")
    ]
    evidence: Annotated[
        tuple[HandedReport, ...], Keywords(description="The files of other tools that were handed over.")
    ]
    missing: Annotated[tuple[str, ...], Keywords(description="Gaps in the record; while there is any, nothing passes.")]


_STATUS: Mapping[str, Literal["success", "failed", "inconclusive"]] = {
    "PASS": "success",
    "FAIL": "failed",
    "INCONCLUSIVE": "inconclusive",
}


def document(conclusion: Conclusion) -> dict[str, Any]:
    """Return the report as plain JSON. Numbers that are not finite become ``nan``, ``inf``, ``-inf``."""
    plain: dict[str, Any] = _plain(_report(conclusion))
    return plain


def to_text(report: dict[str, Any]) -> str:
    """Return the document as ASCII text with a newline at its end; no terminal takes a part of it for a command."""
    return json.dumps(report, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _report(conclusion: Conclusion) -> Report:
    trial, verdict = conclusion.trial, conclusion.verdict
    measured = main_measurements(trial.measurements)
    return Report(
        schema_version=SCHEMA,
        run_id=trial.run,
        seatrial_version=trial.version,
        test_timestamp=format_time(trial.created),
        world_size=trial.world_size(),
        status="interrupted" if verdict.interrupted else _STATUS[verdict.status],
        exit_code=verdict.exit_code,
        acceptance=Acceptance(
            status=verdict.status,
            summary=(*summary(conclusion), *error_lines(conclusion)),
            partial=verdict.partial if verdict.status == "PASS" else (),
            unlimited=verdict.unlimited,
            reasons=verdict.reasons,
            interrupted_by=trial.interrupted,
            disturbed=cpu_shortage(conclusion),
            fault_injection=drill(conclusion),
        ),
        validation=Validation(
            checks={name: status for name, status in verdict.checks.items() if name != TRAINING},
            errors=tuple(finding.what for finding in conclusion.findings if finding.severity in ("fail", "error")),
            main_measurements=tuple(line for line in measured if line.check != TRAINING),
        ),
        performance=Performance(
            status=verdict.checks.get(TRAINING, "not_asked"),
            main_measurements=tuple(line for line in measured if line.check == TRAINING),
        ),
        judged_measurements=verdict.judged,
        total_measurements=verdict.measurements,
        plan=trial.plan,
        job=trial.job,
        backend=trial.backend,
        device_type=trial.device_type,
        nodes=trial.nodes,
        ranks=tuple(
            RankReport(**asdict(record), started=trial.started.get(rank, {})) for rank, record in trial.ranks.items()
        ),
        checks={name: _check(conclusion, name, status) for name, status in verdict.checks.items()},
        measurements=trial.measurements,
        facts=tuple(fact for fact in trial.facts if fact.check != DIAGNOSTICS),
        gpu_diagnostics=gpu_diagnostics(conclusion),
        evidence=handed_over(conclusion),
        findings=conclusion.findings,
        steps=trial.steps,
        generations=tuple(GenerationReport(number=entry.number, ranks=entry.ranks) for entry in trial.generations),
        exits=trial.exits,
        missing=trial.missing,
    )


def _check(conclusion: Conclusion, name: str, status: CheckStatus) -> CheckReport:
    ruling = conclusion.rulings.get(name)
    return CheckReport(
        status=status,
        judged=ruling.judged if ruling else (),
        absent=ruling.absent if ruling else (),
        not_applicable=ruling.not_applicable if ruling and status == "not_applicable" else "",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (Measurement, Fact)):
        return _plain(value.to_json())
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
