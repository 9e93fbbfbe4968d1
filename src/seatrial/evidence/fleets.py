"""Comparisons of a fleet: of two hosts, either of which may lie, the ranks of each with one another first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.statistics import (
    FEW,
    FleetRates,
    FleetRuling,
    fleet_effect,
    is_measured,
    judge_fleet,
    reference_ranks,
)


def judge_fleets(
    values: Mapping[int, float], judge: Callable[..., FleetRuling], hosts: Mapping[int, str] | None = None
) -> tuple[FleetRuling, ...]:
    """Compare every rank with its fleet, of two hosts with the other ranks of its host first.

    Of two hosts either one moves the median and MAD of both as it likes. So:

    - An outlier among four or more ranks of its host stays one. Among two or three it is one only if it is one of all,
      too, since one of them that is fast makes the others look slow; else it lies ``apart`` from the others there.
    - Where values lie far apart and no host has more ranks than the other one, none is an outlier by the word of the
      other host, and lies ``apart``.

    Each rank is judged in one of the rulings.

    Args:
        values: rate or time by rank.
        judge: ``judge_fleet`` with all its arguments but these.
        hosts: as for ``judge_fleet``; without it each rank counts as one host.
    """
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
    fleets = judge_fleets(values, judge, hosts)
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
