"""Root causes before their consequences: a hang that an earlier finding explains becomes evidence of that. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seatrial.evidence.findings import Finding
from seatrial.judge.trial import Trial

_EXPLAINING = ("inventory", "host", "network", "links", "bootstrap")
"""The checks that look at what communication needs. A slow device or disk explains no hang."""
_WARNING = ("inventory", "host", "network")
"""The checks of which a warning may hold the cause, too."""
_GRAVITY = {"fail": 0, "error": 1, "warn": 2, "info": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A finding from events alone."""

    finding: Finding
    is_hang: bool = False
    """Ranks waited for what did not come, or had errors of communication: another fault may be the cause."""


def order_by_cause(trial: Trial, observed: Iterable[Observed], judged: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return all findings, the gravest first, causes before consequences; explained hangs are evidence of their cause.

    Args:
        trial: The trial with the order of its checks.
        observed: The findings from events.
        judged: The findings of the checks.
    """
    order = {check: number for number, check in enumerate(dict.fromkeys(trial.plan.get("checks", ())))}
    explained: dict[int, list[Finding]] = {}
    left = list[Finding]()
    for entry in observed:
        number = _cause(entry, judged, order)
        if number is None:
            left.append(_with_warnings(entry, judged))
        else:
            explained.setdefault(number, []).append(entry.finding)
    causes = [_with_consequences(finding, explained.get(number, [])) for number, finding in enumerate(judged)]
    return tuple(
        sorted([*left, *causes], key=lambda finding: (_GRAVITY[finding.severity], order.get(finding.check, -1)))
    )


def _cause(entry: Observed, judged: Sequence[Finding], order: dict[str, int]) -> int | None:
    """Return the number of the finding that explains a hang, or None."""
    if not entry.is_hang:
        return None
    hang = entry.finding
    for number, finding in enumerate(judged):
        comes_before = order.get(finding.check, -1) <= order.get(hang.check, len(order))
        if finding.severity != "fail" or finding.check not in _EXPLAINING or not comes_before:
            continue
        # A rank that never came is explained by what its node lacks, and not by what another one lacks.
        if hang.culprit.kind in ("fabric", "none") or set(hang.culprit.nodes) & set(finding.culprit.nodes):
            return number
    return None


def _with_consequences(finding: Finding, consequences: Sequence[Finding]) -> Finding:
    lines = [line for hang in consequences for line in (f"follows from this: {hang.what}", *hang.evidence)]
    return replace(finding, evidence=(*finding.evidence, *lines)) if lines else finding


def _with_warnings(entry: Observed, judged: Sequence[Finding]) -> Finding:
    """Return a hang of all ranks with the warnings that may hold its cause in front of its evidence."""
    if not entry.is_hang or entry.finding.culprit.kind != "fabric":
        return entry.finding
    warnings = [
        f"{finding.check} warns: {finding.what}" + (f"; {finding.action}" if finding.action else "")
        for finding in judged
        if finding.severity == "warn" and finding.check in _WARNING
    ]
    return replace(entry.finding, evidence=(*warnings, *entry.finding.evidence)) if warnings else entry.finding
