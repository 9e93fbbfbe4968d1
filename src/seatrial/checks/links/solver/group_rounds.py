"""Rounds of groups: they cover the links of a large fleet, and are repeated with fewer pairs active at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from seatrial.checks.links.solver.cover import ALL_PAIRS, GROUP_SIZE, cover_groups, without_dead_links
from seatrial.checks.links.solver.records import DirectedLink, GroupResult, Round
from seatrial.checks.links.solver.solver_state import SolverState
from seatrial.checks.links.solver.together import disjoint
from seatrial.util.round_robin import round_robin

_UNCONTENDED_REPEATS = 15
_MOST_ENDS = 256
"""The largest number of ends of dead links of which each is paired with each other one."""
_MOST_TURNS = 16
"""The largest number of turns for one step of a group's exchange, because an exchange has many steps."""


def in_groups(state: SolverState) -> Round | None:
    """Return groups that cover the remaining links of a large fleet, without dead members.

    Slow members stay in the groups, which shows with whom they are slow.
    """
    if len(state.order) <= ALL_PAIRS:
        return None
    tried: defaultdict[int, list[tuple[set[int], bool]]] = defaultdict(list)
    for result in state.observations.groups:
        entry = set(result.members), result.gbps is not None
        for member in result.members:
            tried[member].append(entry)
    for groups in _planned_groups(state):
        missing = tuple(group for group in groups if len(group) > 1 and not _was_tried(group, tried[group[0]]))
        if missing:
            return Round(groups=missing, repeats=state.rates.repeats)
    ends = sorted(
        {end for link in _dead_links(state) for end in (link.source, link.target) if not state.endpoints.bad(end)}
    )[:_MOST_ENDS]
    known = {frozenset(key) for key in state.rates.links}
    pairs = [pair for pairs in round_robin(ends) for pair in pairs if frozenset(pair) not in known] if ends else []
    if pairs:
        return Round(pairs=tuple(pairs), turns=len(pairs), repeats=_UNCONTENDED_REPEATS)
    return None


def _dead_links(state: SolverState) -> list[DirectedLink]:
    """Return the links that failed without contention."""
    return [link for link in state.rates.links.values() if link.uncontended and link.failed and not link.is_open]


def _planned_groups(state: SolverState) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield rounds of groups that together hold every two members that are not dead."""
    dead: defaultdict[int, list[tuple[int, DirectedLink]]] = defaultdict(list)
    for place, link in enumerate(_dead_links(state)):
        dead[link.source].append((place, link))
    for groups in cover_groups(state.order, GROUP_SIZE):
        left = [tuple(member for member in group if member not in state.dead) for group in groups]
        # A group with a dead link inside is certain to fail, so each group holds one end of it only.
        split = [without_dead_links(group, _of_group(group, dead)) for group in left]
        for turn in range(max(map(len, split), default=0)):
            yield tuple(parts[turn] for parts in split if turn < len(parts))


def _of_group(members: Sequence[int], dead: Mapping[int, Sequence[tuple[int, DirectedLink]]]) -> list[DirectedLink]:
    """Return the dead links that members of a group send over, in their order. ``dead``: by sender, with its place."""
    mine = sorted((entry for member in members for entry in dead.get(member, ())), key=itemgetter(0))
    return [link for _, link in mine]


def _was_tried(members: Sequence[int], tried: Sequence[tuple[set[int], bool]]) -> bool:
    """Return True if these members were part of a group that passed, or were a group themselves."""
    wanted = set(members)
    return any(wanted <= done if passed else wanted == done for done, passed in tried)


def thinner_groups(state: SolverState) -> Round | None:
    """Return the groups whose exchanges slowed one another down, with fewer pairs active at once."""
    least: dict[frozenset[int], GroupResult] = {}
    for group in state.rates.groups:
        key = frozenset(group.members)
        if group.gbps is not None and (key not in least or group.at_once < least[key].at_once):
            least[key] = group
    # Groups that only trace a failure may be contended.
    planned = {frozenset(group) for groups in _planned_groups(state) for group in groups} if least else set()
    again = [
        (group.members, group.at_once)
        for key, group in least.items()
        if key in planned and state.endpoints.contended(group)
    ]
    chosen = disjoint(sorted(members for members, _ in again))
    found = Round(groups=chosen, turns=_MOST_TURNS, repeats=state.rates.repeats)
    wanted = set(chosen)
    useful = tuple(sorted(members for members, at_once in again if members in wanted and 2 * found.at_once <= at_once))
    return replace(found, groups=useful) if useful else None
