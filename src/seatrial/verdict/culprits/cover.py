"""Rounds that between them hold every two members: pairs for a small fleet, groups for a large one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from seatrial.verdict.circle import Pair, circle
from seatrial.verdict.culprits.records import Cell, Topology

__all__ = [
    "ALL_PAIRS",
    "GROUP_SIZE",
    "ONE_BY_ONE",
    "cover_groups",
    "cover_pairs",
    "most_rounds",
    "shuffled",
    "without_dead_links",
]

ALL_PAIRS = 16
"""Up to so many members every pair is measured by itself; above, in groups."""
GROUP_SIZE = 512
ONE_BY_ONE = 5
"""Up to so many members all pairs are measured one at a time: there are ten of them."""


def cover_groups(members: Sequence[int], group_size: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Rounds of disjoint groups that together hold every two members: blocks of half a group, all pairs of blocks."""
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
    return tuple(tuple(blocks[a] + blocks[b] for a, b in pairs) for pairs in circle(range(num_blocks)))


def cover_pairs(topology: Topology, order: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    rails: dict[str, list[int]] = {}
    for member in order:
        rails.setdefault(topology.rail.get(member, ""), []).append(member)
    if len(topology.members) <= ALL_PAIRS or len(rails) > 1:
        by_rail = [circle(members) for _, members in sorted(rails.items())]
        longest = max(map(len, by_rail), default=0)
        # One round of each rail at the same time.
        rounds = (
            [pair for rail in by_rail for pairs in rail[index : index + 1] for pair in pairs]
            for index in range(longest)
        )
        return tuple(map(tuple, rounds))
    pairs = tuple((order[index], order[index + 1]) for index in range(0, len(order) - 1, 2))
    # The odd one out goes with the first, in a round of its own.
    return (pairs, ((order[-1], order[0]),)) if len(order) % 2 else (pairs,)


def most_rounds(topology: Topology) -> int:
    """After so many rounds no more is asked for, whatever was answered: to cover all once, and to halve eight times."""
    size = len(topology.members)
    pairs = len(cover_pairs(topology, topology.members))
    return pairs + len(cover_groups(topology.members, GROUP_SIZE)) + 8 * math.ceil(math.log2(max(size, 2))) + 8


def without_dead_links(members: tuple[int, ...], dead: Sequence[Cell]) -> list[tuple[int, ...]]:
    """The group as it is, or twice: without one end of each dead link, then without the other ends."""
    inside = set(members)
    ends: set[int] = set()
    one: set[int] = set()
    for cell in dead:
        if cell.source in inside and cell.target in inside:
            ends |= {cell.source, cell.target}
            if one.isdisjoint((cell.source, cell.target)):
                one.add(min(cell.source, cell.target))
    if not ends:
        return [members]
    return [tuple(m for m in members if m not in part) for part in (one, ends - one)]


def shuffled(topology: Topology, seed: int) -> tuple[int, ...]:
    order = sorted(topology.members)
    random.Random(seed).shuffle(order)
    return tuple(sorted(order, key=lambda member: topology.switch.get(member, "")))
