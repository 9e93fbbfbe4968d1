"""Findings as text: a sentence, and the evidence that has room under it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seatrial.evidence.findings import Finding
from seatrial.report.summary import LABEL, sentence, with_culprit
from seatrial.report.view import USUAL_COLUMNS, View, height
from seatrial.util.text import fitted, printable

_MOST_FINDINGS = 10
MOST_IN_CARD = 2
"""Faults that the card has in full; of more only the first."""
MOST_ROWS = 6
"""Most rows of a finding; the report has all of it."""
_MOST_HEADING_ROWS = 4
"""Most rows of the first fault's heading: the card has its advice. That of any other fault is in the heading itself."""
_MOST_LINE_ROWS = 2
_MOST_TEXT_LINES = 2
"""Most lines of a stack or of output, where not all evidence has room."""
_NOISE = re.compile(r" *\[W\d{4} [\d:.]+ socket\.cpp:\d+\] \[c10d\] The (hostname|IPv6 network addresses) of ")
"""Warnings of torch about names, on hosts whose addresses have none; they are harmless, and look like a fault."""
_CALL = 'File "'
_CURRENT, _OLDEST_FIRST = "Current thread", "most recent call last"
"""Words of faulthandler, before the thread that was asked, and of a traceback, before its outermost call."""


def finding_lines(findings: tuple[Finding, ...], view: View, room: int) -> list[str]:
    """Return the findings in their order, ten at most and then their number.

    ``room``: rows that are left on a screen; of 80 columns or more the only fault and the
    remarks beside it fit into it.
    """
    if view.is_verbose:
        return [
            line
            for finding in findings
            for line in (_heading(finding, is_first=False), *(line for entry in _evidence(finding) for line in entry))
        ]
    shown = advised_once(findings[:_MOST_FINDINGS])
    faults = sum(map(is_fault, findings))
    # A narrower terminal has no room for all of it: it scrolls, and what happened counts more.
    is_single = faults <= 1 and (view.columns or USUAL_COLUMNS) >= USUAL_COLUMNS
    entries: list[str] = []
    for number, finding in enumerate(shown):
        if faults == MOST_IN_CARD and is_fault(finding):
            entries += _in_two_rows(finding, view)
            continue
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


def advised_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, each without an advice that an earlier one has: the first fault's is in the card."""
    said: set[str] = set()
    shown = []
    for finding in findings:
        shown.append(replace(finding, action="") if finding.action in said else finding)
        said.add(finding.action)
    return shown


def _in_two_rows(finding: Finding, view: View) -> list[str]:
    """Return a fault that the card has in full: what happened, without the full name of the culprit, and one line."""
    what = LABEL.sub(r"\1", finding.what, count=1)
    heading = _fitted(f"{finding.severity:5} {printable(finding.check)}: {printable(what)}", 1, view)
    return [heading, *_evidence_that_fits(finding, 1, view)]


def is_fault(finding: Finding) -> bool:
    """Return whether a finding forbids a PASS."""
    return finding.severity in ("fail", "error")


def _entry(finding: Finding, view: View, most_rows: int, *, is_first: bool) -> list[str]:
    """Return the heading and as much evidence as fits into the rows."""
    heading_rows = min(_MOST_HEADING_ROWS, most_rows) if is_first and is_fault(finding) else most_rows
    heading = _fitted(_heading(finding, is_first=is_first), heading_rows, view)
    return [heading, *_evidence_that_fits(finding, most_rows - height(heading, view.columns), view)]


def _evidence_that_fits(finding: Finding, rows: int, view: View) -> list[str]:
    """Return the evidence in this number of rows: of each entry its best lines, and how many more there are."""
    entries = [entry for entry in map(_without_noise, _evidence(finding)) if entry]
    whole = [_fitted(line, _MOST_LINE_ROWS, view) for entry in entries for line in entry]
    if _rows(whole, view) <= rows:
        return whole
    if rows == 1:
        return _best_lines(entries[0], 1, view)
    shown: list[str] = []
    for entry in entries:
        shown += _best_lines(entry, rows - 1 - _rows(shown, view), view)
    more = len(whole) - len(shown)
    if rows <= 0 or more <= 0:
        return shown
    return [*shown, f"        {more} more line{'' if more == 1 else 's'} in the report"]


def _without_noise(entry: list[str]) -> list[str]:
    """Return the entry without lines that every rank prints; empty where it has no others."""
    heading, *text = entry
    left = [line for line in text if not _NOISE.match(line)]
    return [heading, *left] if left or not text else []


def _best_lines(entry: list[str], rows: int, view: View) -> list[str]:
    """Return what of one entry fits into these rows: a line, or a heading and the lines that say most."""
    heading, *text = entry
    if not text:
        return [_fitted(heading, min(rows, _MOST_LINE_ROWS), view)] if rows > 0 else []
    calls = [number for number, line in enumerate(text) if line.lstrip().startswith(_CALL)]
    current = next((number for number, line in enumerate(text) if line.lstrip().startswith(_CURRENT)), 0)
    if calls and _OLDEST_FIRST in text[0]:
        chosen = text[calls[-1] :]
    elif calls:
        chosen = text[next((number for number in calls if number > current), calls[0]) :]
    else:
        chosen = text[-_MOST_TEXT_LINES:]
    if rows == 1:
        return [_in_one_row(f"{heading} {chosen[0 if calls else -1].strip()}", view)]
    chosen = [_in_one_row(line, view) for line in chosen[:_MOST_TEXT_LINES]]
    while chosen and _rows([heading, *chosen], view) > rows:
        chosen.pop(-1 if calls else 0)
    return [heading, *chosen] if chosen else []


def _in_one_row(line: str, view: View) -> str:
    """Return a line of a stack or of output on one row: of a long path the end says more."""
    width = view.columns or USUAL_COLUMNS
    before, call, rest = line.partition(_CALL)
    if len(line) <= width or not call:
        return fitted(line, width)
    return f"{before}{call}...{rest[-max(1, width - len(before + call) - 3) :]}"


def _rows(lines: list[str], view: View) -> int:
    return sum(height(line, view.columns) for line in lines)


def _heading(finding: Finding, *, is_first: bool) -> str:
    """Return the sentence of a finding; of the first fault, the card has the rest."""
    words = printable(with_culprit(finding, in_short=True)) if is_first and is_fault(finding) else sentence(finding)
    return f"{finding.severity:5} {printable(finding.check)}: {words}"


def _fitted(line: str, rows: int, view: View) -> str:
    """Return the line, cut until it takes at most this many rows."""
    width = view.columns or USUAL_COLUMNS
    cut = fitted(line, rows * width)
    while height(cut, view.columns) > rows and len(cut) > width:
        cut = fitted(cut, len(cut) - 4)
    return cut


def _evidence(finding: Finding) -> Iterator[list[str]]:
    """Yield the lines of each entry; those of a stack or of output stand under its first one."""
    for entry in finding.evidence:
        first, *rest = entry.splitlines() or [""]
        yield [f"        {printable(first)}", *(f"          {printable(line)}" for line in rest)]
