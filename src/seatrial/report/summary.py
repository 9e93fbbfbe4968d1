"""The few lines that everybody reads: the banner, and the main figures of each check."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from seatrial.checks.base import last_told
from seatrial.conductor.conclude import Conclusion
from seatrial.report.text import amount, printable
from seatrial.verdict.decide import COMMUNICATION, TRAINING
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Finding

__all__ = [
    "MainFigure",
    "comm_variables",
    "error_lines",
    "headline",
    "main_figures",
    "sentence",
    "status_word",
    "summary",
]

_MOST_ERRORS = 10
_WORDS = {
    "pass": "PASS",
    "fail": "FAIL",
    "error": "INCONCLUSIVE (error)",
    "inconclusive": "INCONCLUSIVE",
    "skipped": "NOT CHECKED (1 rank)",
    "absent": "NOT CHECKED (never begun)",
    "not_asked": "NOT CHECKED (not asked for)",
}

_COMM = re.compile(r"(NCCL|RCCL|TORCH|UCX|UCC|FI|OMPI_MCA)_[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MainFigure:
    """All figures of one name and variant in one line; of several sizes the largest, of several steps the last."""

    check: str
    name: str
    variant: str
    value: float
    """The median over ranks and pairs."""
    low: float
    high: float
    unit: str
    count: int
    size_bytes: int | None


def headline(conclusion: Conclusion) -> str:
    """``FINAL ACCEPTANCE: PASS (partial: training not asked for)``."""
    verdict = conclusion.verdict
    more = ""
    if verdict.interrupted:
        more = f" (interrupted by {printable(conclusion.trial.interrupted or '')})"
    elif verdict.status == "PASS" and verdict.partial:
        more = f" (partial: {printable(', '.join(verdict.partial))})"
    return f"FINAL ACCEPTANCE: {verdict.status}{more}"


def summary(conclusion: Conclusion) -> list[str]:
    """What stands in the banner under the first line, without the dashes; errors come from ``error_lines``."""
    trial = conclusion.trial
    types = [str(seen.get("device_type") or "") for seen in trial.started.values()]
    cuda = types.count("cuda")
    if not types:
        gpu = "NOT CHECKED (no rank came)"
    elif cuda == len(types):
        gpu = "YES"
    else:
        gpu = f"NO ({len(types) - cuda} of {len(types)} ranks have none)" if cuda else "NO (CPU trial)"
    backend = printable(trial.backend)
    communication = (
        "NCCL Communication" if backend == "nccl" else "Communication" + (f" ({backend})" if backend else "")
    )
    return [
        f"GPU Available: {gpu}",
        f"{communication}: {status_word(conclusion, COMMUNICATION)}",
        f"Training Status: {status_word(conclusion, TRAINING)}",
    ]


def comm_variables(conclusion: Conclusion) -> dict[str, str]:
    """What the ranks were told of their network by ``--comm-profile`` and the like: a job can be given the same."""
    env = conclusion.trial.job.get("env")
    told = env.items() if isinstance(env, dict) else ()
    return {name: str(value) for name, value in told if _COMM.fullmatch(str(name))}


def status_word(conclusion: Conclusion, check: str) -> str:
    """The status of a check as the banner says it."""
    status = conclusion.verdict.checks.get(check)
    return _WORDS[status] if status else "NOT CHECKED (not in the plan)"


def error_lines(conclusion: Conclusion) -> list[str]:
    """One line for each finding that is not a warning, the first ten."""
    errors = [finding for finding in conclusion.findings if finding.severity in ("fail", "error")]
    lines = [f"Error: {sentence(finding)}" for finding in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        lines.append(f"Error: and {len(errors) - _MOST_ERRORS} more in the report")
    return lines


def sentence(finding: Finding) -> str:
    """What, who, measured, limit and origin, what to do, in one line."""
    parts = [finding.what]
    if finding.culprit.kind != "none" and finding.culprit.name not in finding.what:
        parts.append(finding.culprit.name)
    if finding.measured and finding.measured not in finding.what:
        parts.append(f"measured {finding.measured}")
    if finding.limit is not None:
        unit = "" if finding.limit.unit == "1" else f" {finding.limit.unit}"
        parts.append(f"limit {amount(finding.limit.value)}{unit} ({finding.limit.origin})")
    if finding.action:
        parts.append(finding.action)
    return printable("; ".join(part.rstrip(".") for part in parts))


def main_figures(figures: Iterable[Figure]) -> list[MainFigure]:
    """By check, name and variant; generation 0, without repeats, and only what says good or bad."""
    groups: defaultdict[tuple[str, str, str], list[Figure]] = defaultdict(list)
    # A long check tells its figures again as it goes on: the last word of each rank counts, as it does for the judge.
    for figure in last_told(figure for figure in figures if figure.generation == 0):
        if figure.better is not None and figure.stage != "repeat":
            groups[figure.check, figure.name, figure.variant].append(figure)
    lines = []
    for (check, name, variant), group in groups.items():
        sizes = [figure.size_bytes for figure in group if figure.size_bytes is not None]
        largest = max(sizes, default=None)
        last = max((figure.step for figure in group if figure.step is not None), default=None)
        kept = [figure for figure in group if figure.size_bytes == largest and figure.step == last]
        values = [figure.value for figure in kept if math.isfinite(figure.value)]
        if values:
            lines.append(
                MainFigure(
                    check=check,
                    name=name,
                    variant=variant,
                    value=median(values),
                    low=min(values),
                    high=max(values),
                    unit=kept[0].unit,
                    count=len(values),
                    size_bytes=largest,
                )
            )
    return lines
