"""What the ranks found in their folders: whose tokens. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

from seatrial.evidence.evidence import Evidence

View: TypeAlias = tuple[tuple[int, int], ...]
"""The ranks whose tokens a rank sees, as places in the ascending ranks: from each first one to before each second one.
No two of them touch. Ranks that report views with few ranges may see thousands, so no view lists its ranks."""
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
    return merged((bisect_left(ranks, first), bisect_right(ranks, last)) for first, last in ranges)


def merged(parts: Iterable[tuple[int, int]]) -> View:
    """Return places of ranks, in any order and any number of times, as a view."""
    found = list[tuple[int, int]]()
    for begin, end in sorted(parts):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif begin < end:
            found.append((begin, end))
    return tuple(found)


def in_all(views: Collection[View]) -> View:
    """Return what all of these views have in common."""
    steps = Counter[int]()
    for begin, end in (part for view in views for part in view):
        steps[begin] += 1
        steps[end] -= 1
    places, counts = sorted(steps), accumulate(steps[place] for place in sorted(steps))
    return merged(
        (place, after) for place, after, count in zip(places, places[1:], counts, strict=False) if count == len(views)
    )


def has(view: View, place: int) -> bool:
    """Return whether the rank at a place is in a view."""
    number = bisect_right(view, (place, math.inf))
    return number > 0 and place < view[number - 1][1]
