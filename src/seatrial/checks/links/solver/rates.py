"""Comparison of measurements: one ratio for each direction of each pair, relative to what healthy pairs reach."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from seatrial.checks.links.solver.records import (
    FAILURES,
    DirectedLink,
    GroupResult,
    LinkLimits,
    Observations,
    PairResult,
    Topology,
)
from seatrial.evidence.statistics import median

_MAD_TO_SIGMA = 1.4826
_MEDIAN_WIDTH = 1.2533
"""The median of n normal values has the standard deviation sigma * sqrt(pi / 2) / sqrt(n)."""
_DEFAULT_SIGMA = 0.05
_NO_RATE = "no positive rate was measured"
MOST_REPEATS = 25
CONTENDED_GROUP = 0.3
"""The loss of a group's median, as a share of ``LinkLimits.effect``, above which its exchanges contended with one
another. The threshold is low because the median is one of many."""
_CONTENDED = 0.8
"""The loss of simultaneous pairs, as a share of ``LinkLimits.effect``, above which they contended with one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """All measurements of one quantity, made comparable."""

    links: dict[tuple[int, int], DirectedLink]
    """By (source, target). Rates with less contention replace the others; no round replaces a failure."""
    groups: tuple[GroupResult, ...]
    reference: float | None
    """The rate that healthy pairs reach, in GB/s or 1/cost."""
    busy_reference: float | None
    """The rate of the pairs that were measured simultaneously; None if there were none."""
    limit: float
    """The ratio below which a link is slow."""
    goal: float | None
    """``LinkLimits.gbps``; None for costs."""
    effect: float
    """``LinkLimits.effect``."""
    sigma: float
    """The standard deviation of one transfer, as a share of the reference."""

    def slow(self, link: DirectedLink) -> bool:
        """Return True if the link is below the limit."""
        return link.ratio < self.limit

    def spread(self, link: DirectedLink) -> float:
        """Return one standard deviation of the ratio of a link."""
        return _MEDIAN_WIDTH * self.sigma / math.sqrt(link.repeats)

    @property
    def repeats(self) -> int:
        """The number of transfers per measurement with which one healthy pair in 31,000 (4 sigma) misses the limit."""
        wanted = (4 * _MEDIAN_WIDTH * self.sigma / max(1 - self.limit, 0.02)) ** 2
        return min(MOST_REPEATS, max(5, math.ceil(wanted) | 1))

    @property
    def contended(self) -> bool:
        """Whether simultaneous pairs slowed one another down, so that their measurements hide slow links."""
        if self.reference is None or self.busy_reference is None:
            return False
        return self.busy_reference < (1 - _CONTENDED * self.effect) * self.reference


def typical(values: Iterable[float]) -> float | None:
    """Return the typical healthy value, even if most values are slow: one bad member spoils every pair that it is in.

    The result is the median of all values within 10 % of the value that 15 % reach (the best value may be luck). It is
    None without any positive value.
    """
    ordered = sorted((value for value in values if value > 0), reverse=True)
    if not ordered:
        return None
    index = int(0.15 * len(ordered)) if len(ordered) > 6 else min(1, (len(ordered) - 1) // 2)
    return median([value for value in ordered if value >= 0.9 * ordered[index]])


def _standard(rates: Iterable[tuple[int, float]]) -> float | None:
    """Return the typical healthy rate of (sender, rate) that more than one sender reaches, where more than two sent.

    The sender measures a rate: one that is faster than all others, or says so, is no standard for them. Where it is
    little faster, what the next one typically reaches is the standard.
    """
    left = [(sender, rate) for sender, rate in rates if rate > 0]
    while True:
        value = typical(rate for _, rate in left)
        fast: dict[int, list[float]] = {}
        for sender, rate in left:
            if rate >= 0.9 * (value or 0.0):
                fast.setdefault(sender, []).append(rate)
        if value is None or len({sender for sender, _ in left}) < 3:
            return value
        if len(fast) > 1:
            return min(value, sorted(map(median, fast.values()))[-2])
        left = [(sender, rate) for sender, rate in left if sender not in fast]


def gather(observations: Observations, topology: Topology, limits: LinkLimits, *, by_cost: bool = False) -> LinkRates:
    """Reduce the results to one number for each link. Costs become rates (1/cost), so that more is always better.

    Raises ValueError for a result of a member that the topology does not have.
    """
    known = set(topology.members)
    results: dict[tuple[int, int], list[PairResult]] = {}
    for result in _all_pairs(observations):
        is_one = result.cost is not None if by_cost else result.cost is None
        if is_one or result.failed:
            if not {result.source, result.target} <= known or result.source == result.target:
                raise ValueError(f"{result.source} and {result.target} are no pair of the topology's members")
            results.setdefault((result.source, result.target), []).append(result)
    # Only the rates with the least contention count, by their median; of what came through, a single failure is none.
    rates: dict[tuple[int, int], tuple[float, int, int, str]] = {}
    starved, rounds = set[tuple[int, int]](), dict[tuple[int, int], list[float]]()
    tries = _tries(observations)
    for key, many in results.items():
        failures, num_rounds = tries.get(key, ((), 1))
        came_through = [result for result in many if _rate(result) > 0]
        is_open = len(failures) < min(FAILURES, num_rounds)
        if failures and is_open and (came_through or by_cost):
            many = came_through
        if not many:
            continue
        at_once = min(result.at_once for result in many)
        best = [result for result in many if result.at_once == at_once]
        if any(not (result.failed or result.starved) for result in best):
            best = [result for result in best if not result.starved]
        starved.update({key} if any(result.starved for result in best) else ())
        rounds[key] = [_rate(result) for result in best]
        rate = 0.0 if failures and not is_open else median(rounds[key])
        reasons = failures or tuple(result.failed for result in best if result.failed)
        failed = "" if rate > 0 else min(reasons, default=_NO_RATE)
        rates[key] = (rate, at_once, sum(result.repeats for result in best), failed)
    uncontended = _standard((source, rate) for (source, _), (rate, at_once, *_) in rates.items() if at_once == 1)
    medians = [] if by_cost else [group.gbps for group in observations.groups if group.gbps]
    crowd = _crowd(observations.pairs, by_cost)
    busy = _standard((source, rate) for source, rate, _ in crowd) or typical(medians)
    reference = uncontended if busy is None or (uncontended is not None and uncontended > 1.05 * busy) else busy
    limit = 1 - limits.effect
    if limits.gbps is not None and not by_cost and reference and limits.gbps <= reference:
        # A limit above what all reach does not single out a link; that is a finding about the fabric.
        limit = max(limit, limits.gbps / reference)
    # Between two members the only reference is the other direction, whose rounds differ, too.
    low = reference
    if len(known) == 2 and reference:
        low = min(rate for rate in max(rounds.values(), key=median) if rate > 0)
    links = {
        (source, target): DirectedLink(
            source=source,
            target=target,
            ratio=rate / reference if reference else 0.0,
            rate=rate,
            at_once=at_once,
            repeats=repeats,
            failed=failed,
            starved=(source, target) in starved,
            unsteady=not (failed or by_cost)
            and low is not None
            and rate < limit * (reference or 0.0)
            and max(rounds[source, target]) >= limit * low,
        )
        for (source, target), (rate, at_once, repeats, failed) in rates.items()
    }
    for key in links.keys() & tries.keys() if not by_cost else ():
        failures, num_rounds = tries[key]
        link = replace(links[key], failures=failures, rounds=num_rounds)
        # One that came through in groups only has no rate.
        links[key] = replace(link, unsteady=link.unsteady or (link.is_open and bool(link.failed)))
    if reference is not None and not by_cost:
        clean_groups = [
            group for group in observations.groups if clean_unless_listed(group, reference, limit, limits.effect)
        ]
        clean_below = [
            ({(pair.source, pair.target) for pair in group.slow}, max(2, group.at_once)) for group in clean_groups
        ]
        of_member = _by_member(clean_groups)
        for key, link in list(links.items()):
            # A group with less contention did not list the link as slow, so it was clean there.
            inside = (clean_below[place] for place in _of_both(of_member, key)) if not link.failures else ()
            if any(at_once < link.at_once and key not in listed for listed, at_once in inside):
                del links[key]
    return LinkRates(
        links=links,
        groups=() if by_cost else observations.groups,
        reference=reference,
        busy_reference=busy,
        limit=limit,
        goal=None if by_cost else limits.gbps,
        effect=limits.effect,
        sigma=_sigma([(rate, repeats) for _, rate, repeats in crowd], busy),
    )


def clean_unless_listed(group: GroupResult, reference: float, limit: float, effect: float) -> bool:
    """Return True if every exchange that the group does not list was clean; under contention it could still be slow."""
    if group.gbps is None:
        return False
    return group.gbps * group.listed_below >= (1 - CONTENDED_GROUP * effect) * limit * reference


def _tries(observations: Observations) -> dict[tuple[int, int], tuple[tuple[str, ...], int]]:
    """Return why each direction of a pair failed, once for each round, and the number of its rounds.

    It holds those that failed as a pair. Then a group in which both ends say the same is one more failure, and not
    two: a pause fails a group, and the half that is tried next.
    """
    failures, rounds = dict[tuple[int, int], list[str]](), Counter[tuple[int, int]]()
    for result in observations.pairs:
        if result.cost is None:
            rounds[result.source, result.target] += 1
            if not _rate(result):
                failures.setdefault((result.source, result.target), []).append(result.failed or _NO_RATE)
    of_member = _by_member(observations.groups)
    for key, reasons in failures.items():
        inside = [observations.groups[place] for place in _of_both(of_member, key)]
        reported = sorted(group.failed for group in inside if frozenset(key) in group.reports)
        reasons += reported[:1]
        rounds[key] += len(reported[:1]) + sum(group.gbps is not None for group in inside)
    return {key: (tuple(sorted(reasons)), rounds[key]) for key, reasons in failures.items()}


def _by_member(groups: Sequence[GroupResult]) -> Mapping[int, Set[int]]:
    """Return member -> the places of the groups with it."""
    places: defaultdict[int, set[int]] = defaultdict(set)
    for place, group in enumerate(groups):
        for member in group.members:
            places[member].add(place)
    return places


def _of_both(places: Mapping[int, Set[int]], ends: tuple[int, int]) -> Set[int]:
    """Return the places of the groups with both ends. ``places``: of the groups with each member."""
    first, second = (places.get(end, frozenset()) for end in ends)
    return first & second


def _all_pairs(observations: Observations) -> Iterable[PairResult]:
    yield from observations.pairs
    # A group lists the slowest of many exchanges, some of them by chance, so it never counts as uncontended.
    for listed in (*(group.slow for group in observations.groups), observations.outliers):
        yield from (replace(pair, at_once=max(2, pair.at_once)) for pair in listed)


def _crowd(results: Iterable[PairResult], by_cost: bool) -> list[tuple[int, float, int]]:
    """Return sender, rate and repeats of each pair that was measured while others were active.

    The result with the least contention counts. Exchanges of groups are left out: groups list the slow ones only.
    """
    least: dict[tuple[int, int], PairResult] = {}
    for result in results:
        if result.at_once > 1 and not result.failed and (result.cost is not None) == by_cost:
            key = (result.source, result.target)
            if key not in least or result.at_once <= least[key].at_once:
                least[key] = result
    return [(result.source, _rate(result), result.repeats) for result in least.values()]


def _rate(result: PairResult) -> float:
    value = result.gbps if result.cost is None else 1 / result.cost if result.cost > 0 else math.nan
    return value if not result.failed and value is not None and math.isfinite(value) and value > 0 else 0.0


def _sigma(measurements: Sequence[tuple[float, int]], reference: float | None) -> float:
    """Return the noise of one transfer, estimated from the spread of the healthy measurements."""
    if reference is None:
        return _DEFAULT_SIGMA
    near = [
        abs(rate / reference - 1) * math.sqrt(repeats) / (_MEDIAN_WIDTH if repeats > 1 else 1)
        for rate, repeats in measurements
        if rate > 0.85 * reference
    ]
    return _MAD_TO_SIGMA * median(near) if len(near) >= 8 else _DEFAULT_SIGMA
