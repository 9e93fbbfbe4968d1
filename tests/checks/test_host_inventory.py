"""The ranks that share a machine, and the vote of the machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatrial.checks.shared.host_inventory import HostInventory, culprit, fleet_of, listed, machines, split
from seatrial.evidence.evidence import Evidence, RankRecord


def evidence(*places: tuple[str, int]) -> Evidence:
    """One rank for each (host name, agent); local ranks as a conductor of one-rank agents has them: all 0."""
    ranks = {
        rank: RankRecord(rank=rank, node=node, node_rank=agent, local_rank=0, device="x", kind="x")
        for rank, (node, agent) in enumerate(places)
    }
    return Evidence(ranks=ranks, asked=tuple(ranks), measurements=(), facts=())


def found(of: Evidence, places: dict[int, Any]) -> list[tuple[str, tuple[int, ...]]]:
    return [(machine.name, machine.ranks) for machine in machines(of, places)]


def on(identity: str | None) -> dict[str, Any]:
    return {"machine": identity}


def test_the_ranks_of_an_agent_are_on_one_machine() -> None:
    of = evidence(("a", 0), ("a", 0), ("b", 1), ("b", 1))
    assert found(of, {}) == [("a", (0, 1)), ("b", (2, 3))]
    assert found(of, {0: on("x"), 3: on("y")}) == [("a", (0, 1)), ("b", (2, 3))]


def test_agents_that_report_one_machine_are_on_one() -> None:
    of = evidence(("a", 0), ("a", 1), ("b", 2), ("b", 3))
    places = {0: on("x"), 1: on("x"), 2: on("y"), 3: on("y")}
    assert found(of, places) == [("a", (0, 1)), ("b", (2, 3))]
    assert found(of, {**places, 1: {}}) == [("a", (0, 1)), ("b", (2, 3))], "a dead rank is with those of its name"


def test_hosts_of_one_name_are_told_apart_by_number() -> None:
    of = evidence(("a", 0), ("a", 1), ("a", 1))
    assert found(of, {0: on("x"), 1: on("y")}) == [("a (node 0)", (0,)), ("a (node 1)", (1, 2))]
    assert found(of, {0: on(None)}) == [("a (node 0)", (0,)), ("a (node 1)", (1, 2))]


def test_a_host_that_claims_to_be_another_machine_hides_nothing_of_it() -> None:
    """It copies name and machine of node 1. Where it connects from, it cannot copy."""
    of = evidence(("b", 0), ("b", 1), ("b", 2))
    places = {0: on("y"), 1: on("y"), 2: on("y")}
    assert found(of, places) == [("b", (0, 1, 2))]
    told = replace(of, places_of_nodes={0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.2"})
    for claims in (places, {1: on("y")}, {**places, 0: {}}):
        assert found(told, claims) == [("b (node 0)", (0,)), ("b (node 1)", (1, 2))]


def test_a_host_that_claims_to_be_many_machines_has_one_vote() -> None:
    """Under torchrun each rank has an agent: three of them claim a machine each, and would outvote the two others."""
    of = evidence(("liar", 0), ("liar", 1), ("liar", 2), ("b", 3), ("c", 4))
    joined = replace(of, places_of_nodes={0: "10.0.0.9", 1: "10.0.0.9", 2: "10.0.0.9", 3: "10.0.0.3", 4: "10.0.0.4"})
    values = dict(enumerate(("odd", "odd", "odd", "usual", "usual")))
    for known, majority in ((of, "odd"), (joined, "usual")):
        fleet = machines(known, {rank: on(f"m{rank}") for rank in range(5)})
        assert len(fleet) == 5
        difference = split(values, fleet)
        assert difference is not None
        assert difference.majority == majority


def test_a_thousand_agents_without_a_report() -> None:
    of = evidence(*((f"n{node}", node) for node in range(1000)))
    assert len(machines(of, {})) == 1000


A, B, C = (HostInventory(name=name, ranks=ranks) for name, ranks in (("a", (0, 1)), ("b", (2, 3)), ("c", (4,))))


@pytest.mark.parametrize(
    ("values", "majority", "odd"),
    [
        ({0: "x", 1: "x", 2: "x", 3: "x", 4: "x"}, None, None),
        ({}, None, None),
        ({0: "x"}, None, None),
        ({0: "x", 1: "x", 2: "y", 3: "y", 4: "x"}, "x", {"y": (2, 3)}),
        ({0: "x", 1: "x", 2: "y", 3: "y"}, None, {"x": (0, 1), "y": (2, 3)}),
        ({0: "x", 1: "y"}, None, {"x": (0,), "y": (1,)}),
        ({0: "x", 1: "y", 4: "x"}, "x", {"y": (1,)}),
        ({0: "x", 2: "y", 3: "y", 4: "x"}, "x", {"y": (2, 3)}),
        ({0: "x", 1: "x", 2: "y", 3: "y", 4: "z"}, None, {"x": (0, 1), "y": (2, 3), "z": (4,)}),
    ],
)
def test_each_machine_has_one_vote(values: dict[int, str], majority: str | None, odd: Any) -> None:
    ruling = split(values, (A, B, C))
    if odd is None:
        assert ruling is None
        return
    assert ruling is not None
    assert (ruling.majority, ruling.odd) == (majority, odd)


def test_a_culprit_is_a_machine_a_device_or_several_ranks() -> None:
    of = evidence(("a", 0), ("a", 0), ("b", 1), ("b", 1), ("c", 2))
    kinds = {ranks: culprit(of, ranks, fleet_of((A, B, C))) for ranks in ((0, 1), (4,), (1,), (1, 2), (0, 1, 4))}
    assert [each.kind for each in kinds.values()] == ["node", "node", "device", "device", "node"]
    assert kinds[0, 1].name == "node a"
    assert kinds[1,].name == "rank 1 (x, local rank 0 on node a)"
    assert kinds[1, 2].name == "ranks 1 and 2 on nodes a and b"
    assert kinds[0, 1, 4].name == "nodes a and c"


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "node 0"), (2, "nodes 0 and 1"), (4, "nodes 0, 1, 2 and 3"), (5, "nodes 0, 1, 2, 3 and 1 more")],
)
def test_long_lists_are_cut(count: int, text: str) -> None:
    assert listed("node", list(range(count))) == text
