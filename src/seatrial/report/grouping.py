"""Measurements grouped for charts and tables, and tables of the measurements between two ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from seatrial.evidence.measurement import Measurement
from seatrial.util.text import format_number

MOST_CHARTS = 100
"""Charts or tables of a kind, or rows of a check. One rank can name its measurements as it likes, and each name would
be one."""
_MOST_PAIRED = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """A measurement over pairs of ranks, as a table."""

    title: str
    columns: tuple[int, ...]
    """The receiving ranks."""
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    """(sending rank, cells)."""


def pairs(measurements: Iterable[Measurement]) -> tuple[list[Pairs], int]:
    """Return a table for each measurement between two ranks, of several sizes the largest one, and how many were left
    out beyond the first hundred."""
    paired = [
        measurement for measurement in measurements if measurement.peer is not None and measurement.rank is not None
    ]
    tables, left_out = list[Pairs](), 0
    for group in grouped(
        paired, lambda measurement: (measurement.check, measurement.name, measurement.variant)
    ).values():
        if len(tables) == MOST_CHARTS:
            left_out += 1
            continue
        largest = max(measurement.size_bytes or 0 for measurement in group)
        cells = {(f.rank, f.peer): format_number(f.value) for f in group if (f.size_bytes or 0) == largest}
        columns = tuple(sorted({end for pair in cells for end in pair if end is not None}))
        if len(columns) <= _MOST_PAIRED:
            rows = tuple((row, tuple(cells.get((row, column), "") for column in columns)) for row in columns)
            tables.append(Pairs(title=title(group[0], variant=True), columns=columns, rows=rows))
    return tables, left_out


def grouped(measurements: Iterable[Measurement], key: Callable[[Measurement], Any]) -> dict[Any, list[Measurement]]:
    """Return the measurements of generation 0 by key, without repeats and without values that are not finite."""
    groups: defaultdict[Any, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if measurement.generation == 0 and measurement.stage != "repeat" and math.isfinite(measurement.value):
            groups[key(measurement)].append(measurement)
    return dict(groups)


def title(measurement: Measurement, *, variant: bool) -> str:
    """Return check, name and unit of a measurement; with ``variant`` its variant too."""
    unit = f" ({measurement.unit})" if measurement.unit not in ("", "1") else ""
    return " ".join(filter(None, (measurement.check, measurement.name, measurement.variant if variant else ""))) + unit
