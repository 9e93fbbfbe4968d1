"""Pairs that did not meet: a third rank may have kept them apart, so nobody is named, and real faults stay found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from checks.simulated_links import DEAD, SimulatedCluster, slow_node

from seatrial.checks.links import CHECK
from seatrial.checks.links.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

Words = Sequence[tuple[str, int]]


@dataclass(kw_only=True)
class _KeptApart(SimulatedCluster):
    """Ranks of which some pairs do not meet in the first rounds that ask for them."""

    said: dict[tuple[int, int], Words]
    """Pair -> the name of the fact of each end that has one."""
    rounds_apart: int = 99
    without_page: Sequence[int] = ()
    false_page: object = None
    """What those say instead; None: nothing."""

    def evidence(self) -> Evidence:
        evidence = super().evidence()
        facts = [fact for fact in evidence.facts if fact.rank not in self.without_page]
        if self.false_page is not None:
            facts += [replace(facts[0], rank=rank, value=self.false_page) for rank in self.without_page]
        return replace(evidence, facts=tuple(facts))

    def answer(self, evidence: Evidence, request: dict[str, Any]) -> Evidence:
        answered = super().answer(evidence, request)
        count = len(evidence.measurements)
        measurements, facts = list(answered.measurements[count:]), list(answered.facts[len(evidence.facts) :])
        stage = f"round {len(self.rounds)}"
        for pair, words in self.said.items():
            if self.asked(pair) > self.rounds_apart or not _asks_for(request, pair):
                continue
            measurements = [entry for entry in measurements if {entry.rank, entry.peer} != {*pair}]
            for name, rank in words:
                value = {"peer": sum(pair) - rank, "reason": DEAD}
                facts.append(Fact(check="links", name=name, value=value, rank=rank, stage=stage))
        return replace(answered, measurements=(*evidence.measurements, *measurements), facts=(*evidence.facts, *facts))

    def asked(self, pair: tuple[int, int]) -> int:
        return sum(_asks_for(request, pair) for request in self.rounds)


def _asks_for(request: dict[str, Any], pair: tuple[int, int]) -> bool:
    return any({*each} == {*pair} for part in request["parts"] for each in part["pairs"])


def _failed(ruling: Ruling) -> list[str]:
    return [finding.culprit.name for finding in ruling.findings if finding.severity == "fail"]


_UNMET: dict[str, Words] = {
    "nobody came": [("unmet", 1), ("unmet", 2)],
    "one came": [("unmet", 1)],
    "one met nobody": [("failed", 1), ("unmet", 2)],
    "one could not connect": [("unreachable", 1)],
    "one could not connect, nobody came to the other": [("unreachable", 2), ("unmet", 1)],
    "one could not connect, the other failed": [("unreachable", 2), ("failed", 1)],
}


@pytest.mark.parametrize("nodes", [3, 4, 8, 17])
@pytest.mark.parametrize("words", _UNMET)
def test_ranks_that_did_not_meet_are_asked_twice_and_accuse_nobody(nodes: int, words: str) -> None:
    pair = _first_pair(nodes)
    cluster = _KeptApart(nodes=nodes, said={pair: _of(pair, _UNMET[words])})
    ruling = cluster.trial()
    assert _failed(ruling) == []
    assert f"whose ends did not meet ({DEAD})" in str(ruling.absent)
    assert cluster.asked(pair) == 2
    assert len(cluster.rounds) < 30


@pytest.mark.parametrize("words", ["nobody came", "one met nobody", "one could not connect"])
@pytest.mark.parametrize("nodes", [2, 3, 8, 17])
def test_ranks_that_meet_later_are_measured(nodes: int, words: str) -> None:
    pair = _first_pair(nodes)
    cluster = _KeptApart(nodes=nodes, said={pair: _of(pair, _UNMET[words])}, rounds_apart=1)
    ruling = cluster.trial()
    assert cluster.asked(pair) == 2
    assert (ruling.findings, ruling.absent) == ((), ())


def test_two_ranks_alone_that_never_meet_are_no_pass() -> None:
    ruling = _KeptApart(nodes=2, said={(0, 1): [("unmet", 0), ("unmet", 1)]}).trial()
    assert ruling.findings == ()
    assert "link n0–n1, whose ends did not meet" in str(ruling.absent)


@pytest.mark.parametrize(
    "words",
    [[("failed", 1), ("failed", 2)], [("failed", 1)], [("unreachable", 1), ("unreachable", 2)]],
    ids=["both failed", "one failed", "no connection at all"],
)
@pytest.mark.parametrize("nodes", [4, 8])
def test_a_link_that_carries_nothing_is_named(nodes: int, words: Words) -> None:
    assert _failed(_KeptApart(nodes=nodes, said={(1, 2): words}).trial()) == ["link n1–n2"]


@pytest.mark.parametrize("nodes", [4, 5, 8, 16, 17])
@pytest.mark.parametrize("left", [0.0, 0.2])
def test_a_fault_is_found_while_others_are_kept_apart(nodes: int, left: float) -> None:
    """The first rank meets nobody, so that there are as many pairs to give up as a liar can have."""
    apart: dict[tuple[int, int], Words] = {(0, rank): [("unmet", rank)] for rank in range(1, nodes)}
    cluster = _KeptApart(nodes=nodes, slow=slow_node(2, left), said=apart)
    ruling = cluster.trial()
    accused = [finding.culprit.ranks for finding in ruling.findings if finding.severity == "fail"]
    assert accused
    assert all(2 in ranks for ranks in accused), ruling.findings
    assert nodes > 16 or "whose ends did not meet" in str(ruling.absent)


@pytest.mark.parametrize("left", [0.0, 0.2])
@pytest.mark.parametrize("nodes", [3, 4])
def test_a_fault_is_found_by_the_only_pair_that_met(nodes: int, left: float) -> None:
    """Where packets are lost some pairs of a node may not meet: then nothing separates it from its links."""
    apart: dict[tuple[int, int], Words] = {(2, rank): [("unmet", rank)] for rank in range(nodes) if rank not in (0, 2)}
    ruling = _KeptApart(nodes=nodes, slow={(0, 2): left, (2, 0): left}, said=apart).trial()
    (finding,) = [finding for finding in ruling.findings if finding.severity == "fail"]
    assert finding.culprit.name == "link n0–n2, endpoints not separable"
    assert "whose ends did not meet" in str(ruling.absent)


_FALSE_PAGES = [
    None,
    5,
    {"host": "10.0.0.1"},
    {"host": "node3", "port": 80},
    {"host": "fe80::1%eth0", "port": 80},
    {"host": "10.0.0.1", "port": 0},
    {"host": "10.0.0.1", "port": True},
    {"host": "10.0.0.1", "port": 65_536},
    {"host": ["10.0.0.1"], "port": 80},
]


@pytest.mark.parametrize("page", _FALSE_PAGES, ids=repr)
@pytest.mark.parametrize("nodes", [2, 4, 18])
def test_a_rank_without_a_page_is_asked_for_nothing(nodes: int, page: object) -> None:
    cluster = _KeptApart(nodes=nodes, slow=slow_node(2, 0.2), said={}, without_page=[1], false_page=page)
    ruling = cluster.trial()
    assert all(1 not in group for each in cluster.rounds for part in each["parts"] for group in _groups(part))
    assert _failed(ruling) == (["node n2"] if nodes > 2 else [])
    assert "an address where rank 1 can be met" in str(ruling.absent)


def test_a_request_says_where_its_ranks_can_be_met() -> None:
    cluster = SimulatedCluster(nodes=4)
    assert CHECK.next_round is not None
    asked = CHECK.next_round(cluster.evidence(), Params())
    assert asked is not None
    assert asked[1]["addresses"] == {str(rank): ["10.0.0.1", 1 + rank] for rank in range(4)}


def _groups(part: dict[str, Any]) -> list[list[int]]:
    return [*part["pairs"], *part["groups"]]


def _first_pair(nodes: int) -> tuple[int, int]:
    """Return a pair of the first round: of many nodes not all pairs are measured alone."""
    cluster = SimulatedCluster(nodes=nodes)
    assert CHECK.next_round is not None
    asked = CHECK.next_round(cluster.evidence(), Params())
    assert asked is not None
    a, b = asked[1]["parts"][0]["pairs"][-1]
    return a, b


def _of(pair: tuple[int, int], words: Words) -> Words:
    """Return the words of ranks 1 and 2 as those of a pair."""
    return [(name, pair[rank - 1]) for name, rank in words]


@dataclass(kw_only=True)
class _NotJoined(SimulatedCluster):
    """Members of a group that could not join, with the name of the fact of each."""

    said: dict[int, str]

    def answer(self, evidence: Evidence, request: dict[str, Any]) -> Evidence:
        answered = super().answer(evidence, request)
        if not any({*group} >= {*range(18)} for part in request["parts"] for group in part["groups"]):
            return answered
        stage = f"round {len(self.rounds)}"
        facts = tuple(
            Fact(check="links", name=name, value={"reason": DEAD}, rank=rank, stage=stage)
            for rank, name in self.said.items()
        )
        measurements = tuple(entry for entry in answered.measurements if entry.name != "group_gbps")
        return replace(answered, measurements=measurements, facts=(*answered.facts, *facts))


@pytest.mark.parametrize("unmet", [[3], list(range(18))])
@pytest.mark.parametrize("others", ["failed", ""])
def test_a_group_of_which_some_did_not_meet_names_nobody(unmet: list[int], others: str) -> None:
    """One page that is kept busy keeps most members from joining."""
    said = dict.fromkeys(range(18), others) if others else {}
    ruling = _NotJoined(nodes=18, said=said | dict.fromkeys(unmet, "unmet")).trial()
    assert ruling.findings == ()
    assert "stopped (rank" in str(ruling.absent)
    assert others or f"rank {unmet[0]} says that it did not meet all others: {DEAD}" in str(ruling.absent)
