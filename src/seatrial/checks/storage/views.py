"""What the ranks found in their folders: whose tokens. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from seatrial.evidence.evidence import Evidence

View: TypeAlias = frozenset[int]
"""The ranks whose tokens a rank sees."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""The first and the last of ranks, any number of times."""


def ranges_by_rank(evidence: Evidence, name: str) -> dict[int, Ranges]:
    """Return the ranges of ranks in each rank's fact of a name."""
    return {
        fact.rank: tuple((first, last) for first, last in fact.value)
        for fact in evidence.facts
        if fact.name == name and fact.rank is not None and fact.rank in evidence.ranks
    }


def within(ranks: Sequence[int], ranges: Iterable[tuple[int, int]]) -> View:
    """Return which of ascending ranks are in ranges, of which there may be any number of any length."""
    seen, below = list[int](), 0
    for first, last in sorted(ranges):
        after = bisect_right(ranks, last)
        seen += ranks[max(below, bisect_left(ranks, first)) : after]
        below = max(below, after)
    return frozenset(seen)
