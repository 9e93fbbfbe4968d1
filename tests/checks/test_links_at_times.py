"""Pairs that fail in some rounds and come through in others: no clean round takes a failure back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from checks.simulated_links import SimulatedCluster

from seatrial.checks.links import CHECK
from seatrial.checks.links.params import Params
from seatrial.checks.links.solver import GroupResult, Observations, PairResult, Topology, next_round, solve
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling

Pair = frozenset[int]


@dataclass(kw_only=True)
class _AtTimes(SimulatedCluster):
    """Ranks of which some pairs fail in some of the rounds that they are measured in."""

    fails: Mapping[Pair, Sequence[bool]]
    """By round; the last one counts from then on."""
    asked: dict[Pair, int] = field(default_factory=dict)

    def answer(self, evidence: Evidence, request: dict[str, Any]) -> Evidence:
        for pair in self.fails:
            groups = [group for part in request["parts"] for group in (part["groups"] or part["pairs"])]
            self.asked[pair] = self.asked.get(pair, 0) + any(pair <= set(group) for group in groups)
        return super().answer(evidence, request)

    def rate(self, source: int, target: int) -> float:
        plan = self.fails.get(frozenset((source, target)), [False])
        number = self.asked.get(frozenset((source, target)), 1)
        return 0.0 if plan[min(number, len(plan)) - 1] else super().rate(source, target)


def _first_pair(nodes: int, device_type: str = "cpu") -> Pair:
    cluster = SimulatedCluster(nodes=nodes, device_type=device_type)
    assert CHECK.next_round is not None
    asked = CHECK.next_round(cluster.evidence(), Params())
    assert asked is not None
    return frozenset(asked[1]["parts"][0]["pairs"][0])


def _failed(ruling: Ruling) -> list[tuple[str, set[int]]]:
    failed = [finding.culprit for finding in ruling.findings if finding.severity == "fail"]
    return [(culprit.kind, {*culprit.ranks}) for culprit in failed]


_SIZES = [2, 3, 4, 5, 8, 16, 17, 24]


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("nodes", _SIZES)
def test_a_pair_that_failed_once_is_an_open_question(nodes: int, device_type: str) -> None:
    pair = _first_pair(nodes, device_type)
    cluster = _AtTimes(nodes=nodes, device_type=device_type, fails={pair: [True, False]})
    ruling = cluster.trial()
    assert ruling.findings == ()
    (absent,) = ruling.absent
    assert f"failed in 1 of {cluster.asked[pair]} rounds (timeout after 10 s)" in absent
    assert 3 <= cluster.asked[pair] <= 4


@pytest.mark.parametrize("nodes", _SIZES)
@pytest.mark.parametrize("plan", [[True, False, True, False], [True, False, True]])
def test_a_pair_that_failed_twice_is_named(nodes: int, plan: list[bool]) -> None:
    pair = _first_pair(nodes)
    cluster = _AtTimes(nodes=nodes, fails={pair: plan})
    ruling = cluster.trial()
    assert _failed(ruling) == [("link", {*pair})]
    assert "failed in 2 of 3 rounds (timeout after 10 s)" in ruling.findings[0].what
    assert "MTU" not in ruling.findings[0].action


@pytest.mark.parametrize("nodes", [17, 24, 64])
def test_one_failure_alone_outweighs_no_clean_rounds(nodes: int) -> None:
    pair = _first_pair(nodes)
    ruling = _AtTimes(nodes=nodes, fails={pair: [False, True, False]}).trial()
    assert ruling.findings == ()
    assert "failed in 1 of" in str(ruling.absent)


@pytest.mark.parametrize("nodes", [8, 17])
def test_a_link_that_breaks_during_the_trial_is_named(nodes: int) -> None:
    pair = _first_pair(nodes)
    cluster = _AtTimes(nodes=nodes, fails={pair: [True, False, True]})
    assert _failed(cluster.trial()) == [("link", {*pair})]
    broken = _AtTimes(nodes=17, fails={_first_pair(17): [False, True]}).trial()
    assert _failed(broken) == [("link", {*_first_pair(17)})]


@pytest.mark.parametrize("nodes", [4, 5, 8, 16])
@pytest.mark.parametrize(("partners", "named"), [(2, []), (3, [("node", {1})])])
def test_a_member_that_failed_once_with_three_is_named(nodes: int, partners: int, named: list[Any]) -> None:
    others = [rank for rank in range(nodes) if rank != 1][:partners]
    ruling = _AtTimes(nodes=nodes, fails={frozenset((1, other)): [True, False] for other in others}).trial()
    assert _failed(ruling) == named
    assert named or str(ruling.absent).count("failed in 1 of") == 2


@pytest.mark.parametrize("nodes", [4, 8, 16])
def test_what_fails_once_everywhere_names_nobody(nodes: int) -> None:
    pairs = [frozenset((a, b)) for a in range(nodes) for b in range(a)]
    ruling = _AtTimes(nodes=nodes, fails={pair: [True, False] for pair in pairs}).trial()
    assert _failed(ruling) == []
    assert "failed in 1 of" in str(ruling.absent)


def test_many_members_that_failed_once_each_have_a_common_cause() -> None:
    """Nine members, each with three others, and no link of them is slow otherwise."""
    ends = [(hub, 9 + 3 * hub + step) for hub in range(9) for step in range(3)]
    clean = tuple(PairResult(source=a, target=b, gbps=9.0) for pair in ends for a, b in (pair, pair[::-1]))
    failed = tuple(PairResult(source=a, target=b, failed="reset") for a, b in ends)
    topology = Topology(members=tuple(range(36)))
    (suspect,) = solve(Observations(pairs=clean + failed), topology).culprits
    assert (suspect.kind, suspect.members, suspect.confidence) == ("fabric", topology.members, "likely")
    assert suspect.why.startswith("27 links between good ends failed once")


def test_devices_of_one_node_that_failed_once_are_an_open_question() -> None:
    cluster = _AtTimes(nodes=1, nproc_per_node=4, device_type="cuda", fails={frozenset((1, 2)): [True, False]})
    ruling = cluster.trial()
    assert _failed(ruling) == []
    assert "failed in 1 of 3 rounds" in str(ruling.absent)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 16])
def test_a_dead_link_needs_no_more_rounds(nodes: int) -> None:
    """The first round of a pair and a second one, alone."""
    pair = _first_pair(nodes)
    cluster = _AtTimes(nodes=nodes, fails={pair: [True]})
    ruling = cluster.trial()
    assert _failed(ruling) == [("link", {*pair})]
    assert "carries nothing" in ruling.findings[0].what
    assert cluster.asked[pair] <= 2


def _both_ways(a: int, b: int, *, failed: bool = False, at_once: int = 1) -> list[PairResult]:
    clean = [PairResult(source=x, target=y, gbps=20.0, at_once=at_once) for x, y in ((a, b), (b, a))]
    return [replace(each, gbps=None, failed="reset") for each in clean] if failed else clean


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
def test_neither_order_nor_contention_takes_a_failure_back(is_first: bool, at_once: int) -> None:
    clean = [result for a in range(4) for b in range(a) for result in _both_ways(a, b)]
    failed = _both_ways(0, 1, failed=True, at_once=at_once)
    pairs = (*failed, *clean) if is_first else (*clean, *failed)
    for number, named in ((1, []), (2, [(0, 1)])):
        seen = Observations(pairs=pairs + (number - 1) * (*failed, *_both_ways(0, 1)))
        diagnosis = solve(seen, Topology(members=tuple(range(4))))
        assert [each.members for each in diagnosis.culprits] == named
        assert {(link.source, link.target) for link in diagnosis.unconfirmed} == (set() if named else {(0, 1), (1, 0)})


def test_a_pair_that_failed_alone_and_passed_in_a_group_is_tried_again() -> None:
    size = 18
    group = GroupResult(members=tuple(range(size)), gbps=20.0, at_once=9)
    plan = [result for a in range(size) for b in range(a) if {a, b} != {3, 5} for result in _both_ways(a, b)]
    seen = Observations(pairs=(*plan, *_both_ways(3, 5, failed=True)), groups=(group,))
    topology = Topology(members=tuple(range(size)))
    assert solve(seen, topology).culprits == ()
    assert {(link.source, link.target) for link in solve(seen, topology).unconfirmed} == {(3, 5), (5, 3)}
    wanted = next_round(seen, topology)
    assert wanted is not None
    assert wanted.pairs == ((3, 5),)
    assert solve(seen.after(tuple(_both_ways(3, 5))), topology).culprits == ()
    again = seen.after(tuple(_both_ways(3, 5, failed=True)))
    assert [each.members for each in solve(again, topology).culprits] == [(3, 5)]
