"""Round-robin pairing."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]


def round_robin(members: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Return all pairs of the members, in rounds of disjoint pairs.

    The circle method: one member stays, the others rotate. That takes n-1 rounds, or n where n is odd.
    """
    ring: list[int | None] = [*members] if len(members) % 2 == 0 else [*members, None]
    half = len(ring) // 2
    rounds = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(rounds)
