"""All pairs of some members, in rounds of disjoint ones."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Pair", "circle"]

Pair = tuple[int, int]


def circle(members: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """All pairs in rounds of disjoint pairs: one stays, the others move round a circle (n-1 rounds, n if n is odd)."""
    ring: list[int | None] = [*members] if len(members) % 2 == 0 else [*members, None]
    half = len(ring) // 2
    rounds = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(rounds)
