"""From figures to cells: one ratio for each direction of each pair, against what healthy pairs reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seatrial.verdict.culprits.records import Cell, GroupResult, Limits, Observations, PairResult, Topology
from seatrial.verdict.statistics import median

__all__ = ["CONTENDED_GROUP", "MOST_REPEATS", "Rates", "clean_unless_listed", "gather", "typical"]

_MAD_TO_SIGMA = 1.4826
_MEDIAN_WIDTH = 1.2533
"""The median of n normal values has the standard deviation sigma * sqrt(pi / 2) / sqrt(n)."""
_DEFAULT_SIGMA = 0.05
MOST_REPEATS = 25
CONTENDED_GROUP = 0.3
"""Where the median of a group's exchanges lacks so much of the effect that counts, they slowed one another down: it is
a median of many."""
_CONTENDED = 0.8
"""Where pairs lose so much of the effect that counts, against a quiet fabric, they shared something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """All that was measured of one quantity, made comparable."""

    cells: dict[tuple[int, int], Cell]
    """By (source, target). Figures from a quieter fabric replace the others."""
    groups: tuple[GroupResult, ...]
    reference: float | None
    busy_reference: float | None
    """What the pairs reached that were measured many at once; None without such."""
    limit: float
    """As a ratio: what is below is slow."""
    goal: float | None
    """The limit that was given for all, in the unit of the rates."""
    effect: float
    """``Limits.effect``."""
    sigma: float
    """Of one transfer, as a share of the reference."""

    def slow(self, cell: Cell) -> bool:
        return cell.ratio < self.limit

    def spread(self, cell: Cell) -> float:
        """One standard deviation of its ratio."""
        return _MEDIAN_WIDTH * self.sigma / math.sqrt(cell.repeats)

    @property
    def repeats(self) -> int:
        """So many transfers a figure that a healthy one misses the limit at 4 sigma: of 31,000 one."""
        wanted = (4 * _MEDIAN_WIDTH * self.sigma / max(1 - self.limit, 0.02)) ** 2
        return min(MOST_REPEATS, max(5, math.ceil(wanted) | 1))

    @property
    def contended(self) -> bool:
        """Those measured at once were slowed down by one another: their figures hide what is slower."""
        if self.reference is None or self.busy_reference is None:
            return False
        return self.busy_reference < (1 - _CONTENDED * self.effect) * self.reference


def typical(values: Iterable[float]) -> float | None:
    """What those reach that are not slow, also where most are: one bad member spoils every pair that it is in.

    The value that 15 % reach (not the best: that one was lucky), and then the median of all within 10 % of it.
    """
    ordered = sorted((value for value in values if value > 0), reverse=True)
    if not ordered:
        return None
    index = int(0.15 * len(ordered)) if len(ordered) > 6 else min(1, (len(ordered) - 1) // 2)
    return median([value for value in ordered if value >= 0.9 * ordered[index]])


def gather(observations: Observations, topology: Topology, limits: Limits, *, latency: bool = False) -> Rates:
    """Make cells of the figures. Latencies become rates (1/s), so that high is good throughout."""
    known = set(topology.members)
    figures: dict[tuple[int, int], list[PairResult]] = {}
    for each in _all_pairs(observations):
        is_one = each.latency_s is not None if latency else each.latency_s is None
        if is_one or each.failed:
            if not {each.source, each.target} <= known or each.source == each.target:
                raise ValueError(f"{each.source} and {each.target} are no pair of the topology's members")
            figures.setdefault((each.source, each.target), []).append(each)
    # Only the quietest occasion counts, and of that the median: what failed has the rate 0.
    rates: dict[tuple[int, int], tuple[float, int, int, str]] = {}
    for key, many in figures.items():
        at_once = min(each.at_once for each in many)
        best = [each for each in many if each.at_once == at_once]
        rate = median([_rate(each) for each in best])
        failed = (
            "" if rate > 0 else next((each.failed for each in best if each.failed), "no positive rate was measured")
        )
        rates[key] = (rate, at_once, sum(each.repeats for each in best), failed)
    quiet = typical(rate for rate, at_once, *_ in rates.values() if at_once == 1)
    medians = [] if latency else [group.gbps for group in observations.groups if group.gbps]
    crowd = _crowd(observations.pairs, latency)
    busy = typical(rate for rate, _ in crowd) or typical(medians)
    reference = quiet if busy is None or (quiet is not None and quiet > 1.05 * busy) else busy
    limit = 1 - limits.effect
    if limits.gbps is not None and not latency and reference and limits.gbps <= reference:
        # A limit above what all reach says nothing of one of them: that is a finding about the fabric.
        limit = max(limit, limits.gbps / reference)
    cells = {
        (source, target): Cell(
            source=source,
            target=target,
            ratio=rate / reference if reference else 0.0,
            rate=rate,
            at_once=at_once,
            repeats=repeats,
            failed=failed,
        )
        for (source, target), (rate, at_once, repeats, failed) in rates.items()
    }
    if reference is not None and not latency:
        clean_below = [
            (set(group.members), {(each.source, each.target) for each in group.slow}, max(2, group.at_once))
            for group in observations.groups
            if clean_unless_listed(group, reference, limit, limits.effect)
        ]
        for key, cell in list(cells.items()):
            # In a quieter group, and not among its slow ones: then it was clean there.
            if any(
                at_once < cell.at_once and inside.issuperset(key) and key not in listed
                for inside, listed, at_once in clean_below
            ):
                del cells[key]
    return Rates(
        cells=cells,
        groups=() if latency else observations.groups,
        reference=reference,
        busy_reference=busy,
        limit=limit,
        goal=None if latency else limits.gbps,
        effect=limits.effect,
        sigma=_sigma(crowd, busy),
    )


def clean_unless_listed(group: GroupResult, reference: float, limit: float, effect: float) -> bool:
    """Whether all that a group does not list was clean: where all were slowed down, it may still be slow."""
    if group.gbps is None:
        return False
    return group.gbps * group.told_below >= (1 - CONTENDED_GROUP * effect) * limit * reference


def _all_pairs(observations: Observations) -> Iterable[PairResult]:
    yield from observations.pairs
    # A group lists the slow ones of many, unlucky ones among them: that confirms nothing, however quiet it was.
    for listed in (*(group.slow for group in observations.groups), observations.outliers):
        yield from (replace(each, at_once=max(2, each.at_once)) for each in listed)


def _crowd(results: Iterable[PairResult], latency: bool) -> list[tuple[float, int]]:
    """Rate and repeats of the pairs measured while others were at work, of each the quietest such occasion.

    What was found in a group is not among them: it lists the slow ones only.
    """
    least: dict[tuple[int, int], PairResult] = {}
    for each in results:
        if each.at_once > 1 and not each.failed and (each.latency_s is not None) == latency:
            key = (each.source, each.target)
            if key not in least or each.at_once <= least[key].at_once:
                least[key] = each
    return [(_rate(each), each.repeats) for each in least.values()]


def _rate(result: PairResult) -> float:
    value = result.gbps if result.latency_s is None else 1 / result.latency_s if result.latency_s > 0 else math.nan
    return value if not result.failed and value is not None and math.isfinite(value) and value > 0 else 0.0


def _sigma(figures: Sequence[tuple[float, int]], reference: float | None) -> float:
    """The noise of one transfer, from how far the healthy figures lie apart."""
    if reference is None:
        return _DEFAULT_SIGMA
    near = [
        abs(rate / reference - 1) * math.sqrt(repeats) / (_MEDIAN_WIDTH if repeats > 1 else 1)
        for rate, repeats in figures
        if rate > 0.85 * reference
    ]
    return _MAD_TO_SIGMA * median(near) if len(near) >= 8 else _DEFAULT_SIGMA
