"""The report on a terminal: plain lines, coloured only where a person looks at them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path
from typing import IO

from seatrial.conductor.conclude import Conclusion
from seatrial.probe.own_code import typed
from seatrial.report.parts import optional
from seatrial.report.summary import MainFigure, comm_variables, error_lines, headline, main_figures, sentence, summary
from seatrial.report.text import amount, printable, size

__all__ = ["lines", "print_lines"]

_RULE = "=" * 50
_MOST_FINDINGS = 10
_MOST_ROWS = 8
_MOST_PAIRED = 8
"""Ranks that a table of pairs has at most here; the report has larger ones."""
_RED, _GREEN, _YELLOW = "31", "32", "33"
_BEST_KNOWN = "busbw"
_STRONGER = {"smoke": "quick", "quick": "standard", "standard": "burn-in"}


def lines(conclusion: Conclusion, report: Path | None = None) -> list[str]:
    """The banner, then what it rests on. ``report`` is where the whole report was written. No line is raw."""
    told = [_RULE, headline(conclusion)]
    told += [f"- {line}" for line in summary(conclusion) + error_lines(conclusion)]
    told += [
        _RULE,
        *_planted(conclusion),
        f"judged {conclusion.verdict.judged} of {conclusion.verdict.figures} figures",
    ]
    told += _reasons(conclusion) + _findings(conclusion) + _figures(conclusion) + _pairs(conclusion)
    told += _comm(conclusion)
    if report is not None:
        told.append(f"report: {printable(str(report))}")
        if report.suffix != ".html":
            folder = shlex.quote(str(report.parent))
            told.append(
                printable(
                    f"events: {folder}; seatrial report {folder} --out DIR, where it is installed, makes HTML and JUnit"
                    " from them"
                )
            )
    return [*told, f"next: {_next(conclusion)}"]


def print_lines(told: list[str], stream: IO[str]) -> None:
    """Write the lines, in colour when the stream is a person's terminal and NO_COLOR is unset."""
    # A terminal that cannot show a character gets its escape.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = [line.encode(encoding, "backslashreplace").decode(encoding) for line in told]
    # Open MPI gives its ranks a terminal, whatever it writes to itself: a file, the log of a pod.
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or "OMPI_COMM_WORLD_RANK" in os.environ
    if plain or not stream.isatty():
        stream.write("".join(f"{line}\n" for line in shown))
        return
    styled = ((_style(line), line) for line in shown)
    stream.write("".join(f"\x1b[{style}m{line}\x1b[0m\n" if style else f"{line}\n" for style, line in styled))


def _style(line: str) -> str:
    """The terminal's numbers for colour and weight; empty: as it is."""
    if line.startswith("FINAL ACCEPTANCE:"):
        word = line.split()[2]
        return {"PASS": f"1;{_GREEN}", "FAIL": f"1;{_RED}"}.get(word, f"1;{_YELLOW}")
    if line.startswith("- "):
        # The words of the verdict stand after the colon; what follows may be anybody's.
        word = line.partition(": ")[2]
        if line.startswith("- Error") or word.startswith("FAIL"):
            return _RED
        return _GREEN if word.startswith(("PASS", "YES")) else ""
    if line.startswith(("fail ", "PLANTED")):
        return _RED
    return _YELLOW if line.startswith(("warn ", "error ", "not a PASS")) else ""


def _planted(conclusion: Conclusion) -> list[str]:
    planted = conclusion.trial.job.get("planted")
    if not planted:
        return []
    faults = ", ".join(map(str, planted)) if isinstance(planted, list) else str(planted)
    return [printable(f"PLANTED FAULTS: {faults}: this trial says how faults are found, nothing of the cluster")]


def _comm(conclusion: Conclusion) -> list[str]:
    told = [f"{name}={shlex.quote(value)}" for name, value in comm_variables(conclusion).items()]
    return [printable(f"the ranks had: {' '.join(told)}")] if told else []


def _reasons(conclusion: Conclusion) -> list[str]:
    """Why it is no PASS, where no finding says it already."""
    said = {finding.what for finding in conclusion.findings}
    reasons = [reason for reason in conclusion.verdict.reasons if reason not in said]
    if conclusion.verdict.status == "FAIL":
        reasons = [f"lost: {what}" for what in conclusion.trial.missing]
    told = [f"not a PASS: {printable(reason)}" for reason in reasons[:_MOST_FINDINGS]]
    return told + ([f"not a PASS: and {len(reasons) - _MOST_FINDINGS} more"] if len(reasons) > _MOST_FINDINGS else [])


def _findings(conclusion: Conclusion) -> list[str]:
    told = []
    for finding in conclusion.findings[:_MOST_FINDINGS]:
        # What fails was told in full above.
        words = printable(finding.what) if finding.severity in ("fail", "error") else sentence(finding)
        told.append(f"{finding.severity:5} {printable(finding.check)}: {words}")
        for entry in finding.evidence:
            first, *rest = entry.splitlines() or [""]
            told += [f"        {printable(first)}", *(f"          {printable(line)}" for line in rest)]
    if len(conclusion.findings) > _MOST_FINDINGS:
        counts = Counter(finding.severity for finding in conclusion.findings[_MOST_FINDINGS:])
        told.append("and " + ", ".join(f"{count} more of {severity}" for severity, count in counts.items()))
    return told


def _figures(conclusion: Conclusion) -> list[str]:
    rows: list[tuple[str, str, str, str]] = []
    left_out = Counter[str]()
    main = main_figures(conclusion.trial.figures)
    rated = {(line.check, line.variant) for line in main if line.name == _BEST_KNOWN}
    # Time and algorithm bandwidth say the same in other words; they are in the report.
    main = [line for line in main if line.name == _BEST_KNOWN or (line.check, line.variant) not in rated]
    for line in main:
        if sum(row[0] == line.check for row in rows) < _MOST_ROWS:
            rows.append(
                (line.check, _name(line), f"{amount(line.value)} {line.unit if line.unit != '1' else ''}", _range(line))
            )
        else:
            left_out[line.check] += 1
    told = [tuple(map(printable, row)) for row in rows]
    widths = [max((len(row[column]) for row in told), default=0) for column in range(3)]
    table = [
        "  ".join((row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3])).rstrip()
        for row in told
    ]
    return table + [printable(f"{check}: {count} more in the report") for check, count in left_out.items()]


def _pairs(conclusion: Conclusion) -> list[str]:
    """What was measured between two ranks, as a table."""
    charts = optional("charts")
    told = []
    for table in charts.pairs(conclusion.trial.figures) if charts else ():
        if len(table.columns) > _MOST_PAIRED:
            told.append(printable(f"{table.title}: {len(table.columns)} ranks, see the report"))
            continue
        rows = [["", *map(str, table.columns)], *([f"rank {rank}", *cells] for rank, cells in table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        told.append(printable(f"{table.title}, from the rank of the row to that of the column"))
        told += [
            printable("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            for row in rows
        ]
    return told


def _name(line: MainFigure) -> str:
    return " ".join(
        filter(None, (line.name, line.variant, size(line.size_bytes) if line.size_bytes is not None else ""))
    )


def _range(line: MainFigure) -> str:
    return f"{amount(line.low)} to {amount(line.high)} over {line.count}" if line.count > 1 else ""


def _next(conclusion: Conclusion) -> str:
    verdict = conclusion.verdict
    plan = str(conclusion.trial.plan.get("name") or "quick")
    again = printable(f"{typed()} run {shlex.quote(plan)}")
    if verdict.status == "PASS" and not verdict.interrupted:
        stronger = _STRONGER.get(plan)
        return printable(f"{typed()} run {stronger}") if stronger else f"{again} after each repair or change"
    if verdict.interrupted:
        return f"{again} to measure it whole"
    return f"{again} when what is named above is " + ("repaired" if verdict.status == "FAIL" else "settled")
