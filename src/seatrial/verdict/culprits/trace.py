"""A group failed and nobody can say where: split its members by half after half until one pair is left.

Two halves of a group are tried side by side. Who fails is split again. Where both pass, the fault lies between them,
and each half is split in two and crossed: with n members a faulty link is down to disjoint pairs after log2 n rounds,
because every round halves the blocks that it can lie between, whether a group fails or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seatrial.verdict.culprits.rates import Rates
from seatrial.verdict.culprits.records import GroupResult, Round
from seatrial.verdict.culprits.sides import Sides

__all__ = ["trace"]

Members = tuple[int, ...]
Block = tuple[Members, Members]


def trace(groups: Sequence[GroupResult], rates: Rates, sides: Sides, *, repeats: int) -> Round | None:
    """The next groups or pairs to try for groups that failed; None when each is traced or has no further split."""
    passed = {frozenset(group.members): group.gbps is not None for group in groups}
    for group in groups:
        # Whoever repeated it and saw it pass has the last word.
        passed[frozenset(group.members)] = passed[frozenset(group.members)] or group.gbps is not None
    pairs: list[tuple[int, int]] = []
    tried: list[Members] = []
    failed = [group for group in groups if not passed[frozenset(group.members)]]
    inside = [frozenset(group.members) for group in failed if not _is_explained(group, rates, sides)]
    for members in inside:
        # What is part of another group that is being traced was split off from it.
        if any(members < other for other in inside):
            continue
        for wish in _inside(tuple(sorted(members)), passed):
            if isinstance(wish, frozenset):
                tried.append(tuple(sorted(wish)))
            elif wish not in rates.cells:
                pairs.append(wish)
    chosen: list[Members] = []
    for candidate in dict.fromkeys(tried):
        if all(set(candidate).isdisjoint(other) for other in chosen):
            chosen.append(candidate)
    if chosen:
        return Round(purpose="trace", groups=tuple(chosen), repeats=repeats)
    disjoint: list[tuple[int, int]] = []
    for pair in dict.fromkeys(pairs):
        if all(set(pair).isdisjoint(other) for other in disjoint):
            disjoint.append(pair)
    return Round(purpose="trace", pairs=tuple(disjoint), repeats=repeats) if disjoint else None


def _is_explained(group: GroupResult, rates: Rates, sides: Sides) -> bool:
    """By a dead member, or by a dead link: one that was repeated on a quiet fabric, or is to be."""
    inside = set(group.members)
    dead = (key for key, cell in rates.cells.items() if cell.failed)
    return any(map(sides.dead, group.members)) or any(a in inside and b in inside for a, b in dead)


def _inside(members: Members, passed: dict[frozenset[int], bool]) -> Iterator[frozenset[int] | tuple[int, int]]:
    """What to try for a group that failed: groups first, pairs at the end."""
    if len(members) == 2:
        yield members[0], members[1]
        return
    half = (len(members) + 1) // 2
    near, far = members[:half], members[half:]
    halves = [part for part in (near, far) if len(part) > 1]
    unknown = [frozenset(part) for part in halves if frozenset(part) not in passed]
    if unknown:
        yield from unknown
        return
    failed = [part for part in halves if not passed[frozenset(part)]]
    if failed:
        for part in failed:
            yield from _inside(part, passed)
        return
    yield from _between([(near, far)], passed)


def _between(blocks: Sequence[Block], passed: dict[frozenset[int], bool]) -> Iterator[frozenset[int] | tuple[int, int]]:
    """The fault lies between the two parts of one of the blocks, all of which are clean within and to one another."""
    if all(len(near) <= 2 and len(far) <= 2 for near, far in blocks):
        yield from ((a, b) for near, far in blocks for a in near for b in far)
        return
    split = [(_halve(near), _halve(far)) for near, far in blocks]
    sets = [frozenset(m for near, far in split for m in near[side] + far[side]) for side in (0, 1)]
    # Without members of both parts there is nothing between them to try.
    crossing = [any(near[side] and far[side] for near, far in split) for side in (0, 1)]
    unknown = [sets[side] for side in (0, 1) if crossing[side] and sets[side] not in passed]
    if unknown:
        yield from unknown
        return
    failed = [side for side in (0, 1) if crossing[side] and not passed[sets[side]]]
    for side in failed:
        inside = [(near[side], far[side]) for near, far in split]
        yield from _between([block for block in inside if block[0] and block[1]], passed)
    if not failed:
        crossed = [(near[side], far[1 - side]) for near, far in split for side in (0, 1)]
        yield from _between([block for block in crossed if block[0] and block[1]], passed)


def _halve(members: Members) -> tuple[Members, Members]:
    half = (len(members) + 1) // 2
    return members[:half], members[half:]
