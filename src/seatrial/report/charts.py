"""Charts by kind of figure: by size, by step, by rank, by pair. Pure numbers for a template that draws SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from seatrial.report.text import amount, size
from seatrial.verdict.figures import Figure

__all__ = ["HEIGHT", "WIDTH", "Bars", "Curve", "Line", "Pairs", "bars", "curves", "pairs"]

WIDTH, HEIGHT = 560, 180
_LEFT, _BOTTOM, _TOP, _RIGHT = 70, 24, 8, 8
_MOST_RANKS = 128
_MOST_PAIRED = 24
_MOST_LINES = 10
_DASHES: Sequence[str] = ("none", "6 3", "2 2", "8 2 2 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a curve: its name and its SVG points."""

    name: str
    points: str
    dash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A figure over sizes or steps; ``ticks`` are (x, y, anchor, text)."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, float, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A figure over ranks; each bar is (label, share of the highest, value)."""

    title: str
    rows: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """A figure over pairs of ranks, as a table; ``rows`` are (rank, cells)."""

    title: str
    columns: tuple[int, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def curves(figures: Iterable[Figure]) -> list[Curve]:
    """Figures over sizes (logarithmic) and over steps: one chart a name, one line a variant."""
    charts = []
    over: list[tuple[Callable[[Figure], int | None], bool]] = [
        (lambda figure: figure.size_bytes, True),
        (lambda figure: figure.step, False),
    ]
    for place, logarithmic in over:
        groups = _grouped(
            (figure for figure in figures if place(figure) is not None), lambda figure: (figure.check, figure.name)
        )
        for group in groups.values():
            lines: dict[str, list[tuple[float, float]]] = {}
            for variant, part in _grouped(group, lambda figure: figure.variant).items():
                at = _grouped(part, place)
                lines[str(variant)] = [(float(x), median([f.value for f in at[x]])) for x in sorted(at)]
            if max(len(line) for line in lines.values()) > 1:
                charts.append(_curve(group[0], lines, logarithmic))
    return charts


def bars(figures: Iterable[Figure]) -> list[Bars]:
    """Figures that each of several ranks told once."""
    alone = [f for f in figures if f.rank is not None and f.peer is None and f.step is None and f.size_bytes is None]
    charts = []
    for group in _grouped(alone, lambda figure: (figure.check, figure.name, figure.variant)).values():
        by_rank = {figure.rank: figure.value for figure in group}
        highest = max(map(abs, by_rank.values())) or 1.0
        if 1 < len(by_rank) <= _MOST_RANKS and group[0].better is not None:
            rows = [(f"rank {rank}", abs(value) / highest * 100, amount(value)) for rank, value in by_rank.items()]
            charts.append(Bars(title=_title(group[0], variant=True), rows=tuple(rows)))
    return charts


def pairs(figures: Iterable[Figure]) -> list[Pairs]:
    """Figures between two ranks, of several sizes the largest."""
    paired = [figure for figure in figures if figure.peer is not None and figure.rank is not None]
    charts = []
    for group in _grouped(paired, lambda figure: (figure.check, figure.name, figure.variant)).values():
        largest = max(figure.size_bytes or 0 for figure in group)
        cells = {(f.rank, f.peer): amount(f.value) for f in group if (f.size_bytes or 0) == largest}
        columns = tuple(sorted({end for pair in cells for end in pair if end is not None}))
        if len(columns) <= _MOST_PAIRED:
            rows = tuple((row, tuple(cells.get((row, column), "") for column in columns)) for row in columns)
            charts.append(Pairs(title=_title(group[0], variant=True), columns=columns, rows=rows))
    return charts


def _grouped(figures: Iterable[Figure], key: Callable[[Figure], Any]) -> dict[Any, list[Figure]]:
    """Of generation 0, without repeats and without numbers that are none."""
    groups: defaultdict[Any, list[Figure]] = defaultdict(list)
    for figure in figures:
        if figure.generation == 0 and figure.stage != "repeat" and math.isfinite(figure.value):
            groups[key(figure)].append(figure)
    return dict(groups)


def _curve(figure: Figure, lines: dict[str, list[tuple[float, float]]], logarithmic: bool) -> Curve:
    points = [point for line in lines.values() for point in line]

    def scale(x: float) -> float:
        return math.log2(max(x, 1.0)) if logarithmic else x

    first, last = min(x for x, _ in points), max(x for x, _ in points)
    # The axis starts at zero, so that a difference looks as large as it is.
    low, high = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    wide, tall = (scale(last) - scale(first)) or 1.0, (high - low) or 1.0

    def place(x: float, y: float) -> str:
        across = _LEFT + (scale(x) - scale(first)) / wide * (WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{HEIGHT - _BOTTOM - (y / tall - low / tall) * (HEIGHT - _BOTTOM - _TOP):.1f}"

    def name(x: float) -> str:
        return size(int(x)) if logarithmic else f"step {int(x)}"

    shown = sorted(lines.items())[:_MOST_LINES]
    return Curve(
        title=_title(figure, variant=False),
        lines=tuple(
            Line(name=variant, points=" ".join(place(x, y) for x, y in line), dash=_DASHES[number % len(_DASHES)])
            for number, (variant, line) in enumerate(shown)
        ),
        ticks=_ticks(name(first), name(last), amount(low), amount(high)),
    )


def _ticks(first: str, last: str, low: str, high: str) -> tuple[tuple[float, float, str, str], ...]:
    return (
        (_LEFT, HEIGHT - 6, "start", first),
        (WIDTH - _RIGHT, HEIGHT - 6, "end", last),
        (_LEFT - 6, HEIGHT - _BOTTOM, "end", low),
        (_LEFT - 6, _TOP + 10, "end", high),
    )


def _title(figure: Figure, *, variant: bool) -> str:
    unit = f" ({figure.unit})" if figure.unit not in ("", "1") else ""
    return " ".join(filter(None, (figure.check, figure.name, figure.variant if variant else ""))) + unit
