"""Sets of pairs of nodes, and the fewest causes of closed ones, for any set of them."""

from __future__ import annotations

import itertools
import operator
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.checks.network import pairs
from seatrial.checks.network.causes import Cause, Tried, find_causes
from seatrial.checks.network.pairs import Pair, Pairs, bits_of, numbers_of
from seatrial.checks.network.schedule import to_ranges, within


def pairs_of(made: set[Pair]) -> Pairs:
    return Pairs({source: bits_of(t for s, t in made if s == source) for source in {s for s, _ in made}})


def causes_of(
    closed: set[Pair], count: int, *, untried: frozenset[Pair] = frozenset(), addresses: tuple[str, ...] = ()
) -> list[Cause]:
    planned = set(permutations(range(count), 2))
    tried = Tried(nodes=tuple(range(count)), planned=pairs_of(planned), pairs=pairs_of(planned - untried))
    return find_causes(pairs_of(closed), tried, dict(enumerate(addresses or [f"10.0.0.{n}" for n in range(count)])))


def shapes(causes: list[Cause]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(cause.shape, cause.sources, cause.targets) for cause in causes]


PAIRS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


@given(PAIRS, PAIRS)
def test_sets_of_pairs_are_sets(one: set[Pair], other: set[Pair]) -> None:
    for combine in (operator.or_, operator.and_, operator.sub):
        assert list(combine(pairs_of(one), pairs_of(other))) == sorted(combine(one, other))
    assert list(pairs_of(one).turned()) == sorted((target, source) for source, target in one)
    assert (len(pairs_of(one)), bool(pairs_of(one))) == (len(one), bool(one))
    assert [pair in pairs_of(one) for pair in other] == [pair in one for pair in other]
    assert list(numbers_of(pairs_of(one).all_targets())) == sorted({target for _, target in one})
    assert list(pairs_of(one).between([0, 3], 0b110)) == sorted(p for p in one if p[0] in (0, 3) and p[1] in (1, 2))


@pytest.mark.parametrize("most_in_a_square", [3, 1 << 14])
@given(st.sets(st.integers(0, 300), max_size=12), st.sets(st.integers(0, 300), max_size=12), st.data())
def test_pairs_are_exchanged_in_squares(
    most_in_a_square: int, sources: set[int], targets: set[int], data: st.DataObject
) -> None:
    """Whatever numbers the nodes have, and however many there are."""
    every = sorted(itertools.product(sources, targets))
    left_out = data.draw(st.sets(st.sampled_from(every))) if every else set()
    made = pairs_of({*every} - left_out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pairs, "_MOST_DENSE", most_in_a_square)
        patched.setattr(pairs, "_MOST_RUNS", data.draw(st.integers(0, 64)))
        turned = made.turned()
    assert list(turned) == sorted((target, source) for source, target in made)
    assert all(turned.targets.values())


@given(st.sets(st.integers(0, 70)), st.sets(st.integers(0, 70)))
def test_ranges_and_back(known: set[int], meant: set[int]) -> None:
    assert list(numbers_of(within(bits_of(known), to_ranges(meant)))) == sorted(known & meant)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [([[-9, 10**30]], [1, 3]), ([[3, 1]], []), ([[4, 9]], []), ([[2, 2]], []), ([[10**30, 10**31]], [])],
)
def test_ranges_that_claim_too_much(ranges: list[list[int]], expected: list[int]) -> None:
    assert list(numbers_of(within(0b1010, ranges))) == expected


@settings(max_examples=150)
@given(
    st.integers(2, 6).flatmap(
        lambda count: st.tuples(
            st.just(count), *(st.sets(st.sampled_from(list(permutations(range(count), 2)))) for _ in range(2))
        )
    )
)
def test_causes_explain_what_is_closed_and_nothing_else(case: tuple[int, set[Pair], set[Pair]]) -> None:
    count, closed, untried = case
    tried = set(permutations(range(count), 2)) - untried
    causes = causes_of(closed, count, untried=frozenset(untried))
    assert {pair for cause in causes for pair in cause.pairs} == closed & tried
    for cause in causes:
        works = tried - closed
        sources, targets = set(cause.sources), set(cause.targets)
        # What a cause claims contradicts no connection that works.
        match cause.shape:
            case "all":
                claimed = tried
            case "in":
                claimed = {pair for pair in tried if pair[1] in sources}
            case "out":
                claimed = {pair for pair in tried if pair[0] in sources}
            case "both":
                claimed = {pair for pair in tried if sources & set(pair)}
            case _:
                claimed = {pair for pair in tried if pair[0] in sources and pair[1] in targets}
                if cause.mutual:
                    claimed |= {pair for pair in tried if pair[0] in targets and pair[1] in sources}
        assert not claimed & works
        assert cause.shape == "rest" or claimed >= set(cause.pairs)
        # A single failure makes nobody a closed node.
        if cause.shape in ("in", "out"):
            end = 1 if cause.shape == "in" else 0
            assert all(sum(pair[end] == node for pair in cause.pairs) > 1 for node in sources)


def test_two_closed_nodes_and_a_pair_beside_them() -> None:
    closed = {pair for pair in permutations(range(5), 2) if pair[1] == 1 or 4 in pair} | {(0, 2)}
    assert shapes(causes_of(closed, 5)) == [("both", (4,), ()), ("in", (1,), ()), ("pair", (0,), (2,))]


def test_of_three_nodes_one_is_named_by_two_pairs() -> None:
    assert shapes(causes_of({(0, 1), (2, 1)}, 3)) == [("in", (1,), ())]
    assert shapes(causes_of({(1, 0), (1, 2)}, 3)) == [("out", (1,), ())]
    assert shapes(causes_of({(0, 1), (0, 2), (1, 0), (2, 0)}, 3)) == [("both", (0,), ())]


def test_one_row_is_a_node_that_cannot_connect_and_no_row_of_closed_ones() -> None:
    """Of four nodes, three cannot be reached by node 0, which could not connect: one cause, not three."""
    assert shapes(causes_of({(0, 1), (0, 2), (0, 3)}, 4)) == [("out", (0,), ())]
    assert shapes(causes_of({(1, 0), (2, 0), (3, 0)}, 4)) == [("in", (0,), ())]


def test_a_node_that_did_not_report_may_reach_everybody() -> None:
    silent = frozenset(pair for pair in permutations(range(3), 2) if pair[0] == 2)
    tried = set(permutations(range(3), 2)) - silent
    known = Tried(nodes=(0, 1, 2), planned=pairs_of(tried), pairs=pairs_of(tried))
    causes = find_causes(pairs_of(tried), known, {})
    assert causes
    assert "all" not in {cause.shape for cause in causes}


SUBNETS = ("10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2", "10.3.0.1", "10.3.0.2")


def _across(sources: set[int], targets: set[int]) -> set[Pair]:
    return {(source, target) for source in sources for target in targets if source != target}


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        (_across({0, 1}, {2, 3}), [("between", (0, 1), (2, 3))]),
        (_across({0, 1}, {2, 3}) | _across({2, 3}, {0, 1}), [("between", (0, 1), (2, 3))]),
        (_across({0, 1}, {2, 3}) | {(4, 5)}, [("between", (0, 1), (2, 3)), ("pair", (4,), (5,))]),
        (_across({0, 1, 2}, {0, 1, 2}), [("among", (0, 1, 2), (0, 1, 2))]),
        (_across({0, 2, 4}, {1, 3}), [("between", (0, 2, 4), (1, 3))]),
        (_across({0}, {2, 3}) | _across({1}, {4, 5}), [("between", (0,), (2, 3)), ("between", (1,), (4, 5))]),
    ],
)
def test_groups(closed: set[Pair], expected: list[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> None:
    assert shapes(causes_of(closed, 6, addresses=SUBNETS)) == expected


@pytest.mark.parametrize(
    ("addresses", "num_causes"),
    [
        ("10.{}.0.{}", 1),
        ("fd00:0:{}::{}%eth0", 1),
        ("unknown {} {}", 3),
    ],
)
def test_subnets_of_which_each_source_tried_a_part(addresses: str, num_causes: int) -> None:
    """Subnets explain what no group of pairs can: each source stopped early, and no two tried the same."""
    closed = {(0, 3), (0, 4), (1, 4), (1, 5), (2, 5), (2, 3)}
    untried = frozenset({(0, 5), (1, 3), (2, 4)})
    causes = causes_of(
        closed, 6, untried=untried, addresses=tuple(addresses.format(1 + node // 3, node) for node in range(6))
    )
    assert len(causes) == num_causes
    if num_causes == 1:
        assert shapes(causes) == [("between", (0, 1, 2), (3, 4, 5))]


@pytest.mark.parametrize(
    ("closed", "untried"),
    [({(0, 2), (1, 3)}, {(0, 3), (1, 2)}), ({(0, 2), (1, 2), (1, 3)}, {(0, 3)})],
)
def test_two_pairs_of_two_subnets_are_the_subnets(closed: set[Pair], untried: set[Pair]) -> None:
    addresses = ("10.1.0.0", "10.1.0.1", "10.2.0.2", "10.2.0.3")
    causes = causes_of(closed, 4, untried=frozenset(untried), addresses=addresses)
    assert shapes(causes) == [("between", (0, 1), (2, 3))]


def test_of_equal_subnets_that_of_fewer_sources_comes_first() -> None:
    addresses = tuple(f"10.{1 + (node > 2) + (node > 4) + (node > 6)}.0.{node}" for node in range(10))
    untried = {(0, 3), (6, 9)}
    closed = (_across({0, 1, 2}, {3, 4}) | _across({5, 6}, {7, 8, 9})) - untried
    causes = causes_of(closed, 10, untried=frozenset(untried), addresses=addresses)
    assert shapes(causes) == [("between", (5, 6), (7, 8, 9)), ("between", (0, 1, 2), (3, 4))]


def test_more_subnets_than_are_compared_explain_nothing() -> None:
    addresses = tuple(f"10.0.{node // 2}.{node}" for node in range(130))
    causes = causes_of({(0, 2), (1, 3)}, 130, untried=frozenset({(0, 3), (1, 2)}), addresses=addresses)
    assert shapes(causes) == [("pair", (0,), (2,)), ("pair", (1,), (3,))]


def test_the_largest_group_comes_first_then_that_of_fewer_sources() -> None:
    into_one, out_of_one = _across({0, 1, 2, 3}, {4}), _across({5}, {6, 7, 8})
    larger, smaller = ("between", (0, 1, 2, 3), (4,)), ("between", (5,), (6, 7, 8))
    assert shapes(causes_of(into_one | out_of_one, 10, addresses=tuple("?" * 10))) == [larger, smaller]
    equal = ("between", (5,), (6, 7, 8, 9))
    assert shapes(causes_of(into_one | _across({5}, {6, 7, 8, 9}), 11, addresses=tuple("?" * 11))) == [equal, larger]


def test_more_causes_than_are_worked_out_are_counted() -> None:
    closed = {(node, node + 1) for node in range(0, 40, 2)}
    causes = causes_of(closed, 40)
    assert [cause.shape for cause in causes] == ["pair"] * 16 + ["rest"]
    assert (causes[-1].sources, len(causes[-1].pairs)) == (tuple(range(32, 40)), 4)
