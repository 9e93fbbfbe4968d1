"""The order in which a node connects to the others, and numbers as ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def distances(count: int) -> tuple[int, ...]:
    """Return 1, 2, 4, 8, ... below the number of nodes."""
    return tuple(1 << exponent for exponent in range(count.bit_length()) if 1 << exponent < count)


def targets(nodes: Sequence[int], own: int, *, everybody: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the nodes to connect to first, at the distances, and then the rest, each node beginning at another one.

    ``everybody``: False leaves out the rest.
    """
    at, count = nodes.index(own), len(nodes)
    near = distances(count)
    first = tuple(nodes[(at + distance) % count] for distance in near)
    if not everybody:
        return first, ()
    skipped = set(near)
    return first, tuple(nodes[(at + step) % count] for step in range(1, count) if step not in skipped)


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as ascending [first, last] pairs."""
    pairs: list[list[int]] = []
    for number in sorted(numbers):
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return pairs


def within(known: int, ranges: Iterable[Sequence[int]]) -> int:
    """Return which of some numbers are in [first, last] pairs, however long these claim to be; all numbers as bits."""
    bits = 0
    for first, last in ranges:
        first, last = max(first, 0), min(last, known.bit_length() - 1)
        bits |= (1 << max(last - first + 1, 0)) - 1 << min(first, known.bit_length())
    return bits & known
