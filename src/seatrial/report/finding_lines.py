"""Findings as text: a sentence, and the evidence that has room under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from seatrial.evidence.findings import Finding
from seatrial.report.summary import sentence
from seatrial.report.view import USUAL_COLUMNS, View, height
from seatrial.util.text import fitted, printable

_MOST_FINDINGS = 10
MOST_ROWS = 6
"""Most rows of a finding; the report has all of it."""
_MOST_HEADING_ROWS = 4


def finding_lines(findings: tuple[Finding, ...], view: View, room: int) -> list[str]:
    """Return the findings in their order, ten at most and then their number.

    ``room``: rows that are left on a screen; where the only fault and the remarks beside it fit into it, they do.
    """
    if view.is_verbose:
        return [line for finding in findings for line in (_heading(finding, is_first=False), *_evidence(finding))]
    shown = findings[:_MOST_FINDINGS]
    is_single = sum(map(is_fault, findings)) <= 1
    entries: list[str] = []
    for number, finding in enumerate(shown):
        later = len(shown) - number - 1
        most = min(MOST_ROWS, room - later) if is_single else MOST_ROWS
        entry = _entry(finding, view, max(most, 1), is_first=number == 0)
        room -= sum(height(line, view.columns) for line in entry)
        entries += entry
    left_out = findings[_MOST_FINDINGS:]
    if left_out:
        counts = Counter(finding.severity for finding in left_out)
        entries.append("and " + ", ".join(f"{count} more of {severity}" for severity, count in counts.items()))
    return entries


def is_fault(finding: Finding) -> bool:
    """Return whether a finding forbids a PASS."""
    return finding.severity in ("fail", "error")


def _entry(finding: Finding, view: View, most_rows: int, *, is_first: bool) -> list[str]:
    """Return the heading and as much evidence as fits into the rows."""
    columns = view.columns or USUAL_COLUMNS
    heading_rows = min(_MOST_HEADING_ROWS, most_rows)
    heading = _fitted(_heading(finding, is_first=is_first), heading_rows, view)
    left = most_rows - height(heading, view.columns)
    evidence = [fitted(line, columns) for line in _evidence(finding)]
    if len(evidence) <= left:
        return [heading, *evidence]
    more = len(evidence) - (left - 1)
    return [heading, *evidence[: left - 1], f"        {more} more lines in the report"] if left > 0 else [heading]


def _heading(finding: Finding, *, is_first: bool) -> str:
    """Return the sentence of a finding; the banner of the card has that of the first fault already."""
    words = printable(finding.what) if is_first and is_fault(finding) else sentence(finding)
    return f"{finding.severity:5} {printable(finding.check)}: {words}"


def _fitted(line: str, rows: int, view: View) -> str:
    """Return the line, cut until it takes at most this many rows."""
    width = view.columns or USUAL_COLUMNS
    cut = fitted(line, rows * width)
    while height(cut, view.columns) > rows and len(cut) > width:
        cut = fitted(cut, len(cut) - 4)
    return cut


def _evidence(finding: Finding) -> Iterator[str]:
    for entry in finding.evidence:
        first, *rest = entry.splitlines() or [""]
        yield f"        {printable(first)}"
        yield from (f"          {printable(line)}" for line in rest)
