"""Rounds that together cover every two members: by pairs in a small fleet, by groups in a large one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from seatrial.checks.links.solver.records import DirectedLink, Topology
from seatrial.util.round_robin import Pair, round_robin

ALL_PAIRS = 16
"""The largest fleet in which every pair is measured by itself; larger fleets are measured in groups."""
GROUP_SIZE = 512
ONE_BY_ONE = 5
"""The largest fleet in which all pairs are measured one at a time: it has ten pairs."""


def cover_groups(members: Sequence[int], group_size: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return rounds of disjoint groups that together hold every two members: half-group blocks, all pairs of blocks."""
    if len(members) <= group_size:
        return ((tuple(members),),)
    num_blocks = math.ceil(len(members) / (group_size // 2))
    num_blocks += num_blocks % 2
    size, more = divmod(len(members), num_blocks)
    blocks, start = [], 0
    for index in range(num_blocks):
        end = start + size + (index < more)
        blocks.append(tuple(members[start:end]))
        start = end
    return tuple(tuple(blocks[a] + blocks[b] for a, b in pairs) for pairs in round_robin(range(num_blocks)))


def cover_pairs(members: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds of disjoint pairs: all pairs of a small fleet; in a large one, one partner for each member."""
    if len(members) <= ALL_PAIRS:
        return round_robin(members)
    pairs = tuple((members[index], members[index + 1]) for index in range(0, len(members) - 1, 2))
    # An odd last member is paired with the first one, in a round by themselves.
    return (pairs, ((members[-1], members[0]),)) if len(members) % 2 else (pairs,)


def most_rounds(topology: Topology) -> int:
    """Return the number of rounds after which the search ends.

    They are enough to cover all pairs once, to repeat each group, and to halve eight times.
    """
    size = len(topology.members)
    pairs = len(cover_pairs(topology.members))
    return pairs + 2 * len(cover_groups(topology.members, GROUP_SIZE)) + 8 * math.ceil(math.log2(max(size, 2))) + 8


def without_dead_links(members: tuple[int, ...], dead: Sequence[DirectedLink]) -> list[tuple[int, ...]]:
    """Return the group as it is, or two groups: without one end of each dead link, and without the other ends."""
    inside = set(members)
    ends: set[int] = set()
    one: set[int] = set()
    for link in dead:
        if link.source in inside and link.target in inside:
            ends |= {link.source, link.target}
            if one.isdisjoint((link.source, link.target)):
                one.add(min(link.source, link.target))
    if not ends:
        return [members]
    return [tuple(m for m in members if m not in part) for part in (one, ends - one)]


def shuffled(topology: Topology, seed: int) -> tuple[int, ...]:
    """Return the members in an order that depends on the seed only."""
    order = sorted(topology.members)
    random.Random(seed).shuffle(order)
    return tuple(order)
