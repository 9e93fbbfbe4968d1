"""The report as one JSON document; ``schema.json`` beside this file describes it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import resources
from typing import Any

from seatrial.conductor.conclude import Conclusion
from seatrial.report.summary import error_lines, main_figures, summary
from seatrial.report.text import moment
from seatrial.verdict.decide import TRAINING
from seatrial.verdict.events import SCHEMA
from seatrial.verdict.findings import Finding, Judged

__all__ = ["document", "schema", "to_text"]

_STATUS = {"PASS": "success", "FAIL": "failed", "INCONCLUSIVE": "inconclusive"}


def document(conclusion: Conclusion) -> dict[str, Any]:
    """Everything that is known of the trial. Numbers that are none are told as ``nan``, ``inf``, ``-inf``."""
    trial, verdict = conclusion.trial, conclusion.verdict
    measured = [asdict(line) for line in main_figures(trial.figures)]
    training = [line for line in measured if line["check"] == TRAINING]
    found: dict[str, Any] = {
        "schema_version": SCHEMA,
        "run_id": trial.run,
        "seatrial_version": trial.version,
        "test_timestamp": moment(trial.created),
        "world_size": trial.world_size(),
        "status": "interrupted" if verdict.interrupted else _STATUS[verdict.status],
        "exit_code": verdict.exit_code,
        "acceptance": {
            "status": verdict.status,
            "summary": [*summary(conclusion), *error_lines(conclusion)],
            "partial": list(verdict.partial) if verdict.status == "PASS" else [],
            "reasons": list(verdict.reasons),
            "interrupted_by": trial.interrupted,
        },
        "validation": {
            "checks": {name: status for name, status in verdict.checks.items() if name != TRAINING},
            "errors": [finding.what for finding in conclusion.findings if finding.severity in ("fail", "error")],
            "main_figures": [line for line in measured if line["check"] != TRAINING],
        },
        "performance": {"status": verdict.checks.get(TRAINING, "not_asked"), "main_figures": training},
        "judged_figures": verdict.judged,
        "total_figures": verdict.figures,
        "plan": trial.plan,
        "job": trial.job,
        "backend": trial.backend,
        "device_type": trial.device_type,
        "nodes": [asdict(node) for node in trial.nodes],
        "ranks": [{**asdict(seen), "started": dict(trial.started.get(rank, {}))} for rank, seen in trial.ranks.items()],
        "checks": {
            name: {
                "status": status,
                "judged": [_judged(entry) for entry in conclusion.rulings[name].judged]
                if name in conclusion.rulings
                else [],
                "absent": list(conclusion.rulings[name].absent) if name in conclusion.rulings else [],
            }
            for name, status in verdict.checks.items()
        },
        "figures": [figure.to_json() for figure in trial.figures],
        "facts": [fact.to_json() for fact in trial.facts],
        "findings": [_finding(finding) for finding in conclusion.findings],
        "steps": [asdict(step) for step in trial.steps],
        "generations": [
            {"number": generation.number, "ranks": list(generation.ranks)} for generation in trial.generations
        ],
        "exits": [asdict(seen) for seen in trial.exits],
        "missing": list(trial.missing),
    }
    plain: dict[str, Any] = _plain(found)
    return plain


def to_text(found: dict[str, Any]) -> str:
    """The document as ASCII text with a newline, so that no terminal takes a part of it for a command."""
    return json.dumps(found, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document."""
    loaded: dict[str, Any] = json.loads(resources.files("seatrial.report").joinpath("schema.json").read_text("utf-8"))
    return loaded


def _judged(entry: Judged) -> dict[str, Any]:
    return {"figure": entry.figure.to_json(), "limit": asdict(entry.limit), "passed": entry.passed}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "limit": None if finding.limit is None else asdict(finding.limit)}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
