"""Stragglers and outliers of a fleet: ratios for a few ranks, median and MAD for many, votes on bits.

A fleet is judged on one side only: a rank is never blamed for being better than the others. Values are times or rates,
so a value that is not a positive finite number is an outlier by itself and is compared with nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, count
from typing import Literal

FEW = 3
"""Up to this many values a median is useless: of two values each is always exactly one MAD away."""
_MAD_TO_SIGMA = 1.4826
"""In a normal distribution sigma = 1.4826 MAD."""
_SIGMAS = 6
"""On average 0.00003 of 32,768 normal values are beyond 6 sigma on one side, and 0.009 beyond 5."""
_RATIO = {"cuda": 1.2, "cpu": 2.0}
_EFFECT = {"cuda": 0.05, "cpu": 0.30}
_COPIES_EFFECT = 0.10
CONTESTED_EFFECT = 0.10
"""Devices of one model differ by less, also where a few of them make the median and MAD uncertain."""
_MANY = 4
"""Where more than a quarter of the values are beyond the ratio and within the spread, a cause that they share is
likelier than as many faults: the wiring of a host, a socket."""
MOST_CONTESTING = 16
"""Hosts, up to which each is left out once: of more of them one moves the median and MAD by little."""
_FEW_HOSTS = 6
"""Up to this many hosts the MAD of the others is uncertain: differences between healthy ones hide a slow one."""
VOTING_HOSTS = 3
"""From this many hosts on most of them agree against one that lies."""
NUM_REFERENCES = 3
"""The number of ranks that are measured again for comparison: one of three that is disturbed changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRuling:
    """The outliers of a fleet, and how they were found."""

    ranks: tuple[int, ...]
    """The ranks that this comparison judges, ascending."""
    peers: tuple[int, ...]
    """The ranks that it compares with one another, those that it judges among them; ascending."""
    reference: float
    """The value that all were compared with: the best of a few, the median of many; NaN without measurements."""
    limit: float | None
    """The value that a rank had to reach; None without another rank to compare with."""
    method: str
    """In words, for the finding: ``ratio 2.0 to the best of 2``."""
    outliers: tuple[int, ...]
    """Ranks, ascending."""
    is_wide: bool
    """The values lie so far apart that some are beyond the ratio and within their spread."""
    contested: Mapping[int, Contest]
    """By rank: it would be an outlier without the word of one other host."""
    are_alike: bool
    """Alone the ranks become faster alike: they share no cores, or as many of them do on each host."""
    num_hosts: int
    apart: Mapping[int, float] = field(default_factory=dict)
    """Rank -> the limit that it missed: beyond the ratio, but so are many, or only one other host, which may lie, says
    so."""
    depends_on_group: bool = False
    """The limits in ``apart`` are missed, or are not, by the group of devices that one other host says it is in."""
    is_only_host: bool = False
    """Other hosts of the trial say that they are in other groups, and no other one is in this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A rank that one other host, which may lie, keeps from being an outlier."""

    host: str
    limit: float
    """The value that it had to reach without that host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote on bits."""

    majority: Hashable | None
    """The value of more than half of the votes; None where no value has a majority."""
    odd: tuple[int, ...]
    """The ranks with another value, ascending; empty without a majority: then they are not separable."""


def judge_fleet(
    values: Mapping[int, float],
    *,
    better: Literal["high", "low"],
    device_type: str,
    copies: bool = False,
    best_known: float = math.inf,
    hosts: Mapping[int, str] | None = None,
    share_cores: bool = False,
) -> FleetRuling:
    """Compare every rank with its fleet.

    An outlier of up to three values is beyond a ratio to the best (GPU 1.2, CPU 2.0). From four values on it is beyond
    6 x 1.4826 x MAD from the median and beyond an effect floor (GPU 5 %, ``copies`` between devices or hosts 10 %, CPU
    30 %): equal devices have a MAD near 0, where any noise would make an outlier. An outlier is a suspect, to be
    measured again.

    A wide spread hides nobody: one of few values beyond the ratio to the median (of two in the middle the better one)
    is an outlier, too. Where these are more than a quarter of the values, none of them is: they lie ``apart``, as half
    of the devices of a host do that are wired otherwise.

    Args:
        values: rate or time by rank.
        better: ``high`` for rates, ``low`` for times.
        device_type: ``cpu`` or ``cuda``.
        copies: the values are bandwidths of copies, which vary more.
        best_known: the best rate of a healthy device of this model. The best of a few ranks is no standard beyond it.
        hosts: as for ``host_median``.
        share_cores: the more ranks a host has, the slower is each of them by design. An outlier must then also be one
            if each rank has one vote.
    """
    kind = "cpu" if device_type == "cpu" else "cuda"
    measured = {rank: value for rank, value in values.items() if is_measured(value)}
    ordered, unmeasured = sorted(measured.values()), values.keys() - measured.keys()
    high = better == "high"
    limit, is_wide, method = None, False, "no other rank to compare with"
    apart, farthest = set[int](), math.nan
    if len(ordered) < 2:
        reference = ordered[0] if ordered else math.nan
    elif len(ordered) <= FEW:
        reference = min(ordered[-1], best_known) if high else ordered[0]
        limit = reference / _RATIO[kind] if high else reference * _RATIO[kind]
        best = "the best" if reference in ordered else "what its model can, which is less than the best"
        method = f"ratio {_RATIO[kind]} to {best} of {len(ordered)}"
    else:
        effect = fleet_effect(device_type, copies=copies)
        spreads = [
            _spread(measured, voters, effect, high, kind) for voters in ((hosts, None) if share_cores else (hosts,))
        ]
        spread = max(spreads, key=lambda each: -each.limit if high else each.limit)
        farthest = (min if high else max)(each.farthest for each in spreads)
        reference, limit, method = spread.reference, spread.limit, spread.method
        beyond = _beyond(measured, farthest, high=high) - _beyond(measured, limit, high=high)
        is_wide = bool(beyond)
        if len(beyond) > 1 and len(beyond) * _MANY > len(measured):
            apart = beyond
            limit = limit if limit > 0 else None
        elif farthest > limit if high else farthest < limit:
            reference = farthest * _RATIO[kind] if high else farthest / _RATIO[kind]
            limit, method = farthest, f"ratio {_RATIO[kind]} to the median of {len(measured)}, which lie far apart"
    slow = set() if limit is None else _beyond(measured, limit, high=high)
    are_alike = hosts is None or not share_cores or len({*Counter(map(hosts.__getitem__, measured)).values()}) < 2
    contested = dict[int, Contest]()
    # Where each host has devices that lie apart, its own ones differ, and no host hides them.
    if hosts is not None and are_alike and {hosts[rank] for rank in apart} < {hosts[rank] for rank in measured}:
        contested = _contested(measured, hosts, slow, high, kind)
    return FleetRuling(
        ranks=tuple(sorted(values)),
        peers=tuple(sorted(values)),
        reference=reference,
        limit=limit,
        method=method,
        outliers=tuple(sorted(slow | unmeasured)),
        is_wide=is_wide,
        contested=contested,
        are_alike=are_alike,
        num_hosts=len({hosts[rank] for rank in measured}) or 1 if hosts is not None else 1,
        apart=dict.fromkeys(sorted(apart), farthest),
    )


def _contested(
    values: Mapping[int, float], hosts: Mapping[int, str], slow: Collection[int], high: bool, kind: str
) -> dict[int, Contest]:
    """Return the ranks that are no outliers, and would be without one of the other hosts.

    Of an even number of hosts one that lies moves the median and the MAD up to the values of a slow one, and of three
    it is one of the two that decide. Hosts with different numbers of ranks on shared cores are not compared so.
    """
    by_host: defaultdict[str, list[float]] = defaultdict(list)
    for rank, value in values.items():
        by_host[hosts[rank]].append(value)
    if not VOTING_HOSTS <= len(by_host) <= MOST_CONTESTING or len(values) <= FEW:
        return {}
    found: dict[int, Contest] = {}
    tighter = max if high else min
    for name in sorted(by_host):
        rest = {rank: value for rank, value in values.items() if hosts[rank] != name}
        effect = max(_EFFECT[kind], CONTESTED_EFFECT)
        spread = _spread(rest, hosts, effect, high, kind)
        limit = tighter(spread.limit, spread.farthest)
        if len(by_host) <= _FEW_HOSTS:
            # Of two hosts that remain each may be right.
            of_hosts = [median(mine) for other, mine in by_host.items() if other != name]
            typical = tighter(spread.better, *of_hosts) if len(by_host) == VOTING_HOSTS else spread.better
            limit = tighter(limit, typical * (1 - effect) if high else typical * (1 + effect))
        if len(rest) <= FEW:
            best = tighter(rest.values())
            limit = tighter(limit, best / _RATIO[kind] if high else best * _RATIO[kind])
        missed = [rank for rank in _beyond(rest, limit, high=high) if rank not in slow]
        if len(missed) * _MANY > len(rest) and {hosts[rank] for rank in missed} == {hosts[rank] for rank in rest}:
            continue  # of each of these hosts many: they are wired so
        for rank in missed:
            if rank not in found or tighter(limit, found[rank].limit) != found[rank].limit:
                found[rank] = Contest(host=name, limit=limit)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    reference: float
    """The median."""
    limit: float
    """On one side of it."""
    better: float
    """The median; of two values in the middle the better one."""
    farthest: float
    """The ratio from that."""
    method: str


def _spread(
    values: Mapping[int, float], hosts: Mapping[int, str] | None, effect: float, high: bool, kind: str
) -> _Spread:
    reference = host_median(values, hosts)
    mad = host_median({rank: abs(value - reference) for rank, value in values.items()}, hosts)
    distance = max(_SIGMAS * _MAD_TO_SIGMA * mad, effect * reference)
    # Where half of the values are slow, the median lies between both halves.
    sign = -1 if high else 1
    better = sign * host_median({rank: sign * value for rank, value in values.items()}, hosts, low=True)
    votes = shared_votes(values, hosts)
    by_host = f", one vote for each of {sum(votes.values())} hosts" if _count_by_host(votes) else ""
    return _Spread(
        reference=reference,
        limit=reference - distance if high else reference + distance,
        better=better,
        farthest=better / _RATIO[kind] if high else better * _RATIO[kind],
        method=f"median {_SIGMAS} MAD and {effect * 100:.0f} % of {len(values)}{by_host}",
    )


def _beyond(values: Mapping[int, float], limit: float, *, high: bool) -> set[int]:
    return {rank for rank, value in values.items() if (value < limit if high else value > limit)}


def fleet_rules(*, copies: bool = False, gpu: bool = True) -> tuple[tuple[str, str], ...]:
    """Return the rules of ``judge_fleet`` in words, as (number of values, limit); with ``gpu`` those of GPUs too."""
    kinds = (("GPU", "cuda"), ("CPU", "cpu")) if gpu else (("CPU", "cpu"),)
    effects = {**_EFFECT, "cuda": _COPIES_EFFECT} if copies else _EFFECT
    ratios = ", ".join(f"{_RATIO[kind]} ({shown})" for shown, kind in kinds)
    floors = ", ".join(f"{effects[kind] * 100:.0f} % ({shown})" for shown, kind in kinds)
    spread = (
        f"{_SIGMAS} x {_MAD_TO_SIGMA} MAD and {floors} from the median (one vote for each of 3 or more hosts), "
        f"at most ratio {ratios} for up to a quarter of them; of 2 hosts each by itself too"
    )
    return (f"2 to {FEW}", f"ratio {ratios} to the best"), (f"{FEW + 1} or more", spread)


def fleet_effect(device_type: str, *, copies: bool = False) -> float:
    """Return the share of a speed below which two speeds count as equal."""
    kind = "cpu" if device_type == "cpu" else "cuda"
    return _COPIES_EFFECT if copies and kind == "cuda" else _EFFECT[kind]


def reference_ranks(
    values: Mapping[int, float],
    fleet: FleetRuling,
    hosts: Mapping[int, str] | None = None,
    nodes: Mapping[int, int] | None = None,
    *,
    without: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the ranks with which an outlier may be compared when alone, the most typical first.

    The typical rank, not the best: the best of many was lucky, and would look slower when repeated. Where there are
    several hosts, only one rank of each: what disturbs a host disturbs all its ranks. Where all nodes are behind one
    address, the nodes take turns.

    Args:
        values: rate or time by rank.
        fleet: what ``judge_fleet`` says of them.
        hosts: by rank, the name of its host; without it each rank counts as one host.
        nodes: by rank, the number of its node.
        without: ranks that are not among them.
    """
    typical = sorted(
        set(fleet.peers) - {*fleet.outliers, *fleet.apart, *without},
        key=lambda rank: (abs(values[rank] - fleet.reference), rank),
    )
    if hosts is None or len({hosts[rank] for rank in fleet.peers}) < 2:
        turns: defaultdict[int, Iterator[int]] = defaultdict(count)
        turn = {rank: next(turns[nodes[rank]]) if nodes else 0 for rank in typical}
        return tuple(sorted(typical, key=turn.__getitem__))
    first_of_host = {hosts[rank]: rank for rank in reversed(typical)}
    return tuple(rank for rank in typical if first_of_host[hosts[rank]] == rank)


def believable_drifts(
    first: Mapping[int, float],
    again: Mapping[int, float],
    *,
    starved: Mapping[int, float],
    typical: float,
    effect: float,
    fleet: FleetRuling,
) -> tuple[float, float] | None:
    """Return how much faster ranks are alone than in the group: at least, at most; None where too few ranks say it.

    A rank that is slow by the smaller value is slow, and one that is fast by the larger one is fast. Alone a rank has
    the machine to itself, so the larger value is at least 1: a rank that is slower alone was disturbed, or lies. The
    median of ``NUM_REFERENCES`` ranks decides both, and may be ``effect`` below 1, as machines get hotter; of fewer
    ranks none is believed against another, and where all of them are slower alone nobody is fast by them (infinite).
    Where all lacked CPU time nobody is slow by them (0), and they count as what they would have been with it, as they
    do beside a single one that did not. Of ``VOTING_HOSTS`` hosts or more no single rank decides: it may be the one
    that lies.

    Args:
        first: rate by rank in the group, the most typical rank first.
        again: rate by rank, alone.
        starved: by rank, the share of CPU time of those that lacked it alone.
        typical: the rate that the limit in the group came from. Nobody is slow by a rank that was slower than that.
        effect: ``fleet_effect``.
        fleet: the ruling whose ranks these are.
    """
    ranks = [rank for rank in first if rank in again]
    if not ranks or (fleet.num_hosts >= VOTING_HOSTS and len(ranks) < 2):
        return None
    believed = [rank for rank in ranks if rank not in starved][:NUM_REFERENCES]
    lows = sorted(again[rank] / max(first[rank], typical) for rank in believed)
    highs = sorted(again[rank] / first[rank] for rank in believed)
    whole = [
        again[rank] / first[rank] / starved[rank] if starved[rank] > 0 else math.inf
        for rank in ranks
        if rank in starved
    ]
    low, high = 0.0, max([1.0, *whole])
    if len(believed) >= NUM_REFERENCES:
        low, high = median(lows), max(median(highs), 1 - effect)
    elif believed:
        low, high = lows[0], max(highs[-1], 1.0) if highs[-1] >= 1 - effect else math.inf
        if len(believed) == 1 and whole:
            low, high = min([*lows, *(again[rank] / max(first[rank], typical) for rank in ranks)]), max(high, *whole)
    return low, high if fleet.are_alike else math.inf


def median(values: Sequence[float]) -> float:
    """Return the median. Raises ValueError without values."""
    if not values:
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    low, high = ordered[middle - 1], ordered[middle]
    mean = (low + high) / 2
    # The sum of two large values may overflow; the halves of tiny ones may vanish.
    return mean if math.isfinite(mean) else low / 2 + high / 2


def host_median(values: Mapping[int, float], hosts: Mapping[int, str] | None = None, *, low: bool = False) -> float:
    """Return the median, in which each of three or more hosts has one vote, which its ranks share.

    So one host that lies never moves it beyond the values of the others. Of one or two hosts each rank has one vote,
    since two that contradict one another are not separable. Raises ValueError without values.

    Args:
        values: by rank.
        hosts: by rank, its host; without it each rank has one vote.
        low: of two values in the middle return the lower one, which one host alone cannot raise, and not their mean.
    """
    votes = shared_votes(values, hosts)
    if not _count_by_host(votes):
        return sorted(values.values())[(len(values) - 1) // 2] if low and values else median(list(values.values()))
    ordered = sorted((value, votes[rank]) for rank, value in values.items())
    sums = list(accumulate(vote for _, vote in ordered))
    middle = bisect_left(sums, sums[-1] / 2)
    is_between = sums[middle] == sums[-1] / 2 and not low
    return median([value for value, _ in ordered[middle : middle + 1 + is_between]])


def minority(values: Mapping[int, Hashable], hosts: Mapping[int, str] | None = None) -> Vote:
    """Vote on bits: each host has one vote, which its ranks share, that of rank 0 included; more than half decide.

    ``hosts``: by rank, its host: one that lies has no more votes for more ranks. Without it each rank is a host.
    """
    votes = shared_votes(values, hosts)
    sums: defaultdict[Hashable, Fraction] = defaultdict(Fraction)
    for rank, value in values.items():
        sums[value] += votes[rank]
    most = max(sums, key=lambda value: sums[value], default=None)
    if 2 * sums[most] <= sum(votes.values()):
        return Vote(majority=None, odd=())
    return Vote(majority=most, odd=tuple(sorted(rank for rank, other in values.items() if other != most)))


def shared_votes(ranks: Collection[int], hosts: Mapping[int, str] | None) -> dict[int, Fraction]:
    """Return the vote of each rank, its share of the one of its host. Without ``hosts`` each rank is a host."""
    if hosts is None:
        return dict.fromkeys(ranks, Fraction(1))
    num_voters = Counter(hosts[rank] for rank in ranks)
    return {rank: Fraction(1, num_voters[hosts[rank]]) for rank in ranks}


def _count_by_host(votes: Mapping[int, Fraction]) -> bool:
    """Return whether hosts decide, and not ranks: they are enough, and have different numbers of ranks."""
    return len(set(votes.values())) > 1 and sum(votes.values()) >= VOTING_HOSTS


def is_measured(value: float) -> bool:
    """Return whether a rate or a time can be compared."""
    return math.isfinite(value) and value > 0
