"""A rank speaks of one that it was not to meet: that ends no judge, and hides no culprit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from by_day import by_day
from checks.simulated_links import DEAD, SimulatedCluster, slow_node

from seatrial.checks.links import CHECK
from seatrial.checks.links.fabrics import fabrics
from seatrial.checks.links.observations import read_answers, rounds_of
from seatrial.checks.links.params import Params
from seatrial.checks.links.solver.cover import most_rounds
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact, Measurement

_COSTS = ("resent_share", "latency_us")
_MEASUREMENTS = (*_COSTS, "gbps", "group_gbps", "cpu_share", "unknown")
_FACTS = ("failed", "unmet", "unreachable", "late", "asked")


def _without_page(evidence: Evidence, rank: int) -> Evidence:
    return replace(evidence, facts=tuple(fact for fact in evidence.facts if (fact.name, fact.rank) != ("page", rank)))


def _say(evidence: Evidence, name: str, ends: tuple[int, int], stage: str) -> Evidence:
    """Return the evidence with one more word of the first rank about the other one."""
    rank, peer = ends
    if name in _FACTS:
        value = {"peer": peer, "reason": DEAD, "fabric": "nodes"}
        fact = Fact(check="links", name=name, value=value, rank=rank, stage=stage)
        return replace(evidence, facts=(*evidence.facts, fact))
    entry = Measurement(check="links", name=name, value=1.0, unit="1", rank=rank, peer=peer, stage=stage)
    return replace(evidence, measurements=(*evidence.measurements, entry))


def _trial(cluster: SimulatedCluster, evidence: Evidence, names: tuple[str, ...], ends: tuple[int, int]) -> Ruling:
    """Return the ruling on a trial in which each round has these words of the first rank about the other one."""
    last: dict[str, Any] | None = None
    assert CHECK.next_round is not None
    for _ in range(60):
        asked = CHECK.next_round(evidence, Params())
        # The conductor does not ask the same twice.
        if asked is None or asked[1] == last:
            break
        last = asked[1]
        evidence = cluster.answer(evidence, asked[1])
        for name in names:
            evidence = _say(evidence, name, ends, f"round {len(cluster.rounds)}")
    return CHECK.judge(evidence, Params())


def _accused(ruling: Ruling) -> set[str]:
    return {finding.culprit.name for finding in ruling.findings if finding.severity == "fail"}


@pytest.mark.parametrize("name", [*_MEASUREMENTS, *_FACTS])
@pytest.mark.parametrize("nodes", by_day([8, 18]))
def test_words_about_a_node_without_a_page_hide_no_culprit(nodes: int, name: str) -> None:
    cluster = SimulatedCluster(nodes=nodes, slow=slow_node(2, 0.2))
    ruling = _trial(cluster, _without_page(cluster.evidence(), 6), (name,), (4, 6))
    assert _accused(ruling) == {"node n2"}
    assert "an address where rank 6 can be met" in ruling.absent
    told = "what rank 4 says of a transfer of its round" if name in _FACTS else f"a {name} of rank 4"
    assert name in ("late", "asked", "group_gbps") or told in str(ruling.absent)


@pytest.mark.parametrize("name", [*_MEASUREMENTS, *_FACTS])
@pytest.mark.parametrize("peer", [15, 7, 4, 99])
def test_words_about_a_device_not_to_be_met_hide_no_culprit(name: str, peer: int) -> None:
    """Of the same node and without a page, of another node or rail, itself, or nobody."""
    cluster = SimulatedCluster(nodes=4, nproc_per_node=4, device_type="cuda", slow=slow_node(2, 0.2))
    rank = 4 if peer == 4 else 13
    ruling = _trial(cluster, _without_page(cluster.evidence(), 15), (name,), (rank, peer))
    assert _accused(ruling) == {"rank 2 (a device, local rank 2 on node n0)"}


@pytest.mark.parametrize("nodes", [6, 16])
def test_what_one_says_of_another_pair_is_no_broken_link(nodes: int) -> None:
    """In a round of pairs nobody fails with one that it was not to meet."""
    cluster = SimulatedCluster(nodes=nodes, device_type="cuda")
    evidence, asked = cluster.evidence(), CHECK.next_round(cluster.evidence(), Params()) if CHECK.next_round else None
    assert asked is not None
    evidence = cluster.answer(evidence, asked[1])
    met = next(pair for pair in asked[1]["parts"][0]["pairs"] if 0 in pair)
    stranger = next(rank for rank in range(1, nodes) if rank not in met)
    evidence = _say(evidence, "failed", (0, stranger), "round 1")
    ruling = CHECK.judge(evidence, Params())
    assert "what rank 0 says of a transfer of its round" in ruling.absent
    assert DEAD not in str(ruling)


@pytest.mark.parametrize("seed", range(12))
def test_any_words_about_anybody_end_no_judge(seed: int) -> None:
    rng = random.Random(seed)
    nodes, per_node = rng.choice([(4, 4), (3, 3), (5, 1), (9, 1), (18, 1), (20, 1)])
    cluster = SimulatedCluster(
        nodes=nodes,
        nproc_per_node=per_node,
        device_type="cuda",
        slow=slow_node(2, rng.choice([0.0, 0.2])),
        largest_in_time=rng.choice([10_000, 10]),
    )
    ranks = [rank for rank in range(nodes * per_node) if rank != 2]
    rank, peer = rng.sample(ranks, 2)
    names = tuple(rng.sample([*_MEASUREMENTS, *_FACTS], rng.randint(1, 6)))
    ruling = _trial(cluster, _without_page(cluster.evidence(), peer), names, (rank, peer))
    named = {rank for finding in ruling.findings for rank in finding.culprit.ranks}
    assert 2 in named, (names, rank, peer, ruling)


@pytest.mark.parametrize("nodes", [8, 18])
@pytest.mark.parametrize("largest_in_time", [10_000, 1])
def test_a_record_that_lost_the_page_of_one_that_was_met_is_judged(nodes: int, largest_in_time: int) -> None:
    """No group has time for its exchanges, or only costs are left of those that met the lost one."""
    cluster = SimulatedCluster(nodes=nodes, slow=slow_node(2, 0.2), largest_in_time=largest_in_time)
    evidence = cluster.evidence()
    assert CHECK.next_round is not None
    while len(cluster.rounds) < 60 and (asked := CHECK.next_round(evidence, Params())) is not None:
        evidence = cluster.answer(evidence, asked[1])
    evidence = _without_page(evidence, 6)
    left = tuple(entry for entry in evidence.measurements if entry.name in _COSTS or 6 not in (entry.rank, entry.peer))
    evidence = replace(evidence, measurements=left)
    CHECK.next_round(evidence, Params())
    assert "node n2" in {finding.culprit.name for finding in CHECK.judge(evidence, Params()).findings}


@pytest.mark.parametrize("nodes", [5, 16, 17, 18, 33, 34, 70])
def test_all_rounds_count_of_a_search_without_some_members(nodes: int) -> None:
    """The pairs of 16 take more rounds than the groups of 17."""
    evidence = SimulatedCluster(nodes=nodes).evidence()
    (fabric,) = fabrics(evidence, Params())
    asked = [Fact(check="links", name="asked", value={}, rank=0, stage=f"round {number}") for number in range(200)]
    counted = len(rounds_of(replace(read_answers(evidence), rounds={fabric.name: asked}), fabric))
    left = [replace(fabric.topology, members=fabric.topology.members[:size]) for size in range(2, nodes + 1)]
    assert max(map(most_rounds, left)) <= counted < 200
