"""Property tests of the culprit solver: any observations, and any fabric with a minority of faults."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from checks.simulated_fabric import SimulatedFabric
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.checks.links.solver import Diagnosis, Observations, PairResult, Topology, next_round, solve
from seatrial.checks.links.solver.cover import cover_groups, most_rounds
from seatrial.util.round_robin import round_robin

RATES = st.sampled_from([20.0, 20.0, 20.0, 19.0, 17.0, 10.0, 0.0])


@st.composite
def observations(draw: st.DrawFn) -> tuple[int, Observations]:
    """Draw results of pairs of up to six members, contended or not; some pairs are never measured."""
    size = draw(st.integers(2, 6))
    pairs = []
    for a in range(size):
        for b in range(size):
            if a != b and draw(st.integers(0, 5)):
                rate = draw(RATES)
                at_once = draw(st.sampled_from([1, 1, 3]))
                pairs.append(
                    PairResult(source=a, target=b, gbps=rate, at_once=at_once)
                    if rate
                    else PairResult(source=a, target=b, failed="reset", at_once=at_once)
                )
    return size, Observations(pairs=tuple(pairs))


def names(diagnosis: Diagnosis, relabel: dict[int, int] | None = None) -> set[tuple[Any, ...]]:
    """Return the culprits under other numbers. The ends of a link are sorted, so its direction may be reversed."""
    found = set()
    for each in diagnosis.culprits:
        members = tuple((relabel or {}).get(member, member) for member in each.members)
        direction: str = each.direction
        if each.kind == "link" and members[0] > members[1] and direction != "both":
            direction = "receive" if direction == "send" else "send"
        found.add((each.kind, tuple(sorted(members)), direction, each.confidence))
    return found


@given(observations(), st.data())
def test_other_numbers_name_the_same_members(case: tuple[int, Observations], data: st.DataObject) -> None:
    size, seen = case
    order = data.draw(st.permutations(range(size)))
    new = dict(zip(range(size), order, strict=True))
    moved = tuple(
        PairResult(source=new[p.source], target=new[p.target], gbps=p.gbps, failed=p.failed, at_once=p.at_once)
        for p in seen.pairs
    )
    topology = Topology(members=tuple(range(size)))
    assert names(solve(Observations(pairs=moved), topology)) == names(solve(seen, topology), new)


@given(observations(), st.data())
def test_the_order_of_observations_means_nothing(case: tuple[int, Observations], data: st.DataObject) -> None:
    size, seen = case
    topology = Topology(members=tuple(range(size)))
    mixed = Observations(pairs=tuple(data.draw(st.permutations(seen.pairs))))
    assert solve(mixed, topology) == solve(seen, topology)
    assert next_round(mixed, topology) == next_round(seen, topology)


@given(observations())
def test_a_member_clean_with_a_good_one_needs_several_slow_links(
    case: tuple[int, Observations],
) -> None:
    """A member that is clean with a good one needs three slow links, two of them with members not at fault."""
    size, seen = case
    diagnosis = solve(seen, Topology(members=tuple(range(size))))
    assert diagnosis.limit is None or diagnosis.limit > 0
    limit = diagnosis.limit or 0.0
    rates = {(p.source, p.target): p.gbps or 0.0 for p in seen.pairs}
    slow_uncontended = {
        frozenset((p.source, p.target)) for p in seen.pairs if p.at_once == 1 and (p.gbps or 0.0) < limit
    }
    members = {each.members[0] for each in diagnosis.culprits if each.kind == "node"}
    for each in diagnosis.culprits:
        if each.kind != "node":
            continue
        (member,) = each.members
        for other in set(range(size)) - {member}:
            if {(member, other), (other, member)} <= rates.keys():
                both = min(rates[member, other], rates[other, member]) >= limit
                elsewhere = [rate for key, rate in rates.items() if other in key and member not in key]
                if both and elsewhere and min(elsewhere) >= limit:
                    assert each.confidence == "likely"
                    slow_with = {end for pair in slow_uncontended if member in pair for end in pair} - {member}
                    assert len(slow_with) >= 3
                    assert len(slow_with - members) >= 2


@settings(max_examples=20)
@given(st.integers(4, 14), st.integers(1, 4), st.data())
def test_three_slow_links_of_one_member_name_the_member(size: int, number: int, data: st.DataObject) -> None:
    """The NIC of one member is bad towards some members, and clean with at least one."""
    free = data.draw(st.permutations(range(size)))
    member, others = free[0], free[1 : 1 + min(number, size - 2)]
    left = data.draw(st.sampled_from([0.0, 0.4, 0.8]))
    links = {(member, other): left for other in others}
    diagnosis = SimulatedFabric(topology=Topology(members=tuple(range(size))), links=links).trial()
    if len(others) < 3:
        assert {each.kind for each in diagnosis.culprits} == {"link"}
        assert {each.members for each in diagnosis.culprits} == {tuple(sorted(pair)) for pair in links}
    else:
        assert names(diagnosis) == {("node", (member,), "send", "likely")}


def test_where_either_side_could_be_at_fault_no_member_is_named() -> None:
    """Three members are slow with three others, and all six are clean with the rest: either three may be at fault."""
    links = {(a, b): 0.5 for a in (0, 1, 2) for b in (3, 4, 5)}
    diagnosis = SimulatedFabric(topology=Topology(members=tuple(range(12))), links=links).trial()
    assert {(each.kind, each.confidence) for each in diagnosis.culprits} == {("fabric", "likely")}
    assert diagnosis.culprits[0].members == (0, 1, 2, 3, 4, 5)


@given(observations())
def test_a_slow_pair_is_named_explained_or_open(case: tuple[int, Observations]) -> None:
    size, seen = case
    diagnosis = solve(seen, Topology(members=tuple(range(size))))
    slow = [p for p in seen.pairs if diagnosis.limit is not None and (p.gbps or 0.0) < diagnosis.limit]
    touched = {member for each in diagnosis.culprits for member in each.members}
    touched |= {end for link in diagnosis.unconfirmed for end in (link.source, link.target)}
    assert all({p.source, p.target} & touched for p in slow)


@settings(max_examples=15)
@given(st.integers(5, 18), st.integers(1, 4), st.data())
def test_good_members_more_change_nothing(size: int, more: int, data: st.DataObject) -> None:
    free = data.draw(st.permutations(range(size)))
    bad = dict.fromkeys(free[: (size - 1) // 4], data.draw(st.sampled_from([0.0, 0.4, 0.8])))
    link = tuple(sorted(free[-2:]))
    links = {(link[0], link[1]): data.draw(st.sampled_from([0.0, 0.5, 1.0]))}
    planted: set[tuple[Any, ...]] = {("node", (member,), "both", "confirmed") for member in bad}
    planted |= {("link", link, "send", "confirmed") for left in links.values() if left < 1}
    for members in (size, size + more):
        topology = Topology(members=tuple(range(members)))
        fabric = SimulatedFabric(topology=topology, sends=bad, receives=bad, links=links)
        assert names(fabric.trial()) == planted


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(0, 2**32), st.booleans())
def test_it_ends_even_where_each_answer_contradicts_those_before(size: int, seed: int, hints: bool) -> None:
    """The answers are drawn anew for each round, so no result is confirmed for long."""
    rng = random.Random(seed)
    topology = Topology(members=tuple(range(size)))
    seen = Observations()
    while (asked := next_round(seen, topology, seed=seed)) is not None:
        assert seen.rounds < most_rounds(topology)
        for turn in range(asked.turns):
            ends = [end for pair in asked.pairs[turn :: asked.turns] for end in pair]
            assert len(ends) == len(set(ends))
        inside = [member for group in asked.groups for member in group]
        assert len(inside) == len(set(inside))
        assert bool(asked.pairs) != bool(asked.groups)
        fabric = SimulatedFabric(
            topology=topology,
            sends={member: rng.choice([1.0, 1.0, 0.9, 0.5, 0.0]) for member in range(size)},
            receives={member: rng.choice([1.0, 1.0, 1.0, 0.85, 0.3]) for member in range(size)},
            links={(rng.randrange(size), rng.randrange(size)): 0.0 for _ in range(3)},
            hints=hints,
            fails_over=rng.choice([1, 5, 100]),
        )
        new = fabric.measure(asked)
        seen = seen.after(new.pairs, new.groups)
    diagnosis = solve(seen, topology)
    assert seen.rounds < most_rounds(topology) or any("was ended" in text for text in diagnosis.remains)


@given(st.integers(2, 40))
def test_the_circle_holds_every_pair_once_in_rounds_of_disjoint_pairs(size: int) -> None:
    rounds = round_robin(range(size))
    assert len(rounds) == (size - 1 if size % 2 == 0 else size)
    assert all(len({end for pair in pairs for end in pair}) == 2 * len(pairs) for pairs in rounds)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == size * (size - 1) // 2


@given(st.integers(2, 80), st.integers(4, 40))
def test_the_groups_hold_every_two_members_and_are_disjoint(size: int, group_size: int) -> None:
    rounds = cover_groups(range(size), group_size)
    for groups in rounds:
        assert sum(map(len, groups)) == len({member for group in groups for member in group})
        assert all(len(group) <= group_size for group in groups)
    met = {frozenset(pair) for groups in rounds for group in groups for pair in combinations(group, 2)}
    assert len(met) == size * (size - 1) // 2


@settings(max_examples=20)
@given(st.integers(17, 100), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=3))
def test_unlisted_dead_links_are_named_and_no_turn_has_a_member_twice(size: int, ends: list[tuple[int, int]]) -> None:
    """Blocks of unequal size and several failed groups: the pairs that are left are dealt out to equal turns."""
    wanted = {(a % size, b % size) for a, b in ends if a % size != b % size}
    links = dict.fromkeys([*wanted, *((b, a) for a, b in wanted)], 0.0)
    fabric = SimulatedFabric(topology=Topology(members=tuple(range(size))), links=links, hints=False)
    diagnosis = fabric.trial()
    for asked in fabric.rounds:
        if asked.turns < len(asked.pairs):
            for turn in range(asked.turns):
                busy = [end for pair in asked.pairs[turn :: asked.turns] for end in pair]
                assert len(busy) == len(set(busy))
    blamed = [set(each.members) for each in diagnosis.culprits]
    # Three dead links of one member accuse that member.
    assert all(any(set(pair) & members for members in blamed) for pair in wanted)
    assert all(any(set(pair) & members for pair in wanted) for members in blamed)
