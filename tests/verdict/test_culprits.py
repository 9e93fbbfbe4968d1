"""The culprit solver: each kind of fault by name, from the first round to the diagnosis."""

from __future__ import annotations

from dataclasses import replace

import pytest
from verdict.simulated_fabric import HEALTHY_GBPS, SimulatedFabric

from seatrial.verdict.culprits import (
    Alone,
    Diagnosis,
    Digest,
    GroupResult,
    Limits,
    Named,
    Observations,
    PairResult,
    Phase,
    Topology,
    solve,
)

SIZES = [3, 4, 5, 8, 15, 16, 17, 33, 64]


def fleet(size: int, **more: object) -> Topology:
    return replace(Topology(members=tuple(range(size))), **more)  # type: ignore[arg-type]


def named(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...], str]]:
    return {(each.kind, each.members, each.direction) for each in diagnosis.culprits}


def only(diagnosis: Diagnosis) -> Named:
    (one,) = diagnosis.culprits
    return one


@pytest.mark.parametrize("size", [2, *SIZES])
def test_nothing_wrong_names_nobody(size: int) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size)).trial(Limits(gbps=HEALTHY_GBPS * 0.9, origin="user"))
    assert not any((diagnosis.culprits, diagnosis.unconfirmed, diagnosis.remains))
    assert diagnosis.unjudged == ""


@pytest.mark.parametrize("left", [0.8, 0.5, 0.0])
@pytest.mark.parametrize("size", SIZES)
def test_one_bad_endpoint_is_named(size: int, left: float) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size), sends={1: left}, receives={1: left}).trial()
    one = only(diagnosis)
    assert (one.kind, one.members, one.direction, one.confidence) == ("node", (1,), "both", "confirmed")
    assert one.ratio == pytest.approx(left)
    assert {cell.at_once for cell in one.evidence} == {1}
    assert not diagnosis.remains
    assert not diagnosis.unconfirmed


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["send", "receive"])
def test_an_endpoint_that_is_slow_in_one_direction_only(size: int, way: str) -> None:
    sends, receives = ({2: 0.6}, {}) if way == "send" else ({}, {2: 0.6})
    diagnosis = SimulatedFabric(topology=fleet(size), sends=sends, receives=receives).trial()
    assert named(diagnosis) == {("node", (2,), way)}


@pytest.mark.parametrize("size", [8, 11, 16, 17, 40])
@pytest.mark.parametrize("hints", [True, False])
def test_several_bad_endpoints_of_different_degree(size: int, hints: bool) -> None:
    bad = {0: 0.5, 3: 0.0, 5: 0.79}
    diagnosis = SimulatedFabric(topology=fleet(size), sends=bad, receives=bad, hints=hints).trial()
    assert named(diagnosis) == {("node", (member,), "both") for member in bad}


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("left", [0.8, 0.0])
@pytest.mark.parametrize("size", SIZES)
def test_a_bad_link_between_two_good_nodes(size: int, left: float, hints: bool) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size), links={(0, 2): left, (2, 0): left}, hints=hints).trial()
    assert named(diagnosis) == {("link", (0, 2), "both")}
    assert only(diagnosis).inseparable == ()
    assert not diagnosis.remains


@pytest.mark.parametrize("size", [4, 16, 33])
def test_a_link_that_is_bad_in_one_direction_only(size: int) -> None:
    there = SimulatedFabric(topology=fleet(size), links={(0, 3): 0.5}).trial()
    back = SimulatedFabric(topology=fleet(size), links={(3, 0): 0.5}).trial()
    assert (named(there), named(back)) == ({("link", (0, 3), "send")}, {("link", (0, 3), "receive")})


@pytest.mark.parametrize("hints", [True, False])
def test_two_dead_links_and_a_dead_node_in_one_group(hints: bool) -> None:
    links = {(1, 8): 0.0, (8, 1): 0.0, (4, 20): 0.0, (20, 4): 0.0}
    fabric = SimulatedFabric(topology=fleet(33), links=links, sends={6: 0.0}, receives={6: 0.0}, hints=hints)
    diagnosis = fabric.trial()
    assert named(diagnosis) == {("link", (1, 8), "both"), ("link", (4, 20), "both"), ("node", (6,), "both")}
    assert not diagnosis.remains


@pytest.mark.parametrize("size", [4, 8, 16, 24])
def test_a_switch_whose_links_to_the_other_half_are_slow(size: int) -> None:
    half = frozenset(range(size // 2))
    labels = {member: "leaf-a" if member in half else "leaf-b" for member in range(size)}
    for topology in (fleet(size), fleet(size, switch=labels)):
        one = only(SimulatedFabric(topology=topology, between=(half, 0.5)).trial())
        assert (one.kind, one.members) == ("switch", topology.members)
        assert one.name == ("leaf-a–leaf-b" if topology.switch else "")


def test_a_switch_that_is_slow_towards_all_others_is_named_itself() -> None:
    labels = {member: f"leaf-{member // 4}" for member in range(12)}
    one = only(SimulatedFabric(topology=fleet(12, switch=labels), between=(frozenset(range(4, 8)), 0.4)).trial())
    assert (one.kind, one.name, one.members) == ("switch", "leaf-1", (4, 5, 6, 7))


def test_a_switch_that_slows_all_its_members_is_not_separable_from_them() -> None:
    slow = dict.fromkeys(range(4), 0.5)
    topology = fleet(12, switch={member: f"leaf-{member // 4}" for member in range(12)})
    one = only(SimulatedFabric(topology=topology, sends=slow, receives=slow).trial())
    assert (one.kind, one.name, one.inseparable) == ("switch", "leaf-0", (0, 1, 2, 3))


def test_a_rail_whose_pairs_are_all_slow() -> None:
    topology = fleet(16, kind="device", rail={member: f"rail-{member % 4}" for member in range(16)})
    links = {(a, b): 0.6 for a in range(1, 16, 4) for b in range(1, 16, 4) if a != b}
    fabric = SimulatedFabric(topology=topology, links=links)
    one = only(fabric.trial())
    assert (one.kind, one.name, one.members) == ("rail", "rail-1", (1, 5, 9, 13))
    assert all(a % 4 == b % 4 for asked in fabric.rounds for a, b in asked.pairs)


def test_two_alone_are_not_separable() -> None:
    one = only(SimulatedFabric(topology=fleet(2), links={(0, 1): 0.5}).trial())
    assert (one.kind, one.members, one.direction, one.inseparable) == ("link", (0, 1), "send", (0, 1))
    dead = only(SimulatedFabric(topology=fleet(2), sends={0: 0.0, 1: 0.0}).trial())
    assert (dead.kind, dead.inseparable, dead.confidence) == ("link", (0, 1), "likely")


def test_two_alone_are_separated_by_what_each_reached_alone() -> None:
    pairs = tuple(PairResult(source=a, target=b, gbps=5.0) for a, b in [(0, 1), (1, 0)])
    seen = Observations(
        pairs=pairs, alone=(Alone(member=0, passed=True), Alone(member=1, passed=False, detail="copies"))
    )
    one = only(solve(seen, fleet(2)))
    assert (one.kind, one.members, one.details) == ("node", (1,), ("copies",))


def test_two_alone_and_equally_slow_have_no_peer_to_compare_with() -> None:
    fabric = SimulatedFabric(topology=fleet(2), links={(0, 1): 0.5, (1, 0): 0.5})
    without = fabric.trial()
    assert without.culprits == ()
    assert "no other peer to compare with" in without.unjudged
    with_limit = SimulatedFabric(topology=fleet(2), links=fabric.links).trial(
        Limits(gbps=15.0, origin="baseline b.json")
    )
    assert (only(with_limit).kind, only(with_limit).inseparable) == ("link", (0, 1))
    assert "10 GB/s of 15 (baseline b.json)" in only(with_limit).why


@pytest.mark.parametrize("size", [3, 16, 17])
def test_everything_slow_alike_is_the_fabric_where_a_limit_says_so(size: int) -> None:
    slow = dict.fromkeys(range(size), 0.5)
    assert SimulatedFabric(topology=fleet(size), sends=slow).trial().culprits == ()
    one = only(SimulatedFabric(topology=fleet(size), sends=slow).trial(Limits(gbps=18.0, origin="attainable")))
    assert one.kind == "fabric"
    assert one.ratio == pytest.approx(10 / 18)


@pytest.mark.parametrize("size", [17, 32])
def test_a_group_that_fails_while_all_its_pairs_pass_is_a_finding(size: int) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size), fails_over=size // 2 + 1).trial()
    assert {each.kind for each in diagnosis.culprits} == {"fabric"}
    assert diagnosis.culprits or diagnosis.remains
    assert tuple(range(size)) in {each.members for each in diagnosis.culprits}


def test_shared_uplinks_make_no_culprits() -> None:
    labels = {member: f"leaf-{member // 8}" for member in range(32)}
    for size in (16, 32):
        topology = fleet(size, switch={m: labels[m] for m in range(size)})
        fabric = SimulatedFabric(topology=topology, uplink=2.0)
        diagnosis = fabric.trial()
        assert not any((diagnosis.culprits, diagnosis.unconfirmed))


def test_shared_uplinks_hide_no_culprit() -> None:
    topology = fleet(16, switch={member: f"leaf-{member // 2}" for member in range(16)})
    fabric = SimulatedFabric(topology=topology, uplink=1.0, sends={5: 0.7}, receives={5: 0.7})
    assert named(fabric.trial()) == {("node", (5,), "both")}


@pytest.mark.parametrize("size", [8, 16, 33])
def test_an_interrupted_trial_says_what_is_known_and_invents_nothing(size: int) -> None:
    full = SimulatedFabric(topology=fleet(size), sends={1: 0.5}, receives={1: 0.5})
    full.trial()
    for most_rounds in range(1, len(full.rounds)):
        cut = SimulatedFabric(topology=fleet(size), sends={1: 0.5}, receives={1: 0.5}).trial(most_rounds=most_rounds)
        assert named(cut) <= {("node", (1,), "both")}
        assert cut.culprits or cut.unconfirmed or cut.remains


def test_without_any_observation_nothing_is_said() -> None:
    assert solve(Observations(), fleet(4)) == Diagnosis()


def test_most_are_slower_than_a_few_is_told_of_nobody_in_particular() -> None:
    slow = dict.fromkeys(range(9), 0.5)
    one = only(SimulatedFabric(topology=fleet(16), sends=slow, receives=slow).trial())
    assert (one.kind, one.members) == ("fabric", tuple(range(16)))


def test_a_latency_is_judged_against_other_latencies() -> None:
    seen = [
        PairResult(source=a, target=b, latency_s=30e-6 if 2 in (a, b) else 10e-6)
        for a in range(5)
        for b in range(5)
        if a != b
    ]
    assert named(solve(Observations(pairs=tuple(seen)), fleet(5))) == {("node", (2,), "both")}


def test_a_failure_that_did_not_repeat_alone_blames_nobody() -> None:
    pairs = [PairResult(source=a, target=b, gbps=20.0, at_once=2) for a in range(4) for b in range(4) if a != b]
    pairs += [PairResult(source=0, target=1, failed="reset", at_once=2), PairResult(source=0, target=1, gbps=20.0)]
    assert solve(Observations(pairs=tuple(pairs)), fleet(4)).culprits == ()


def test_a_result_of_an_unknown_member_is_refused() -> None:
    with pytest.raises(ValueError, match="9"):
        solve(Observations(pairs=(PairResult(source=0, target=9, gbps=1.0),)), fleet(4))


def test_the_minority_of_a_vote_on_bits_is_named_rank_0_included() -> None:
    digests = tuple(Digest(member=member, what="step 3", value="x" if member else "y") for member in range(4))
    assert named(solve(Observations(digests=digests), fleet(4, kind="rank"))) == {("rank", (0,), "both")}


def test_of_two_voters_the_one_that_does_not_repeat_itself_is_named() -> None:
    digests = [Digest(member=member, what="step 3", value=f"v{member}") for member in (0, 1)]
    first = solve(Observations(digests=tuple(digests)), fleet(2))
    assert first.culprits == ()
    assert "not separable" in first.remains[0]
    digests += [
        Digest(member=0, what="step 3", value="v0", attempt=1),
        Digest(member=1, what="step 3", value="w", attempt=1),
    ]
    assert only(solve(Observations(digests=tuple(digests)), fleet(2))).members == (1,)


def test_only_equals_vote_on_bits() -> None:
    digests = tuple(
        Digest(member=member, what="step 3", value=model, comparable=model)
        for member, model in enumerate(["a", "a", "a", "b", "b"])
    )
    assert solve(Observations(digests=digests), fleet(5)).culprits == ()


def test_for_whom_the_others_wait_is_named_and_nobody_who_waits() -> None:
    phases = (Phase(member=0, passed=4), *(Phase(member=m, passed=5, waits_for=(m - 1,)) for m in (1, 2, 3)))
    assert named(solve(Observations(phases=phases), fleet(4))) == {("node", (0,), "both")}


def test_two_that_wait_for_each_other_are_a_link_whose_ends_are_not_separable() -> None:
    phases = (
        Phase(member=0, passed=3, waits_for=(1,)),
        Phase(member=1, passed=3, waits_for=(0,)),
        Phase(member=2, passed=4, waits_for=(1,)),
    )
    one = only(solve(Observations(phases=phases), fleet(3)))
    assert (one.kind, one.members, one.inseparable) == ("link", (0, 1), (0, 1))


def test_all_stuck_together_names_nobody() -> None:
    phases = tuple(Phase(member=m, passed=3, waits_for=tuple(o for o in range(4) if o != m)) for m in range(4))
    diagnosis = solve(Observations(phases=phases), fleet(4))
    assert diagnosis.culprits == ()
    assert "fabric" in diagnosis.remains[0]


def test_a_group_that_failed_and_was_not_traced_is_told() -> None:
    seen = Observations(groups=(GroupResult(members=(0, 1, 2), failed="crash"),))
    diagnosis = solve(seen, fleet(3))
    assert diagnosis.culprits == ()
    assert "a group of 3 failed (crash)" in diagnosis.remains[0]


def both_ways(a: int, b: int, gbps: float, *, at_once: int = 1) -> list[PairResult]:
    return [PairResult(source=x, target=y, gbps=gbps, at_once=at_once) for x, y in ((a, b), (b, a))]


def test_one_good_partner_is_not_enough_to_name_a_member() -> None:
    """It may be the link. With a second partner it is the member."""
    clean = [*both_ways(0, 1, 20.0), *both_ways(0, 2, 20.0), *both_ways(1, 2, 20.0)]
    one = solve(Observations(pairs=(*clean, *both_ways(0, 3, 5.0))), fleet(4))
    assert one.culprits == ()
    assert one.unconfirmed
    two = solve(Observations(pairs=(*clean, *both_ways(0, 3, 5.0), *both_ways(1, 3, 5.0))), fleet(4))
    assert named(two) == {("node", (3,), "both")}


def test_what_a_group_lists_confirms_nothing_even_where_it_had_the_fabric_for_itself() -> None:
    clean = [result for a in range(4) for b in range(a) for result in both_ways(a, b, 20.0, at_once=2)]
    slow = tuple(PairResult(source=2, target=other, gbps=5.0) for other in (0, 1))
    group = GroupResult(members=(0, 1, 2), gbps=20.0, slow=slow)
    diagnosis = solve(Observations(pairs=tuple(clean), groups=(group,)), fleet(4))
    assert diagnosis.culprits == ()


def test_where_pairs_slowed_one_another_down_and_nobody_measured_again_it_is_told() -> None:
    busy = [result for a in range(6) for b in range(a) for result in both_ways(a, b, 10.0, at_once=3)]
    diagnosis = solve(Observations(pairs=(*busy, *both_ways(0, 1, 20.0), *both_ways(2, 3, 20.0))), fleet(6))
    assert any("slowed one another down" in text for text in diagnosis.remains)
