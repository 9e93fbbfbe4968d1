"""Comparisons of a fleet in which any one host may lie, also about whether it belongs to the fleet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.rates import FleetRates
from seatrial.evidence.statistics import (
    CONTESTED_EFFECT,
    FEW,
    MOST_CONTESTING,
    FleetRuling,
    fleet_effect,
    is_measured,
    judge_fleet,
    median,
    reference_ranks,
)

_MOST_RANKS = 16 * 16
"""Ranks of 16 hosts with 16 GPUs each, which take a second."""


def judge_fleets(
    values: Mapping[int, float],
    judge: Callable[..., FleetRuling],
    hosts: Mapping[int, str] | None = None,
    *,
    all_hosts: Collection[str] = (),
) -> tuple[FleetRuling, ...]:
    """Compare every rank with its fleet, of two hosts with the other ranks of its host first.

    Of two hosts either one moves the median and MAD of both as it likes. So:

    - An outlier among four or more ranks of its host stays one. Among two or three it is one only if it is one of all,
      too, since one of them that is fast makes the others look slow; else it lies ``apart`` from the others there.
    - Where values lie far apart and no host has more ranks than the other one, none is an outlier by the word of the
      other host, and lies ``apart``.

    Where further hosts say that they belong to other fleets, one of them may belong to this one, and one of this one to
    another: a rank lies ``apart`` that one more host like one of these, or of two hosts or three ranks one host less,
    makes an outlier or not.

    Each rank is judged in one of the rulings.

    Args:
        values: rate or time by rank.
        judge: ``judge_fleet`` with all its arguments but these.
        hosts: as for ``judge_fleet``; without it each rank counts as one host.
        all_hosts: the hosts of all fleets: which of them a host belongs to, it says itself.
    """
    rulings = _compare(values, judge, hosts)
    if hosts is None:
        return rulings
    names = sorted({hosts[rank] for rank in values})
    if not {*all_hosts} - {*names} or len(names) > MOST_CONTESTING:
        return rulings
    doubted = _by_group(values, judge, hosts, rulings, names)
    rest = [_without(ruling, doubted) for ruling in rulings if {*ruling.ranks} - doubted.keys()]
    if doubted:
        whole = judge(values, hosts=hosts)
        apart = replace(_without(whole, {}), ranks=_of(whole, doubted), outliers=(), contested={}, apart=doubted)
        rest.append(replace(apart, limit=None, depends_on_group=True))
    return tuple(replace(ruling, is_only_host=len(names) == 1) for ruling in rest)


def _without(ruling: FleetRuling, doubted: Mapping[int, float]) -> FleetRuling:
    """Return the ruling about the other ranks. None of the doubted ones is a rank to compare with."""
    return replace(
        ruling,
        ranks=tuple(rank for rank in ruling.ranks if rank not in doubted),
        peers=tuple(rank for rank in ruling.peers if rank not in doubted),
        outliers=tuple(rank for rank in ruling.outliers if rank not in doubted),
        contested={rank: contest for rank, contest in ruling.contested.items() if rank not in doubted},
        apart={rank: limit for rank, limit in ruling.apart.items() if rank not in doubted},
    )


def _by_group(
    values: Mapping[int, float],
    judge: Callable[..., FleetRuling],
    hosts: Mapping[int, str],
    rulings: Iterable[FleetRuling],
    names: Collection[str],
) -> dict[int, float]:
    """Return the ranks that are outliers, or are not, by the group that one other host says it is in, with the limit.

    A host that left may be like any of those that remain. One that joined is one of many, unless these are two, or the
    best of three ranks is the limit.
    """
    slow = {
        rank: ruling.limit
        for ruling in rulings
        for rank in ruling.outliers
        if ruling.limit is not None and is_measured(values[rank])
    }
    known = {rank for ruling in rulings for rank in (*ruling.outliers, *ruling.apart, *ruling.contested)}
    doubted: dict[int, float] = {}
    by_host = {name: {rank: value for rank, value in values.items() if hosts[rank] == name} for name in names}
    for own in by_host.values() if slow and (len(names) == 2 or len(values) <= FEW) else ():
        others = {rank: value for rank, value in values.items() if rank not in own}
        still = {rank for ruling in _compare(others, judge, hosts) for rank in ruling.outliers} if others else {*()}
        doubted |= {rank: limit for rank, limit in slow.items() if rank in others and rank not in still}
    for name in _copied(by_host):
        copies = {-1 - rank: value for rank, value in by_host[name].items()}
        for ruling in _compare({**values, **copies}, judge, {**hosts, **dict.fromkeys(copies, f"another {name}")}):
            missed = {} if ruling.limit is None else dict.fromkeys(ruling.outliers, ruling.limit)
            doubted |= {
                rank: limit
                for rank, limit in (missed | {**ruling.apart}).items()
                if rank in values and rank not in known and abs(values[rank] / ruling.reference - 1) > CONTESTED_EFFECT
            }
    return doubted


def _copied(by_host: Mapping[str, Mapping[int, float]]) -> Iterable[str]:
    """Return the hosts of which copies join the fleet: all of them, but for many ranks, where that takes seconds.

    Where the many ranks of each host are alike, one like the best host moves the median most, and one like a middle one
    makes the spread smallest.
    """
    if sum(map(len, by_host.values())) <= _MOST_RANKS or not all(map(_are_alike, by_host.values())):
        return by_host
    ordered = sorted(by_host, key=lambda name: median([*by_host[name].values()]))
    return dict.fromkeys(ordered[at] for at in (0, (len(ordered) - 1) // 2, len(ordered) // 2, -1))


def _are_alike(own: Mapping[int, float]) -> bool:
    return min(own.values()) >= (1 - CONTESTED_EFFECT / 2) * max(own.values())


def _compare(
    values: Mapping[int, float], judge: Callable[..., FleetRuling], hosts: Mapping[int, str] | None
) -> tuple[FleetRuling, ...]:
    whole = judge(values, hosts=hosts)
    by_host: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for rank, value in values.items():
        by_host[hosts[rank] if hosts is not None else ""][rank] = value
    if len(by_host) != 2 or len(values) <= FEW:
        return (whole,)
    own = [judge(mine) for _, mine in sorted(by_host.items())]
    sure = {rank for ruling in own for rank in ruling.outliers if len(ruling.ranks) > FEW or rank in whole.outliers}
    certain = [replace(ruling, ranks=odd, outliers=odd, apart={}) for ruling in own if (odd := _of(ruling, sure))]
    others = {*whole.outliers} - sure
    doubted = {**whole.apart}
    if whole.is_wide and whole.limit is not None and len({len(ruling.ranks) for ruling in own}) == 1:
        doubted |= dict.fromkeys(others, whole.limit)
        others = set()
    rulings = certain
    at_home = dict[int, float]()
    for ruling in own:
        missed = {} if ruling.limit is None else dict.fromkeys(ruling.outliers, ruling.limit)
        slow = {rank: limit for rank, limit in (missed | {**ruling.apart}).items() if rank not in sure | others}
        if slow:
            peers = tuple(rank for rank in ruling.peers if rank not in sure | others)
            rulings.append(replace(ruling, ranks=_of(ruling, slow), peers=peers, outliers=(), limit=None, apart=slow))
        at_home |= slow
    doubted = {rank: limit for rank, limit in doubted.items() if rank not in sure | others | at_home.keys()}
    if judged := tuple(rank for rank in whole.ranks if rank not in sure | at_home.keys() | doubted.keys()):
        rulings.append(replace(whole, ranks=judged, peers=judged, outliers=tuple(sorted(others)), apart={}))
    if apart := _of(whole, doubted):
        peers = tuple(rank for rank in whole.ranks if rank not in sure | others | at_home.keys())
        rulings.append(replace(whole, ranks=apart, peers=peers, outliers=(), limit=None, apart=doubted))
    return tuple(rulings)


def _of(ruling: FleetRuling, ranks: Collection[int]) -> tuple[int, ...]:
    return tuple(rank for rank in ruling.ranks if rank in ranks)


def compare_rates(
    measurements: Iterable[Measurement],
    *,
    limits: tuple[Limit, ...],
    device_type: str,
    copies: bool = False,
    ceiling: Limit | None = None,
    best_known: float = math.inf,
    hosts: Mapping[int, str] | None = None,
    all_hosts: Collection[str] = (),
    nodes: Mapping[int, int] | None = None,
    share_cores: bool = False,
) -> tuple[FleetRates, ...]:
    """Gather the rates of devices that may be compared: one measurement name, one variant, one device model.

    Of two hosts there may be several comparisons (``judge_fleets``), each of which judges its own ``ranks``.

    Rates that are not positive numbers are left out, and those above ``ceiling`` are kept apart.

    Args:
        measurements: the rates, in the group and alone.
        limits: limits besides that of the fleet.
        device_type: as for ``judge_fleet``.
        copies: as for ``judge_fleet``.
        ceiling: the rate that no device reaches.
        best_known: as for ``judge_fleet``.
        hosts: as for ``judge_fleets`` and ``reference_ranks``; without it each rank counts as one host.
        all_hosts: as for ``judge_fleets``.
        nodes: as for ``reference_ranks``.
        share_cores: as for ``judge_fleet``.
    """
    stages: dict[str, dict[int, Measurement]] = {"measure": {}, "repeat": {}}
    impossible = []
    for measurement in measurements:
        if measurement.rank is None or measurement.stage not in stages or not is_measured(measurement.value):
            continue
        if ceiling is not None and measurement.value > ceiling.value:
            impossible.append(measurement)
        else:
            stages[measurement.stage][measurement.rank] = measurement
    values = {rank: measurement.value for rank, measurement in stages["measure"].items()}
    judge = partial(
        judge_fleet,
        better="high",
        device_type=device_type,
        copies=copies,
        best_known=best_known,
        share_cores=share_cores,
    )
    fleets = judge_fleets(values, judge, hosts, all_hosts=all_hosts)
    return tuple(
        FleetRates(
            first={rank: stages["measure"][rank] for rank in fleet.peers},
            again=stages["repeat"],
            limits=limits,
            fleet=fleet,
            references=reference_ranks(values, fleet, hosts, nodes),
            undoubted=reference_ranks(values, fleet, hosts, nodes, without=fleet.contested),
            effect=fleet_effect(device_type, copies=copies),
            ceiling=ceiling,
            impossible=tuple(impossible) if fleet is fleets[0] else (),
        )
        for fleet in fleets
    )
