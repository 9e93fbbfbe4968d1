"""Charts by kind of measurement, drawn as SVG and as tables: by size, by step, by rank, by pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from seatrial.evidence.measurement import Measurement
from seatrial.report.grouping import MOST_CHARTS, grouped, pairs, title
from seatrial.report.markup import Markup, element
from seatrial.util.text import format_number, format_size

_WIDTH, _HEIGHT = 560, 180
_LEFT, _BOTTOM, _TOP, _RIGHT = 70, 24, 8, 8
_MOST_RANKS = 128
_MOST_LINES = 10
_DASHES: Sequence[str] = ("none", "6 3", "2 2", "8 2 2 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of a curve and how it is drawn, in the chart and in its legend."""

    name: str
    points: tuple[str, ...]
    """``x,y`` in pixels of the chart."""
    dash: str
    opacity: float


def curves(measurements: Iterable[Measurement]) -> Iterator[Markup]:
    """Draw measurements over sizes (logarithmic) and over steps: one chart for each name, one line for each variant."""
    axes: list[tuple[Callable[[Measurement], int | None], bool]] = [
        (lambda measurement: measurement.size_bytes, True),
        (lambda measurement: measurement.step, False),
    ]
    drawn, left_out = 0, 0
    for position, logarithmic in axes:
        groups = grouped(
            (measurement for measurement in measurements if position(measurement) is not None),
            lambda measurement: (measurement.check, measurement.name),
        )
        for group in groups.values():
            if drawn == MOST_CHARTS:
                left_out += 1
                continue
            lines: dict[str, list[tuple[float, float]]] = {}
            for variant, part in grouped(group, lambda measurement: measurement.variant).items():
                at = grouped(part, position)
                lines[str(variant)] = [(float(x), median([f.value for f in at[x]])) for x in sorted(at)]
            if max(len(line) for line in lines.values()) > 1:
                drawn += 1
                yield from _curve(title(group[0], variant=False), lines, logarithmic)
    yield from left_out_words(left_out)


def bars(measurements: Iterable[Measurement]) -> Iterator[Markup]:
    """Draw measurements that several ranks reported once each: one bar for each rank."""
    alone = [
        f for f in measurements if f.rank is not None and f.peer is None and f.step is None and f.size_bytes is None
    ]
    drawn, left_out = 0, 0
    for group in grouped(
        alone, lambda measurement: (measurement.check, measurement.name, measurement.variant)
    ).values():
        if drawn == MOST_CHARTS:
            left_out += 1
            continue
        by_rank = {measurement.rank: measurement.value for measurement in group}
        highest = max(map(abs, by_rank.values())) or 1.0
        if 1 < len(by_rank) <= _MOST_RANKS and group[0].better is not None:
            drawn += 1
            yield element("h3", title(group[0], variant=True))
            yield element(
                "table",
                (_bar(f"rank {rank}", abs(value) / highest, format_number(value)) for rank, value in by_rank.items()),
                class_="bars",
            )
    yield from left_out_words(left_out)


def pair_tables(measurements: Iterable[Measurement]) -> Iterator[Markup]:
    """Return measurements between two ranks as tables, from the rank of the row to that of the column."""
    tables, left_out = pairs(measurements)
    for table in tables:
        head = element("tr", element("th"), (element("th", column, class_="n") for column in table.columns))
        rows = (
            element("tr", element("th", rank, class_="n"), (element("td", cell, class_="n") for cell in cells))
            for rank, cells in table.rows
        )
        yield element("h3", table.title, ", from row to column")
        yield element("div", element("table", head, rows), class_="scroll")
    yield from left_out_words(left_out)


def left_out_words(left_out: int) -> Iterator[Markup]:
    """Say how many measurements are in the JSON report alone."""
    if left_out:
        yield element("p", f"{left_out} more names of such measurements are in report.json.")


def _bar(label: str, share: float, value: str) -> Markup:
    bar = element("span", class_="bar", style=f"width: {share * 100:.1f}%")
    return element(
        "tr", element("td", label), element("td", bar, style="width: 24rem"), element("td", value, class_="n")
    )


def _curve(heading: str, data: dict[str, list[tuple[float, float]]], logarithmic: bool) -> Iterator[Markup]:
    values = [pair for line in data.values() for pair in line]

    def scale(x: float) -> float:
        return math.log2(max(x, 1.0)) if logarithmic else x

    first, last = min(x for x, _ in values), max(x for x, _ in values)
    # The axis starts at zero, so that a difference looks as large as it is.
    low, high = min(0.0, *(y for _, y in values)), max(y for _, y in values)
    wide, tall = (scale(last) - scale(first)) or 1.0, (high - low) or 1.0

    def point(x: float, y: float) -> str:
        across = _LEFT + (scale(x) - scale(first)) / wide * (_WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{_HEIGHT - _BOTTOM - (y / tall - low / tall) * (_HEIGHT - _BOTTOM - _TOP):.1f}"

    def name(x: float) -> str:
        return format_size(int(x)) if logarithmic else f"step {int(x)}"

    shown = sorted(data.items())[:_MOST_LINES]
    lines = [
        _Line(
            name=variant,
            points=tuple(point(x, y) for x, y in line),
            dash=_DASHES[number % len(_DASHES)],
            opacity=1 - 0.6 * number / len(shown),
        )
        for number, (variant, line) in enumerate(shown)
    ]
    yield element("h3", heading)
    yield element(
        "svg",
        _ticks(name(first), name(last), format_number(low), format_number(high)),
        (_polyline(line, line.points, element("title", line.name)) for line in lines),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=heading,
    )
    if len(lines) > 1:
        yield element("p", (_legend(line, is_last=line is lines[-1]) for line in lines))


def _ticks(first: str, last: str, low: str, high: str) -> Iterator[Markup]:
    for x, y, anchor, label in (
        (_LEFT, _HEIGHT - 6, "start", first),
        (_WIDTH - _RIGHT, _HEIGHT - 6, "end", last),
        (_LEFT - 6, _HEIGHT - _BOTTOM, "end", low),
        (_LEFT - 6, _TOP + 10, "end", high),
    ):
        yield element("text", label, x=x, y=y, text_anchor=anchor)


def _polyline(line: _Line, points: Iterable[str], *content: Markup) -> Markup:
    return element("polyline", *content, points=points, stroke_dasharray=line.dash, opacity=line.opacity)


def _legend(line: _Line, *, is_last: bool) -> Iterator[Markup | str]:
    yield element("svg", _polyline(line, ("0,6", "30,6")), width=34, height=10, role="presentation")
    yield line.name if is_last else f"{line.name}, "
