"""One node lies about its own links: no honest node is named for it, and none that is slow passes because of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import pytest
from by_day import by_day
from checks.simulated_links import DEAD, SimulatedCluster, slow_node

from seatrial.checks.links import CHECK
from seatrial.checks.links.observations import read_answers
from seatrial.checks.links.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.util.text import named_ranks

_Lie = Callable[[dict[str, Any], list[Measurement], list[Fact]], tuple[list[Measurement], list[Fact]]]


@dataclass(kw_only=True)
class _WithALiar(SimulatedCluster):
    """Ranks, of which ``lie`` changes what they report in a round: (request, measurements, facts) of that round."""

    lie: _Lie

    def answer(self, evidence: Evidence, request: dict[str, Any]) -> Evidence:
        honest = super().answer(evidence, request)
        count, facts = len(evidence.measurements), len(evidence.facts)
        told = self.lie(request, list(honest.measurements[count:]), list(honest.facts[facts:]))
        return replace(honest, measurements=(*evidence.measurements, *told[0]), facts=(*evidence.facts, *told[1]))


def _failed(ruling: Ruling) -> list[str]:
    return [finding.culprit.name for finding in ruling.findings if finding.severity == "fail"]


@pytest.mark.parametrize("nodes", [4, 5, 8, 16])
@pytest.mark.parametrize("broken", [1, 2])
def test_a_latency_that_one_end_tells_is_no_standard(nodes: int, broken: int) -> None:
    """The liar breaks some pairs, whose other ends report a failure, and tells a latency of its own there."""

    def lie(
        request: dict[str, Any], measurements: list[Measurement], facts: list[Fact]
    ) -> tuple[list[Measurement], list[Fact]]:
        stage = measurements[0].stage
        for peer in range(1, broken + 1):
            of_pair = [entry for entry in measurements if {entry.rank, entry.peer} == {0, peer}]
            if not of_pair:
                continue
            measurements = [entry for entry in measurements if entry not in of_pair]
            pattern = of_pair[0]
            measurements.append(replace(pattern, name="latency_us", unit="us", value=0.02, rank=0, peer=peer))
            measurements.append(replace(pattern, name="gbps", unit="GB/s", value=10.0, rank=0, peer=peer))
            facts.append(Fact(check="links", name="failed", value={"peer": 0, "reason": DEAD}, rank=peer, stage=stage))
        return measurements, facts

    ruling = _WithALiar(nodes=nodes, device_type="cuda", lie=lie).trial()
    accused = [finding.culprit.ranks for finding in ruling.findings if finding.severity == "fail"]
    assert all(0 in ranks for ranks in accused), ruling.findings
    assert accused or ruling.absent


def _pair_within(nodes: int, slow: dict[int, float]) -> dict[tuple[int | None, int | None], float]:
    """Return the link between the first and last of four devices of each node, where it is not as fast as all."""
    return {
        (node * 4 + a, node * 4 + b): left for node, left in slow.items() for a, b in ((0, 3), (3, 0)) if node < nodes
    }


def _repeats(rank_pairs: set[tuple[int, int]], value: float, *, first: bool) -> _Lie:
    def lie(
        request: dict[str, Any], measurements: list[Measurement], facts: list[Fact]
    ) -> tuple[list[Measurement], list[Fact]]:
        mine = [entry for entry in measurements if entry.name == "gbps" and (entry.rank, entry.peer) in rank_pairs]
        more = [replace(entry, value=value) for entry in mine] * 100
        return ([*more, *measurements] if first else [*measurements, *more]), facts

    return lie


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_rank_that_repeats_its_rate_has_one_vote_about_the_wiring(nodes: int) -> None:
    """All other nodes have a pair that is slower by design; the last one says a hundred times that it is fast."""
    last = (nodes - 1) * 4
    lie = _repeats({(last, last + 3), (last + 3, last)}, 10.0, first=False)
    slow = _pair_within(nodes, dict.fromkeys(range(nodes - 1), 0.5))
    ruling = _WithALiar(nodes=nodes, nproc_per_node=4, device_type="cuda", slow=slow, lie=lie).trial()
    assert _failed(ruling) == []
    assert "one gbps of rank" in str(ruling.absent)


@pytest.mark.parametrize("by_device", [False, True])
def test_the_only_other_node_makes_no_link_within_a_node_a_fault(by_device: bool) -> None:
    """Both have a pair that is slow by design; the other one says that it is fast there."""
    slow: dict[tuple[int | None, int | None], float] = {
        (a, b): 0.5 for low in range(3 if by_device else 1) for a, b in ((low, 3), (3, low))
    }
    ruling = SimulatedCluster(nodes=2, nproc_per_node=4, device_type="cuda", slow=slow).trial()
    assert _failed(ruling) == []
    assert "only one other node has it fast" in str(ruling.absent)


@pytest.mark.parametrize(("nodes", "fails"), by_day([(3, False), (4, True), (5, True), (8, True)], 0, 1))
def test_one_other_node_does_not_excuse_a_slow_link_within_a_node(nodes: int, fails: bool) -> None:
    last = (nodes - 1) * 4
    honest = SimulatedCluster(nodes=nodes, nproc_per_node=4, device_type="cuda", slow=_pair_within(nodes, {0: 0.4}))
    assert _failed(honest.trial()) == ["link rank 0–rank 3 on node n0"]
    once = SimulatedCluster(
        nodes=nodes, nproc_per_node=4, device_type="cuda", slow=_pair_within(nodes, {0: 0.4, nodes - 1: 0.4})
    ).trial()
    lie = _repeats({(last, last + 3), (last + 3, last)}, 4.0, first=True)
    often = _WithALiar(
        nodes=nodes, nproc_per_node=4, device_type="cuda", slow=_pair_within(nodes, {0: 0.4}), lie=lie
    ).trial()
    for ruling in (once, often):
        assert ("link rank 0–rank 3 on node n0" in _failed(ruling)) == fails
        # Of three nodes one says that the link is clean there, and one that it is not: that is no PASS.
        assert fails or "half of the other nodes" in str(ruling.absent)


@pytest.mark.parametrize("nodes", by_day([17, 32, 64]))
@pytest.mark.parametrize("silent", [1, 2, 8, 9, 16, 17])
@pytest.mark.parametrize("says_late", [False, True])
@pytest.mark.parametrize("rounds", [1, 99])
def test_a_group_that_stops_without_a_report_names_nobody(
    nodes: int, silent: int, says_late: bool, rounds: int
) -> None:
    """Any member can set the key by which a group stops: before all others, or when all but its victim are done."""
    seen, asked = list[int](), list[str]()

    def lie(
        request: dict[str, Any], measurements: list[Measurement], facts: list[Fact]
    ) -> tuple[list[Measurement], list[Fact]]:
        groups = [group for part in request["parts"] for group in part["groups"] if 3 in group]
        if not groups or len(seen) >= rounds:
            return measurements, facts
        seen.append(1)
        stopped = [3, *(rank for rank in groups[0] if rank != 3)][:silent]
        asked.append(named_ranks(sorted(stopped)))
        late = Fact(check="links", name="late", value={"fabric": "nodes", "exchanges": [1, 2]}, rank=3)
        if says_late:
            facts.append(replace(late, stage=measurements[0].stage))
        return [entry for entry in measurements if entry.name != "group_gbps" or entry.rank not in stopped], facts

    ruling = _WithALiar(nodes=nodes, lie=lie).trial()
    assert asked
    assert ruling.findings == ()
    assert f"(no rate came from {asked[0]}, and nobody reported a failure)" in str(ruling.absent)


def _stopped(words: Collection[tuple[int, int | None]], rounds: int, seen: list[int]) -> _Lie:
    """Groups of all these members stop: nobody has a rate, and each rank reports a failure with the peer beside it."""
    members = {rank for ends in words for rank in ends if rank is not None and rank < 999}

    def lie(
        request: dict[str, Any], measurements: list[Measurement], facts: list[Fact]
    ) -> tuple[list[Measurement], list[Fact]]:
        for group in (group for part in request["parts"] for group in part["groups"] if members <= {*group}):
            if len(seen) < rounds:
                seen.append(1)
                measurements = [entry for entry in measurements if entry.peer is not None or entry.rank not in group]
                facts += [
                    replace(
                        facts[0], name="failed", value={"reason": DEAD} | ({"peer": peer} if peer else {}), rank=rank
                    )
                    for rank, peer in words
                ]
        return measurements, facts

    return lie


@pytest.mark.parametrize("nodes", by_day([18, 64]))
@pytest.mark.parametrize("rounds", [1, 99])
@pytest.mark.parametrize("words", [[(1, None)], [(1, 1)], [(1, 999)], [(1, None), (3, None)], [(1, None), (3, 5)]])
def test_a_member_that_could_not_join_a_group_is_no_culprit(
    nodes: int, rounds: int, words: list[tuple[int, int | None]]
) -> None:
    """Another member may have given it an address where nobody answers, or closed its connection."""
    seen = list[int]()
    ruling = _WithALiar(nodes=nodes, lie=_stopped(words, rounds, seen)).trial()
    assert seen
    assert ruling.findings == ()
    assert f"rank 1 says that it could not join, which most do not say: {DEAD}" in str(ruling.absent)


@pytest.mark.parametrize(("number", "named"), [(9, []), (10, ["fabric"]), (18, ["fabric"])])
def test_a_group_that_most_members_could_not_join_is_a_fault(number: int, named: list[str]) -> None:
    ruling = _WithALiar(nodes=18, lie=_stopped([(rank, None) for rank in range(number)], 2, [])).trial()
    assert [finding.culprit.kind for finding in ruling.findings if finding.severity == "fail"] == named
    assert named or "which most do not say" in str(ruling.absent)


def test_a_rank_that_repeats_its_failures_keeps_nobody_busy() -> None:
    """The conductor reads all answers before each round."""
    seen = list[int]()
    words: list[tuple[int, int | None]] = [(1, 3), (1, 5), (1, None), (1, 999)] * 10_000
    # Python has one hash for all of these.
    words += [(1, 999 + number * (2**61 - 1)) for number in range(10_000)]
    cluster = _WithALiar(nodes=17, lie=_stopped(words, 1, seen))
    evidence = cluster.evidence()
    while not seen:
        asked = CHECK.next_round(evidence, Params()) if CHECK.next_round else None
        assert asked is not None
        evidence = cluster.answer(evidence, asked[1])
    answers = read_answers(evidence)
    assert sum(map(len, answers.failed.values())) == 3
    began = time.perf_counter()
    assert CHECK.judge(evidence, Params()).findings == ()
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize("nodes", by_day([17, 32]))
@pytest.mark.parametrize("rounds", [1, 99])
@pytest.mark.parametrize(
    "words",
    [[(5, 3)], [(3, 5), (5, 7)], [(5, 3), (7, 3)], [(7, 5), (5, 3), (3, 9)], [(5, 3), (7, 3), (9, 3), (3, 1)]],
)
def test_what_one_end_alone_says_of_a_group_accuses_nobody(
    nodes: int, rounds: int, words: list[tuple[int, int | None]]
) -> None:
    """A member can let another one begin too early at the store, or stop its partner: then it waits in vain."""
    seen = list[int]()
    ruling = _WithALiar(nodes=nodes, lie=_stopped(words, rounds, seen)).trial()
    assert seen
    assert ruling.findings == ()
    rank, peer = min(words)
    assert f"rank {rank} says of rank {peer} what that one does not: {DEAD}" in str(ruling.absent)


@pytest.mark.parametrize("nodes", by_day([17, 32]))
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([], "link n3–n5, endpoints not separable"),
        ([(7, 3), (9, 5)], "link n3–n5, endpoints not separable"),
        ([(3, 7), (7, 3)], "node n3"),
    ],
)
def test_a_pair_of_which_both_ends_say_that_it_broke_is_found(
    nodes: int, more: list[tuple[int, int | None]], named: str
) -> None:
    """It breaks in groups only."""
    ruling = _WithALiar(nodes=nodes, lie=_stopped([(3, 5), (5, 3), *more], 99, [])).trial()
    assert _failed(ruling) == [named]


@pytest.mark.parametrize("nodes", by_day([17, 32, 64]))
@pytest.mark.parametrize(("number", "is_pair"), [(1, True), (2, True), (1, False)])
def test_a_group_that_passes_again_accuses_nobody(nodes: int, number: int, is_pair: bool) -> None:
    """A member that pauses fails its group, and the half that it is in, as long as the pause lasts."""
    words = [(3, 5), (5, 3)] if is_pair else [(rank, None) for rank in range(nodes)]
    ruling = _WithALiar(nodes=nodes, lie=_stopped(words, number, [])).trial()
    assert ruling.findings == ()
    assert str(ruling.absent).count("and passed when it was repeated") == 1
    assert len(ruling.absent) == 1


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("lie", ["keeps its rates back", "claims far more"])
def test_of_three_one_that_lies_hides_no_slow_one(device_type: str, lie: str) -> None:
    left = 0.3 if device_type == "cpu" else 0.6

    def tell(
        request: dict[str, Any], measurements: list[Measurement], facts: list[Fact]
    ) -> tuple[list[Measurement], list[Fact]]:
        mine = [entry for entry in measurements if (entry.name, entry.rank) == ("gbps", 2)]
        others = [entry for entry in measurements if entry not in mine]
        return others + ([replace(entry, value=100.0) for entry in mine] if lie == "claims far more" else []), facts

    ruling = _WithALiar(nodes=3, device_type=device_type, slow=slow_node(0, left), lie=tell).trial()
    assert ruling.absent
    assert "rank 2 to rank 0" in str(ruling.absent) or "which of three is right" in str(ruling.absent)
    # With a limit of the user nobody is compared.
    limited = _WithALiar(nodes=3, device_type=device_type, slow=slow_node(0, left), lie=tell).trial(Params(min_gbps=8))
    assert limited.absent or "n0" in str(_failed(limited))


@pytest.mark.parametrize("nodes", [5, 8, 12])
@pytest.mark.parametrize("left", [0.0, 0.1])
@pytest.mark.parametrize("peers", ["beyond", "all"])
def test_one_that_is_slower_than_the_switch_before_it(nodes: int, left: float, peers: str) -> None:
    """It slows transfers down, or lets none through, with every second node: then no cut holds all slow links."""
    behind, liar = {0, 1, 2}, 2
    slow: dict[tuple[int | None, int | None], float] = {
        (a, b): 0.3 for a in range(nodes) for b in range(nodes) if (a in behind) != (b in behind)
    }
    for peer in range(1 if peers == "all" else 3, nodes, 2):
        slow |= {(liar, peer): left, (peer, liar): left}
    ruling = SimulatedCluster(nodes=nodes, device_type="cuda", slow=slow).trial()
    accused = [finding.culprit for finding in ruling.findings if finding.severity == "fail"]
    assert all(culprit.kind == "fabric" or liar in culprit.ranks for culprit in accused), ruling.findings
    (switch,) = [set(culprit.ranks) for culprit in accused if culprit.kind == "fabric"]
    # Of two that are left on one side neither is more likely than the other.
    assert switch - {liar} in (behind - {liar}, set(range(3, nodes)), set(range(nodes)) - {liar})


@pytest.mark.parametrize("nodes", [5, 8, 12])
def test_one_that_claims_to_send_fast_through_a_slow_switch(nodes: int) -> None:
    """The switch is slow one way, from the liar's side: what it claims joins the two sides."""
    behind, liar = {0, 1, 2}, 2
    slow: dict[tuple[int | None, int | None], float] = {(a, b): 0.5 for a in behind - {liar} for b in range(3, nodes)}
    ruling = SimulatedCluster(nodes=nodes, device_type="cuda", slow=slow).trial()
    (switch,) = [finding.culprit for finding in ruling.findings if finding.severity == "fail"]
    assert switch.kind == "fabric"
    assert behind - {liar} <= set(switch.ranks)


def test_the_reason_of_a_failure_stands_in_quotes() -> None:
    words = "10 GB/s). node n3 is broken (" + "x" * 1_000
    ruling = SimulatedCluster(nodes=4, slow=slow_node(2, 0.0), dead_reason=words).trial()
    (finding,) = ruling.findings
    assert finding.culprit.name == "node n2"
    assert 'carries nothing ("10 GB/s). node n3 is broken (' in finding.what
    assert len(finding.what) < 400
