"""As many device models, values or slow ranks as there are ranks: each judge ends in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
from checks.simulated_hosts import host_fleet, inventory_fleet
from checks.simulated_links import SimulatedCluster
from checks.simulated_network import network_evidence
from checks.simulated_training import SMOKE, trained
from checks.test_check_compute import evidence as computed
from checks.test_check_memory import ONE
from checks.test_check_memory import fleet as copied
from checks.test_collectives_judge import SMALL, healthy
from checks.test_judge_held_up import counted
from checks.test_storage_judge import NAMED
from checks.test_storage_judge import fleet as stored
from fuzz.harness import watched

from seatrial.checks import registry
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact, Measurement

_MANY = 8_000
_SLOW_ALONE = {rank: 2.0 if rank % 2 else 20.0 for rank in range(_MANY)}
_ALL_ALONE = dict.fromkeys(range(_MANY), 0.5)


def _each_its_device(evidence: Evidence) -> Evidence:
    ranks = {rank: replace(record, device=f"model {rank}") for rank, record in evidence.ranks.items()}
    return replace(evidence, ranks=ranks)


def _on_one_node(evidence: Evidence) -> Evidence:
    ranks = {rank: replace(record, node="one", node_rank=0) for rank, record in evidence.ranks.items()}
    return replace(evidence, ranks=ranks)


def _inventory(key: str, value: Callable[[int], Any]) -> Evidence:
    return inventory_fleet(_MANY, 1, lambda node, local_rank, facts: facts.update({key: value(node)}))


def _hosts(key: str, value: Callable[[int], Any]) -> Evidence:
    return host_fleet(_MANY, 1, lambda node, local_rank, facts: facts.update({key: value(node)}))


def _slow() -> Evidence:
    """A sixth of the ranks is slow, alone too, and each has counters of its kernel."""
    slow = dict.fromkeys(range(_MANY // 6), 0.05)
    evidence = trained(_MANY, compute_s=slow, alone_s=dict.fromkeys(range(_MANY), 0.01) | slow)
    return replace(evidence, facts=(*evidence.facts, *counted(*({},) * _MANY).facts[-_MANY:]))


def _wrong() -> Evidence:
    """Each rank read something else back than it wrote to its own folder."""
    evidence = stored([[1.0]] * _MANY, own=range(_MANY))
    measurements = (replace(each, value=1) if each.name == "wrong_bytes" else each for each in evidence.measurements)
    return replace(evidence, measurements=tuple(measurements))


def _views() -> Evidence:
    """Each rank sees those before it: one range each, and together a square of ranks."""
    return stored([[1.0]] * _MANY, views={rank: [[0, rank]] for rank in range(_MANY)})


def _slow_again() -> Evidence:
    """A third of the ranks is slow with all ranks and alone, and each other one measured again, too."""
    slow = dict.fromkeys(range(0, _MANY, 3), 0.05)
    return trained(_MANY, compute_s=slow, alone_s=dict.fromkeys(range(_MANY), 0.01) | slow)


def _links(
    rates: Mapping[tuple[int, int], float | None],
    *,
    copies: int = 1,
    at_once: int = 1,
    groups: Sequence[Sequence[Sequence[int]]] = (),
    joined: Iterable[int] = (),
) -> Evidence:
    """A rank on each node. Of each directed link its rate (None: it failed) as if one round had measured them all;
    before it rounds of groups, of which some ranks say how fast they were."""
    size = 1 + max(end for key in (*rates, *(group for some in groups for group in some)) for end in key)
    empty = SimulatedCluster(nodes=size).evidence()
    asked = {"fabric": "nodes", "turns": 1, "repeats": 15, "list_below_gbps": 9.0, "unmet": 0}
    parts: list[dict[str, Any]] = [{**asked, "at_once": 2, "pairs": [], "groups": some} for some in groups]
    parts += [{**asked, "at_once": at_once, "pairs": [[0, 1]], "groups": []}]
    stages = {f"round {number}": {"parts": [part] * copies} for number, part in enumerate(parts)}
    last = f"round {len(groups)}"
    began = [
        Fact(check="links", name="asked", value={"fabric": "nodes"}, rank=first, stage=stage)
        for stage, request in stages.items()
        for first in [min(rank for group in request["parts"][0]["groups"] or [[0]] for rank in group)]
    ]
    failed = [
        Fact(check="links", name="failed", value={"peer": peer, "reason": "timeout after 10 s"}, rank=rank, stage=last)
        for ends, rate in rates.items()
        if rate is None
        for rank, peer in (ends, ends[::-1])
    ]
    measure = partial(Measurement, check="links", unit="GB/s")
    measured = [
        measure(name="gbps", value=rate, rank=rank, peer=peer, stage=last)
        for (rank, peer), rate in rates.items()
        if rate is not None
    ]
    measured += [
        measure(name="group_gbps", value=10.0, rank=rank, stage=stage) for rank in joined for stage in [*stages][:-1]
    ]
    return replace(
        empty,
        facts=(*empty.facts, *began, *failed),
        measurements=tuple(measured),
        rounds=stages,
    )


def _both_ways(ends: Iterable[tuple[int, int]], rate: float | None) -> dict[tuple[int, int], float | None]:
    return {pair: rate for a, b in ends for pair in ((a, b), (b, a))}


def _within(members: Sequence[int], rate: float | None) -> dict[tuple[int, int], float | None]:
    return _both_ways(combinations(members, 2), rate)


_FAST = _within(range(60), 10.0)
_STAR = [(0, peer) for peer in range(60, _MANY)]
_HUBS = [(hub, hub + step) for hub in range(5, _MANY // 4, 5) for step in range(1, 5)]
"""Four links of each fifth member."""
_CLEAN = _both_ways([(rank, rank + 5) for rank in range(_MANY // 4)], 10.0)
_IN_PAIRS = [[[rank, rank + 1] for rank in range(shift, _MANY - 1, 2)] for shift in range(2) for _ in range(10)]

_LINKS: Mapping[str, Callable[[], Evidence]] = {
    "parts": lambda: _links(_within(range(40), 10.0), copies=3_000),
    "all slow": lambda: _links(_FAST | _within(range(60, 200), 1.0)),
    "all failed": lambda: _links(_FAST | _within(range(60, 200), None)),
    "star": lambda: _links(_FAST | _both_ways(_STAR, 1.0)),
    "star of a slow one": lambda: _links(_FAST | _both_ways([(60, peer) for _, peer in _STAR[1:]], 1.0)),
    "star, at once": lambda: _links(_FAST | _both_ways(_STAR, 1.0), at_once=9),
    "half of a star": lambda: _links(_FAST | {pair: 10.0 if pair[1] % 2 else 1.0 for pair in _STAR}),
    "star that failed": lambda: _links(_FAST | _both_ways(_STAR, None)),
    "star of many rates": lambda: _links(_FAST | {pair: 10.0 / (1 + pair[1] % 99) for pair in _STAR}),
    "between good ends": lambda: _links(_CLEAN | _both_ways(_HUBS, 1.0)),
    "failed between good ends": lambda: _links(_CLEAN | _both_ways(_HUBS, None)),
    "two halves": lambda: _links(
        _within(range(80), 10.0) | _within(range(80, 160), 10.0) | _both_ways(product(range(80), range(80, 160)), 1.0)
    ),
    "failed groups": lambda: _links(_FAST | _both_ways(_HUBS, None), groups=_IN_PAIRS),
    "groups": lambda: _links(_FAST | _both_ways(_HUBS, 1.0), groups=_IN_PAIRS, joined=range(_MANY)),
    "clean pairs of failed groups": lambda: _links(
        _within(range(8), 10.0) | _both_ways([(a, a + 1) for a in range(_MANY - 1)], 10.0), groups=_IN_PAIRS
    ),
    "groups in one another": lambda: _links(
        _FAST, groups=[[[*range(2 + number, _MANY // 8)]] for number in range(_MANY // 16)]
    ),
}


def _sizes() -> Evidence:
    """Each of 530 nodes lost large packets from all others, of 64 sizes; the number of the last node is high."""
    last, high = 529, (1 << 14) - 2
    made = network_evidence(last + 1)
    failed = [
        {"role": "data", "how": "large from", "passes_bytes": 1_000 + size, "nodes": [[0, high]]} for size in range(64)
    ]
    facts = [
        replace(
            fact,
            node_rank=high if fact.node_rank == last else fact.node_rank,
            value=fact.value | {"failed": failed} if fact.name == "connections" else fact.value,
        )
        for fact in made.facts
    ]
    nodes = {high if node == last else node: name for node, name in made.nodes.items()}
    return replace(made, facts=tuple(facts), nodes=nodes)


def _untried() -> Evidence:
    """Each of 3,000 nodes has tried no other; the first one to say so has the highest number that a node may have."""
    high, made = (1 << 17) - 1, network_evidence(3_000)
    facts = [
        replace(
            fact,
            node_rank=fact.node_rank or high,
            value=fact.value | {"untried": [[0, high]]} if fact.name == "connections" else fact.value,
        )
        for fact in made.facts
    ]
    return replace(made, facts=tuple(facts), nodes={node or high: name for node, name in made.nodes.items()})


_STREAMS: Mapping[str, tuple[str, Any, Callable[[], Evidence]]] = {
    "training, models": ("training", SMOKE, lambda: _each_its_device(trained(_MANY))),
    "training, slow": ("training", SMOKE, _slow),
    "training, quotas": (
        "training",
        SMOKE,
        lambda: _on_one_node(counted(*({"throttled_s": 6.0 + rank / _MANY} for rank in range(_MANY)))),
    ),
    "training, bits": (
        "training",
        SMOKE,
        lambda: trained(_MANY, batches={rank: (f"{rank}", f"{rank + rank % 3 // 2}") for rank in range(_MANY)}),
    ),
    "training, groups": ("training", SMOKE, lambda: trained(_MANY, alike={rank: f"{rank}" for rank in range(_MANY)})),
    "inventory, models": ("inventory", None, lambda: _inventory("device", lambda rank: f"model {rank}")),
    "inventory, drivers": ("inventory", None, lambda: _inventory("driver", lambda rank: f"{rank}")),
    "inventory, devices": ("inventory", None, lambda: _inventory("visible", lambda rank: rank % 128)),
    "memory, models": ("memory", ONE, lambda: _each_its_device(copied([20.0] * _MANY, _ALL_ALONE, shares=_ALL_ALONE))),
    "memory, wrong": ("memory", ONE, lambda: copied([20.0] * _MANY, wrong=dict.fromkeys(range(_MANY), 1))),
    "compute, models": ("compute", None, lambda: _each_its_device(computed([700.0] * _MANY))),
    "collectives, silent": ("collectives", SMALL, lambda: replace(healthy(_MANY), measurements=())),
    "host, mtus": ("host", None, lambda: _hosts("mtu", lambda rank: rank if rank % 3 else 9000)),
    "host, names": ("host", None, lambda: _hosts("name", lambda rank: {"addresses": [f"a{rank}"], "own": None})),
    "storage, kinds": (
        "storage",
        NAMED,
        lambda: stored([[1.0]] * _MANY, kinds={node: f"kind {node}" for node in range(_MANY)}),
    ),
    "storage, wrong": ("storage", NAMED, _wrong),
    "storage, views": ("storage", replace(NAMED, shared="yes"), _views),
    "storage, views of own folders": ("storage", replace(NAMED, shared="no"), _views),
    "training, slow again": ("training", SMOKE, _slow_again),
    "network, sizes": ("network", None, _sizes),
    "network, untried": ("network", None, _untried),
    **{f"links, {name}": ("links", None, make) for name, make in _LINKS.items()},
    "memory, slow again": ("memory", ONE, lambda: copied([20.0, 2.0] * (_MANY // 2), _SLOW_ALONE, shares={})),
}


@pytest.mark.parametrize("name", _STREAMS)
def test_many_kinds_are_judged_in_bounded_time(name: str) -> None:
    check, params, make = _STREAMS[name]
    evidence, loaded = make(), registry.load(check)
    params = params or loaded.params()
    with watched(name):
        if loaded.next_round is not None:
            loaded.next_round(evidence, params)
        ruling = loaded.judge(evidence, params)
    assert ruling.findings or ruling.judged or ruling.absent or ruling.unjudged
