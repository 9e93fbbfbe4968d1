"""Rounds of groups: the links of a large fleet that no pair of the first rounds held, and groups again with fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from seatrial.verdict.circle import circle
from seatrial.verdict.culprits.cover import ALL_PAIRS, GROUP_SIZE, cover_groups, without_dead_links
from seatrial.verdict.culprits.records import Cell, GroupResult, Round
from seatrial.verdict.culprits.scene import Scene

__all__ = ["in_groups", "thinner_groups"]

_QUIET_REPEATS = 15
_MOST_TURNS = 16
"""Of a step of a group's exchange: it has many steps."""


def in_groups(scene: Scene) -> Round | None:
    """All other links of a large fleet: groups without the dead. Who is slow stays in, for all to see with whom."""
    if len(scene.order) <= ALL_PAIRS or len(set(scene.topology.rail.values())) > 1:
        return None
    tried = [(set(group.members), group.gbps is not None) for group in scene.observations.groups]
    for groups in _planned_groups(scene):
        missing = tuple(group for group in groups if len(group) > 1 and not _was_tried(group, tried))
        if missing:
            return Round(purpose="cover", groups=missing, repeats=scene.rates.repeats)
    ends = sorted(
        {end for cell in _dead_links(scene) for end in (cell.source, cell.target) if not scene.sides.bad(end)}
    )
    known = {frozenset(key) for key in scene.rates.cells}
    pairs = [pair for pairs in circle(ends) for pair in pairs if frozenset(pair) not in known] if ends else []
    if pairs:
        return Round(purpose="cover", pairs=tuple(pairs), turns=len(pairs), repeats=_QUIET_REPEATS)
    return None


def _dead_links(scene: Scene) -> list[Cell]:
    return [cell for cell in scene.rates.cells.values() if cell.quiet and cell.failed]


def _planned_groups(scene: Scene) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Rounds of groups that together hold every two members that are not dead."""
    dead = _dead_links(scene)
    for groups in cover_groups(scene.order, GROUP_SIZE):
        left = [tuple(member for member in group if member not in scene.dead) for group in groups]
        # With a dead link inside a group fails for sure: one end of it at a time.
        apart = [without_dead_links(group, dead) for group in left]
        for turn in range(max(map(len, apart), default=0)):
            yield tuple(parts[turn] for parts in apart if turn < len(parts))


def _was_tried(members: Sequence[int], tried: Sequence[tuple[set[int], bool]]) -> bool:
    """Within a group that passed, or by themselves."""
    wanted = set(members)
    return any(wanted <= done if passed else wanted == done for done, passed in tried)


def thinner_groups(scene: Scene) -> Round | None:
    """Groups again with fewer pairs at once, where the exchanges slowed one another down."""
    least: dict[frozenset[int], GroupResult] = {}
    for group in scene.rates.groups:
        key = frozenset(group.members)
        if group.gbps is not None and (key not in least or group.at_once < least[key].at_once):
            least[key] = group
    # Groups that only trace a failure need not be quiet.
    planned = {frozenset(group) for groups in _planned_groups(scene) for group in groups} if least else set()
    again = [
        (group.members, group.at_once)
        for key, group in least.items()
        if key in planned and scene.sides.contended(group)
    ]
    disjoint: list[tuple[int, ...]] = []
    for members, _ in sorted(again):
        if all(set(members).isdisjoint(other) for other in disjoint):
            disjoint.append(members)
    found = Round(purpose="cover", groups=tuple(disjoint), turns=_MOST_TURNS, repeats=scene.rates.repeats)
    useful = tuple(
        sorted(members for members, at_once in again if members in disjoint and 2 * found.at_once <= at_once)
    )
    return replace(found, groups=useful) if useful else None
