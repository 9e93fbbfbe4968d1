"""The measurements of a trial as text: a row for each, and tables of those between two ranks."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from seatrial.judge.conclude import Conclusion
from seatrial.report.grouping import pairs
from seatrial.report.summary import MainMeasurement, main_measurements
from seatrial.util.text import format_number, format_size, printable

_MOST_ROWS = 16
_MOST_PAIRED = 8
"""Most ranks in a table of pairs on the terminal; the report has larger tables."""
_BEST_KNOWN = "busbw"


def measurement_lines(conclusion: Conclusion) -> list[str]:
    """Return the main measurements of each check; rows of one name that are all zero are one row."""
    main = main_measurements(conclusion.trial.measurements)
    rated = {(line.check, line.variant) for line in main if line.name == _BEST_KNOWN}
    # Time and algorithm bandwidth follow from the bus bandwidth; they are in the report.
    main = [line for line in main if line.name == _BEST_KNOWN or (line.check, line.variant) not in rated]
    rows: list[tuple[str, str, str, str]] = []
    shown, left_out = Counter[str](), Counter[str]()
    for row in _rows(main):
        if shown[row[0]] < _MOST_ROWS:
            rows.append(row)
            shown[row[0]] += 1
        else:
            left_out[row[0]] += 1
    cells = [tuple(map(printable, row)) for row in rows]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    table = [
        "  ".join((row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3])).rstrip()
        for row in cells
    ]
    more = [printable(f"{check}: {count} more in the report") for check, count in left_out.items()]
    return [*table, *more, *_pairs(conclusion)]


def _rows(main: list[MainMeasurement]) -> list[tuple[str, str, str, str]]:
    """Return (check, name, value, range) of each row."""
    rows = []
    for (check, name), group in groupby(main, lambda line: (line.check, line.name)):
        lines = list(group)
        if len(lines) > 1 and all(line.low == line.high == 0 for line in lines):
            count = sum(line.count for line in lines)
            rows.append((check, f"{name}, {len(lines)} kinds", f"0 {_unit(lines[0])}", f"all of {count}"))
            continue
        rows += [
            (check, _name(line), f"{format_number(line.value)} {_unit(line)}".rstrip(), _range(line)) for line in lines
        ]
    return rows


def _unit(line: MainMeasurement) -> str:
    return "" if line.unit == "1" else line.unit


def _pairs(conclusion: Conclusion) -> list[str]:
    """Return measurements between two ranks as tables."""
    entries = []
    tables, left_out = pairs(conclusion.trial.measurements)
    for table in tables:
        if len(table.columns) > _MOST_PAIRED:
            entries.append(printable(f"{table.title}: {len(table.columns)} ranks, see the report"))
            continue
        rows = [["", *map(str, table.columns)], *([f"rank {rank}", *cells] for rank, cells in table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        entries.append(printable(f"{table.title}, from the rank of the row to that of the column"))
        entries += [
            printable("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            for row in rows
        ]
    if left_out:
        entries.append(f"{left_out} more names of such measurements are in report.json.")
    return entries


def _name(line: MainMeasurement) -> str:
    return " ".join(
        filter(None, (line.name, line.variant, format_size(line.size_bytes) if line.size_bytes is not None else ""))
    )


def _range(line: MainMeasurement) -> str:
    return f"{format_number(line.low)} to {format_number(line.high)} over {line.count}" if line.count > 1 else ""
