"""The report on a terminal: findings, and the card at the end; in color only where the terminal shows colors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from seatrial.judge.conclude import Conclusion
from seatrial.report.card import card, comm_lines, culprits, figures, measured_line, reason_lines, why_lines
from seatrial.report.disturbance import disturbance_lines
from seatrial.report.finding_lines import finding_lines, is_fault
from seatrial.report.measurement_lines import measurement_lines
from seatrial.report.summary import drill, headline
from seatrial.report.view import View, height, wrapped
from seatrial.util.streams import encodable
from seatrial.util.terminal import columns_of
from seatrial.util.text import printable

_SCREEN_ROWS = 23
"""Rows of the smallest usual terminal (VT100, 24) without the prompt: one fault fits into it, with the card."""
_MOST_REASONS = 10
_ASCII = str.maketrans({"\u2013": "-", "\u00d7": "x", "\u2192": "->", "\u2026": "..."})
"""Characters that our own words use, for terminals that lack them."""
_RED, _GREEN, _YELLOW = "31", "32", "33"


def lines(conclusion: Conclusion, report: Path | None = None, view: View | None = None) -> list[str]:
    """Return what a reader sees, the card last, causes before consequences; every line is printable.

    Args:
        conclusion: The judged trial.
        report: Path of the written report.
        view: How much is shown. Default: of a pipe.
    """
    view = view or View()
    if view.is_quiet:
        return [_one_line(conclusion, report)]
    last = card(conclusion, report, view)
    reasons = reason_lines(conclusion)[len(why_lines(conclusion)) :]
    if not view.is_verbose and len(reasons) > _MOST_REASONS:
        reasons = [*reasons[:_MOST_REASONS], f"not a PASS: and {len(reasons) - _MOST_REASONS} more"]
    between = [*reasons, *comm_lines(conclusion, is_own=view.foreign is None)]
    first = list(filter(None, [drill(conclusion)]))
    tables = [*measurement_lines(conclusion), measured_line(conclusion)] if view.is_verbose else []
    room = _SCREEN_ROWS - sum(height(line, view.columns) for line in [*first, *between, *last])
    return [*tables, *first, *finding_lines(conclusion.findings, view, room), *between, *last]


def _one_line(conclusion: Conclusion, report: Path | None) -> str:
    verdict = conclusion.verdict
    first_words = f"{drill(conclusion)}; " if drill(conclusion) else ""
    words = f"{first_words}{headline(conclusion).partition(': ')[2]}: {figures(conclusion)}"
    first = next(filter(is_fault, conclusion.findings), None)
    if verdict.status == "FAIL":
        words += f"; at fault: {culprits(conclusion)}"
    if first is not None:
        words += f"; {first.check}: {first.what}"
    elif verdict.reasons:
        words += f"; {verdict.reasons[0]}"
    words = "; ".join([words, *disturbance_lines(conclusion)])
    return printable(words + (f"; report: {report}" if report is not None else ""))


def print_lines(report_lines: list[str], stream: IO[str]) -> None:
    """Write the lines: broken between words on a terminal, in color unless NO_COLOR is set."""
    columns = columns_of(stream)
    is_terminal = stream.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ
    in_color = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = ""
    for line in report_lines:
        style = _style(line) if in_color else ""
        for part in wrapped(_encodable(line, encoding), columns):
            text += f"\x1b[{style}m{part}\x1b[0m\n" if style else f"{part}\n"
    stream.write(text)


def _encodable(line: str, encoding: str) -> str:
    """Return the line with other characters, or an escape, for those that the terminal lacks."""
    shown = encodable(line, encoding)
    return shown if shown == line else encodable(line.translate(_ASCII), encoding)


def _style(line: str) -> str:
    """Return the terminal's codes for color and weight of a line; empty for none."""
    if line.startswith("FINAL ACCEPTANCE:"):
        word = line.split()[2]
        return {"PASS": f"1;{_GREEN}", "FAIL": f"1;{_RED}"}.get(word, f"1;{_YELLOW}")
    if line.startswith("- "):
        # The status comes right after the colon; the text after it may come from a rank.
        word = line.partition(": ")[2]
        if line.startswith("- Error") or word.startswith("FAIL"):
            return _RED
        return _GREEN if word.startswith(("PASS", "YES")) else ""
    if line.startswith(("fail ", "DRILL", "at fault")):
        return _RED
    return _YELLOW if line.startswith(("warn ", "error ", "not a PASS", "disturbed: ", "limits from runs ")) else ""
