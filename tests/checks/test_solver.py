"""Tests of the culprit solver: each kind of fault, from the first round to the diagnosis."""

from __future__ import annotations

import pytest
from by_day import by_day
from checks.simulated_fabric import HEALTHY_GBPS, SimulatedFabric

from seatrial.checks.links.solver import (
    Diagnosis,
    GroupResult,
    LinkLimits,
    Observations,
    PairResult,
    Suspect,
    Topology,
    solve,
)

SIZES = [3, 4, 5, 8, 15, 16, 17, 33, 64]


def fleet(size: int) -> Topology:
    return Topology(members=tuple(range(size)))


def named(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...], str]]:
    return {(each.kind, each.members, each.direction) for each in diagnosis.culprits}


def only(diagnosis: Diagnosis) -> Suspect:
    (one,) = diagnosis.culprits
    return one


@pytest.mark.parametrize("size", [2, *SIZES])
def test_nothing_wrong_names_nobody(size: int) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size)).trial(LinkLimits(gbps=HEALTHY_GBPS * 0.9, origin="user"))
    assert not any((diagnosis.culprits, diagnosis.unconfirmed, diagnosis.remains))


@pytest.mark.parametrize("left", [0.8, 0.5, 0.0])
@pytest.mark.parametrize("size", SIZES)
def test_one_bad_endpoint_is_named(size: int, left: float) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size), sends={1: left}, receives={1: left}).trial()
    one = only(diagnosis)
    assert (one.kind, one.members, one.direction, one.confidence) == ("node", (1,), "both", "confirmed")
    assert one.ratio == pytest.approx(left)
    assert {link.at_once for link in one.evidence} == {1}
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
    one = only(SimulatedFabric(topology=fleet(size), between=(half, 0.5)).trial())
    assert (one.kind, one.members) == ("switch", tuple(range(size)))


@pytest.mark.parametrize("is_slow_inside", [False, True])
def test_a_member_paired_only_across_its_slow_switch_belongs_to_it(is_slow_inside: bool) -> None:
    """Members 0 to 2 of 22 share a switch. Member 2 has been paired with members beyond it only."""
    inside, everybody = {0, 1, 2}, range(22)

    def ratio(source: int, target: int) -> float:
        across = (source in inside) != (target in inside)
        return 0.2 if across or (is_slow_inside and 2 in (source, target)) else 1.0

    def result(source: int, target: int, at_once: int = 1) -> PairResult:
        return PairResult(
            source=source, target=target, gbps=HEALTHY_GBPS * ratio(source, target), at_once=at_once, repeats=20
        )

    slow = [result(a, b, 22) for a in everybody for b in everybody if a != b and ratio(a, b) < 1]
    group = GroupResult(members=tuple(everybody), gbps=HEALTHY_GBPS, slow=tuple(slow), at_once=22, repeats=4)
    paired = [(0, 1), (0, 5), (1, 6), (2, 7), (2, 8), (5, 6), (7, 8)]
    pairs = tuple(result(*ends) for a, b in paired for ends in ((a, b), (b, a)))
    diagnosis = solve(Observations(pairs=pairs, groups=(group,), rounds=2), fleet(22))
    named_as = {(each.kind, each.members) for each in diagnosis.culprits}
    assert named_as == ({("node", (2,)), ("switch", (0, 1))} if is_slow_inside else {("switch", (0, 1, 2))})


def test_a_switch_that_is_slow_towards_all_others_is_named_itself() -> None:
    one = only(SimulatedFabric(topology=fleet(12), between=(frozenset(range(4, 8)), 0.4)).trial())
    assert (one.kind, one.members) == ("switch", (4, 5, 6, 7))


def test_two_alone_are_not_separable() -> None:
    one = only(SimulatedFabric(topology=fleet(2), links={(0, 1): 0.5}).trial())
    assert (one.kind, one.members, one.direction, one.inseparable) == ("link", (0, 1), "send", (0, 1))
    dead = only(SimulatedFabric(topology=fleet(2), sends={0: 0.0, 1: 0.0}).trial())
    assert (dead.kind, dead.inseparable, dead.confidence) == ("link", (0, 1), "likely")


def test_two_alone_and_equally_slow_have_no_peer_to_compare_with() -> None:
    fabric = SimulatedFabric(topology=fleet(2), links={(0, 1): 0.5, (1, 0): 0.5})
    assert fabric.trial().culprits == ()
    with_limit = SimulatedFabric(topology=fleet(2), links=fabric.links).trial(
        LinkLimits(gbps=15.0, origin="baseline b.json")
    )
    assert (only(with_limit).kind, only(with_limit).inseparable) == ("link", (0, 1))
    assert "10 GB/s of 15 (baseline b.json)" in only(with_limit).why


@pytest.mark.parametrize("size", [3, 16, 17])
def test_everything_slow_alike_is_the_fabric_with_a_limit(size: int) -> None:
    slow = dict.fromkeys(range(size), 0.5)
    assert SimulatedFabric(topology=fleet(size), sends=slow).trial().culprits == ()
    one = only(SimulatedFabric(topology=fleet(size), sends=slow).trial(LinkLimits(gbps=18.0, origin="attainable")))
    assert one.kind == "fabric"
    assert one.ratio == pytest.approx(10 / 18)


@pytest.mark.parametrize("size", [17, 32])
def test_a_group_that_fails_while_all_its_pairs_pass_is_a_finding(size: int) -> None:
    diagnosis = SimulatedFabric(topology=fleet(size), fails_over=size // 2 + 1).trial()
    assert {each.kind for each in diagnosis.culprits} == {"fabric"}
    assert tuple(range(size)) in {each.members for each in diagnosis.culprits}


def test_shared_uplinks_make_no_culprits() -> None:
    for size in (16, 32):
        switch = {member: f"leaf-{member // 8}" for member in range(size)}
        diagnosis = SimulatedFabric(topology=fleet(size), switch=switch, uplink=2.0).trial()
        assert not any((diagnosis.culprits, diagnosis.unconfirmed))


def test_shared_uplinks_hide_no_culprit() -> None:
    switch = {member: f"leaf-{member // 2}" for member in range(16)}
    fabric = SimulatedFabric(topology=fleet(16), switch=switch, uplink=1.0, sends={5: 0.7}, receives={5: 0.7})
    assert named(fabric.trial()) == {("node", (5,), "both")}


@pytest.mark.parametrize("size", [8, 16, 33])
def test_an_interrupted_trial_names_nobody_else(size: int) -> None:
    full = SimulatedFabric(topology=fleet(size), sends={1: 0.5}, receives={1: 0.5})
    full.trial()
    for most_rounds in range(1, len(full.rounds)):
        cut = SimulatedFabric(topology=fleet(size), sends={1: 0.5}, receives={1: 0.5}).trial(most_rounds=most_rounds)
        assert named(cut) <= {("node", (1,), "both")}
        assert cut.culprits or cut.unconfirmed or cut.remains


def test_without_any_observation_nothing_is_said() -> None:
    assert solve(Observations(), fleet(4)) == Diagnosis()


def test_most_slower_than_a_few_names_the_fabric() -> None:
    slow = dict.fromkeys(range(9), 0.5)
    one = only(SimulatedFabric(topology=fleet(16), sends=slow, receives=slow).trial())
    assert (one.kind, one.members) == ("fabric", tuple(range(16)))


def test_a_cost_is_judged_against_other_costs() -> None:
    seen = [
        PairResult(source=a, target=b, cost=30e-6 if 2 in (a, b) else 10e-6)
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


def test_a_failed_group_that_was_not_traced_is_an_open_question() -> None:
    seen = Observations(groups=(GroupResult(members=(0, 1, 2), failed="crash"),))
    diagnosis = solve(seen, fleet(3))
    assert diagnosis.culprits == ()
    assert "a group of 3 failed (crash)" in diagnosis.remains[0]


@pytest.mark.parametrize(
    ("forth", "back", "is_named"),
    [
        ((4.72, 3.03), (1.57, 2.18), False),  # a machine under load
        ((4.0, 4.0), (1.0, 2.1), False),
        ((4.72, 3.03), (1.0, 1.2), True),
        ((4.72, 3.03), (0.4, 0.4), True),
    ],
)
def test_a_link_is_slow_only_beyond_what_its_rounds_differ(
    forth: tuple[float, ...], back: tuple[float, ...], is_named: bool
) -> None:
    pairs = [PairResult(source=0, target=1, gbps=gbps, repeats=45) for gbps in forth]
    pairs += [PairResult(source=1, target=0, gbps=gbps, repeats=45) for gbps in back]
    diagnosis = solve(Observations(pairs=tuple(pairs)), fleet(2), LinkLimits(effect=0.5))
    assert named(diagnosis) == ({("link", (0, 1), "receive")} if is_named else set())
    assert bool(diagnosis.unconfirmed) is not is_named


def test_what_had_the_cpu_counts_and_a_failure_always_does() -> None:
    starved = PairResult(source=1, target=0, gbps=1.0, starved=True)
    free = [PairResult(source=a, target=b, gbps=4.0) for a, b in ((0, 1), (1, 0))]
    assert solve(Observations(pairs=(starved, starved, *free)), fleet(2)).culprits == ()
    broken = PairResult(source=1, target=0, failed="reset")
    assert only(solve(Observations(pairs=(starved, broken, broken, free[0])), fleet(2))).ratio == 0


def both_ways(a: int, b: int, gbps: float, *, at_once: int = 1) -> list[PairResult]:
    return [PairResult(source=x, target=y, gbps=gbps, at_once=at_once) for x, y in ((a, b), (b, a))]


def test_one_good_partner_is_not_enough_to_name_a_member() -> None:
    """With one partner the link may be at fault; with a second partner it is the member."""
    clean = [*both_ways(0, 1, 20.0), *both_ways(0, 2, 20.0), *both_ways(1, 2, 20.0)]
    one = solve(Observations(pairs=(*clean, *both_ways(0, 3, 5.0))), fleet(4))
    assert one.culprits == ()
    assert one.unconfirmed
    two = solve(Observations(pairs=(*clean, *both_ways(0, 3, 5.0), *both_ways(1, 3, 5.0))), fleet(4))
    assert named(two) == {("node", (3,), "both")}


def test_what_a_group_lists_confirms_nothing() -> None:
    clean = [result for a in range(4) for b in range(a) for result in both_ways(a, b, 20.0, at_once=2)]
    slow = tuple(PairResult(source=2, target=other, gbps=5.0) for other in (0, 1))
    group = GroupResult(members=(0, 1, 2), gbps=20.0, slow=slow)
    diagnosis = solve(Observations(pairs=tuple(clean), groups=(group,)), fleet(4))
    assert diagnosis.culprits == ()


def test_contention_without_a_repetition_is_an_open_question() -> None:
    busy = [result for a in range(6) for b in range(a) for result in both_ways(a, b, 10.0, at_once=3)]
    diagnosis = solve(Observations(pairs=(*busy, *both_ways(0, 1, 20.0), *both_ways(2, 3, 20.0))), fleet(6))
    assert any("slowed one another down" in text for text in diagnosis.remains)


@pytest.mark.parametrize("ends", by_day([((0, 231),), ((7, 8),), ((30, 187),), ((115, 116),), ((60, 61),)]))
def test_an_unlisted_dead_link_of_232_is_named_after_ten_rounds(ends: tuple[int, int]) -> None:
    links = {ends: 0.0, ends[::-1]: 0.0}
    diagnosis = SimulatedFabric(topology=fleet(232), links=links, hints=False).trial(most_rounds=10)
    assert named(diagnosis) == {("link", ends, "both")}


def test_a_dead_link_is_named_behind_narrow_uplinks_too() -> None:
    """Many simultaneous pairs are slow there: measuring all that are left at once would raise too many questions."""
    switch = {member: f"s{member // 16}" for member in range(62)}
    links = {(7, 40): 0.0, (40, 7): 0.0}
    fabric = SimulatedFabric(topology=fleet(62), switch=switch, uplink=4, links=links, hints=False)
    diagnosis = fabric.trial()
    assert named(diagnosis) == {("link", (7, 40), "both")}
    assert not diagnosis.unconfirmed
