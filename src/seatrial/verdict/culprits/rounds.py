"""What to measure next. Pure and without memory: each call works out from the observations what is missing."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from seatrial.verdict.culprits.cover import (
    ALL_PAIRS,
    Pair,
    circle,
    cover_groups,
    cover_pairs,
    shuffled,
    without_dead_links,
)
from seatrial.verdict.culprits.cuts import find_cuts
from seatrial.verdict.culprits.others import judge_alone
from seatrial.verdict.culprits.rates import Rates, gather
from seatrial.verdict.culprits.records import Cell, GroupResult, Limits, Observations, Round, Topology
from seatrial.verdict.culprits.sides import PARTNERS, Side, Sides, sides_of, weigh
from seatrial.verdict.culprits.solve import link_fault
from seatrial.verdict.culprits.trace import trace

__all__ = ["next_round"]

GROUP_SIZE = 512
_COVER_REPEATS = 9
_QUIET_REPEATS = 15
_MOST_REPEATS = 25
_QUIET_PAIRS = 64
"""So many pairs are measured one after the other in one round, and four times as many in all."""
_CONTROLS = 3
_THINNER = 8
"""Where pairs slow one another down, so many times fewer are at work at once the next time."""
_MOST_TURNS = 16
"""Of a step of a group's exchange: it has many steps."""
_NEIGHBOURS = 3
"""With so many of the other bad members each is measured."""
_NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    observations: Observations
    topology: Topology
    rates: Rates
    sides: Sides
    order: tuple[int, ...]
    """The members, shuffled by the seed, those of one switch together."""
    first_pairs: tuple[tuple[Pair, ...], ...]
    group_size: int
    dead: frozenset[int]

    @property
    def quiet_pairs(self) -> set[frozenset[int]]:
        return {frozenset((cell.source, cell.target)) for cell in self.rates.cells.values() if cell.quiet}

    def partners(self, member: int, tried: Iterable[int] = ()) -> list[int]:
        """Known-good partners: spotless ones first, those of its own switch before, then by the seeded order."""
        mine = self.topology.switch.get(member)
        apart = {member, *tried}
        spotted = {end for cell in self.sides.open_cells for end in (cell.source, cell.target)}
        rail = self.topology.rail.get(member)
        good = [
            other
            for other in self.order
            if other not in apart and self.sides.cleared(other) and self.topology.rail.get(other) == rail
        ]
        switch = self.topology.switch
        start = self.order.index(member)
        place = {other: (index - start) % len(self.order) for index, other in enumerate(self.order)}
        return sorted(good, key=lambda other: (other in spotted, switch.get(other) != mine, place[other]))


def next_round(
    observations: Observations,
    topology: Topology,
    limits: Limits = _NO_LIMITS,
    *,
    seed: int = 0,
    group_size: int = GROUP_SIZE,
) -> Round | None:
    """What to measure next; None when nothing more would change the diagnosis.

    Ask, measure, add the results to the observations, and ask again. A pair that gave no result has to be reported as
    failed, else it is asked for again.
    """
    if len(topology.members) < 2:
        return None
    broken = {member for each in judge_alone(observations.alone, topology) for member in each.members}
    order = shuffled(topology, seed)
    plan = cover_pairs(topology, [member for member in order if member not in broken])
    first = _first_pairs(plan, observations)
    if first is not None:
        return first
    rates = gather(observations, topology, limits)
    sides = weigh(rates, broken)
    scene = _Scene(
        observations=observations,
        topology=topology,
        rates=rates,
        sides=sides,
        order=order,
        first_pairs=plan,
        group_size=group_size,
        dead=frozenset(member for member in topology.members if sides.dead(member)),
    )
    for step in (_once_more, trace_groups, _suspects, _thinner_pairs, _thinner_groups, _in_groups):
        found = step(scene)
        if found is not None:
            return found
    return None


def trace_groups(scene: _Scene) -> Round | None:
    """Groups that failed without a word: who is inside is split until the pair is left."""
    return trace(scene.observations.groups, scene.rates, scene.sides, repeats=_repeats(scene.rates))


def _first_pairs(plan: Sequence[tuple[Pair, ...]], observations: Observations) -> Round | None:
    """Every pair of a small fleet, round by round; of a large one each member with one other."""
    known = {frozenset((each.source, each.target)) for each in observations.pairs}
    for pairs in plan:
        missing = tuple(pair for pair in pairs if frozenset(pair) not in known)
        if missing:
            return Round(purpose="cover", pairs=missing, repeats=_COVER_REPEATS if len(missing) > 1 else _QUIET_REPEATS)
    return None


def _once_more(scene: _Scene) -> Round | None:
    """Up to three members leave one pair at a time from the start: what was slow is measured a second time."""
    times = Counter(frozenset((each.source, each.target)) for each in scene.observations.pairs)
    slow = {
        (min(c.source, c.target), max(c.source, c.target)) for c in scene.rates.cells.values() if c.ratio < 1 - 0.05
    }
    if scene.rates.reference and scene.rates.goal and scene.rates.reference < 1.05 * scene.rates.goal:
        slow = {(min(key), max(key)) for key in scene.rates.cells}
    pairs = tuple(sorted(pair for pair in slow if times[frozenset(pair)] <= 2))
    if len(scene.order) > 3 or not pairs:
        return None
    return Round(purpose="repeat", pairs=pairs, turns=len(pairs), repeats=_MOST_REPEATS)


def _suspects(scene: _Scene) -> Round | None:
    """Suspects with known-good partners, links with what their ends reach elsewhere, and healthy pairs beside them.

    One after the other on a quiet fabric; where they are too many for that, fewer at once than before.
    """
    wanted = _wanted(scene) or _among_the_bad(scene)
    quiet = scene.quiet_pairs
    asked = len(quiet)
    controls = [pair for pair in _controls(scene) if frozenset(pair) not in quiet]
    if len(wanted) > _QUIET_PAIRS and controls:
        wanted = []
    elif len(wanted) > _QUIET_PAIRS and scene.rates.contended:
        return None
    elif len(wanted) > _QUIET_PAIRS and (sieve := _sieve(scene, wanted)) is not None:
        return sieve
    wanted = wanted[: max(0, min(_QUIET_PAIRS, 4 * _QUIET_PAIRS - asked))]
    pairs = tuple(dict.fromkeys([*wanted, *(pair for pair in controls if pair not in wanted)]))
    if not pairs:
        return None
    return Round(purpose="repeat", pairs=pairs, turns=len(pairs), repeats=_QUIET_REPEATS)


def _controls(scene: _Scene) -> list[Pair]:
    """Healthy pairs on a quiet fabric: what they reach there is what all are held against.

    A few within switches, and one representative of each switch with the next one's.
    """
    if len(scene.order) < 4:
        return []
    spotted = {end for cell in scene.sides.open_cells for end in (cell.source, cell.target)}
    good = [member for member in scene.order if scene.sides.cleared(member) and member not in spotted]
    if len(good) < 2:
        good = [member for member in scene.order if scene.sides.cleared(member)]
    near = [
        (a, b)
        for a, b in zip(good[::2], good[1::2], strict=False)
        if scene.topology.switch.get(a) == scene.topology.switch.get(b)
        and scene.topology.rail.get(a) == scene.topology.rail.get(b)
    ]
    # Representatives: pairs measured in an earlier round stay the controls, whoever looks healthy by now.
    done = sum(1 for pair in scene.quiet_pairs if all(scene.sides.cleared(member) for member in pair))
    if done >= _CONTROLS:
        return []
    heads = {scene.topology.switch[member]: member for member in reversed(good) if member in scene.topology.switch}
    ring = [heads[name] for name in sorted(heads)][: _QUIET_PAIRS // 2]
    far = list(itertools.pairwise(ring)) if len(ring) > 1 and not scene.topology.rail else []
    return near[:_CONTROLS] + far


def _wanted(scene: _Scene) -> list[Pair]:
    """Pairs to be measured on a quiet fabric before anything is said of them, the slowest first."""
    sides, quiet = scene.sides, scene.quiet_pairs
    wanted: dict[frozenset[int], Pair] = {}
    cuts = find_cuts(sides, scene.topology)
    for cut in cuts:
        confirmed = {end for cell in cut.confirmed for end in (cell.source, cell.target)}
        cells = [cell for cell in cut.cells if not cell.quiet and confirmed.isdisjoint((cell.source, cell.target))]
        for cell in cells[: PARTNERS + 1 - len(cut.confirmed)]:
            wanted[frozenset((cell.source, cell.target))] = (cell.source, cell.target)
    waiting: set[Side] = set()
    for cell in sides.open_cells:
        for side in sides_of(cell.source, cell.target):
            if sides.state(side) in ("suspect", "contested") and side not in waiting:
                pairs = _separate(scene, side)
                waiting.update({side} if pairs else ())
                wanted.update((frozenset(pair), pair) for pair in pairs)
    for cell in sides.open_cells:
        if waiting.intersection(sides_of(cell.source, cell.target)) or any(cut.holds(cell) for cut in cuts):
            continue
        pair = (cell.source, cell.target)
        if not cell.quiet:
            if not any(sides.at_limit(side) for side in sides_of(*pair)):
                wanted[frozenset(pair)] = pair
                if cell.failed:
                    # It will hardly come back: what its ends reach elsewhere is needed too.
                    wanted.update((frozenset(other), other) for other in _elsewhere(scene, cell))
        elif link_fault(sides, cell) is not False:
            wanted.update((frozenset(other), other) for other in _elsewhere(scene, cell))
    return [pair for key, pair in wanted.items() if key not in quiet]


def _separate(scene: _Scene, side: Side) -> list[Pair]:
    """A suspect with two known-good partners; one that was clean while others worked with those partners again."""
    sides, member = scene.sides, side[0]
    if sides.state(side) == "contested":
        clean = [cell for cell in sides.cells[side] if not sides.rates.slow(cell) and not cell.quiet]
        return [(cell.source, cell.target) for cell in clean[:PARTNERS]] or _unlisted(scene, side)
    missing = PARTNERS - len(sides.accusing(side))
    tried = {end for pair in scene.quiet_pairs if member in pair for end in pair}
    pairs = [(member, other) for other in scene.partners(member, tried)[: max(missing, 0)]]
    # Nobody is known to be good: the pair itself, once more.
    return pairs or [(cell.source, cell.target) for cell in sides.cells.get(side, ()) if not cell.quiet][:PARTNERS]


def _unlisted(scene: _Scene, side: Side) -> list[Pair]:
    """With whom it was not slow within a group."""
    found: list[Pair] = []
    quiet = scene.quiet_pairs
    for group in scene.rates.groups:
        if side[0] in group.members and group.gbps is not None:
            told = {
                each.target if side[1] == "send" else each.source
                for each in group.slow
                if side in sides_of(each.source, each.target)
            }
            found += [(side[0], other) for other in group.members if other != side[0] and other not in told]
    return [pair for pair in found if frozenset(pair) not in quiet][:PARTNERS]


def _among_the_bad(scene: _Scene) -> list[Pair]:
    """Bad members with one another: those that are clean there are behind something that all of them share."""
    if len(scene.order) <= ALL_PAIRS:
        return []
    bad = [member for member in scene.order if scene.sides.bad(member) and member not in scene.sides.broken]
    known = {frozenset(key) for key in scene.rates.cells}
    steps = range(1, min(_NEIGHBOURS, len(bad) - 1) + 1)
    pairs = [(member, bad[(index + step) % len(bad)]) for index, member in enumerate(bad) for step in steps]
    return [pair for pair in {frozenset(pair): pair for pair in pairs}.values() if frozenset(pair) not in known]


def _elsewhere(scene: _Scene, cell: Cell) -> list[Pair]:
    """What both ends of a slow link reach with another known-good partner, on a quiet fabric too."""
    found = []
    for side in sides_of(cell.source, cell.target):
        mine = [c for c in scene.sides.cells.get(side, ()) if c.quiet and not scene.sides.rates.slow(c)]
        if not mine:
            ends = {cell.source, cell.target}
            tried = {end for pair in scene.quiet_pairs if side[0] in pair for end in pair}
            found += [(side[0], other) for other in scene.partners(side[0], ends | tried)[:1]]
    return found


def _sieve(scene: _Scene, wanted: Sequence[Pair]) -> Round | None:
    """Too many to measure one by one: disjoint ones of them, fewer at once than ever before for each."""
    busy: set[int] = set()
    pairs = []
    for pair in wanted:
        if busy.isdisjoint(pair):
            busy.update(pair)
            pairs.append(pair)
    turns = min(len(pairs), _MOST_TURNS)
    at_once = -(-len(pairs) // turns)
    cells = scene.rates.cells
    fresh = tuple(pair for pair in pairs if pair not in cells or cells[pair].at_once > 2 * at_once)
    if not fresh or at_once < 2:
        return None
    return Round(purpose="repeat", pairs=fresh, turns=min(len(fresh), turns), repeats=_QUIET_REPEATS)


def _thinner_pairs(scene: _Scene) -> Round | None:
    """The first pairs again with fewer at once, where they hid one another's faults."""
    if not scene.rates.contended:
        return None
    for pairs in scene.first_pairs:
        cells = [scene.rates.cells[pair] for pair in pairs if pair in scene.rates.cells]
        again = tuple((c.source, c.target) for c in cells if c.at_once > 1 and not scene.sides.explained(c))
        if again:
            at_once = -(-max(scene.rates.cells[pair].at_once for pair in again) // _THINNER)
            turns = -(-len(again) // at_once)
            return Round(purpose="cover", pairs=again, turns=turns, repeats=_COVER_REPEATS)
    return None


def _in_groups(scene: _Scene) -> Round | None:
    """All other links of a large fleet: groups without the dead. Who is slow stays in, for all to see with whom."""
    if len(scene.order) <= ALL_PAIRS or len(set(scene.topology.rail.values())) > 1:
        return None
    tried = [(set(group.members), group.gbps is not None) for group in scene.observations.groups]
    for groups in _planned_groups(scene):
        missing = tuple(group for group in groups if len(group) > 1 and not _was_tried(group, tried))
        if missing:
            return Round(purpose="cover", groups=missing, repeats=_repeats(scene.rates))
    ends = sorted(
        {end for cell in _dead_links(scene) for end in (cell.source, cell.target) if not scene.sides.bad(end)}
    )
    known = {frozenset(key) for key in scene.rates.cells}
    pairs = [pair for pairs in circle(ends) for pair in pairs if frozenset(pair) not in known] if ends else []
    if pairs:
        return Round(purpose="cover", pairs=tuple(pairs), turns=len(pairs), repeats=_QUIET_REPEATS)
    return None


def _dead_links(scene: _Scene) -> list[Cell]:
    return [cell for cell in scene.rates.cells.values() if cell.quiet and cell.failed]


def _planned_groups(scene: _Scene) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Rounds of groups that together hold every two members that are not dead."""
    dead = _dead_links(scene)
    for groups in cover_groups(scene.order, scene.group_size):
        left = [tuple(member for member in group if member not in scene.dead) for group in groups]
        # With a dead link inside a group fails for sure: one end of it at a time.
        apart = [without_dead_links(group, dead) for group in left]
        for turn in range(max(map(len, apart), default=0)):
            yield tuple(parts[turn] for parts in apart if turn < len(parts))


def _was_tried(members: Sequence[int], tried: Sequence[tuple[set[int], bool]]) -> bool:
    """Within a group that passed, or by themselves."""
    wanted = set(members)
    return any(wanted <= done if passed else wanted == done for done, passed in tried)


def _thinner_groups(scene: _Scene) -> Round | None:
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
    found = Round(purpose="cover", groups=tuple(disjoint), turns=_MOST_TURNS, repeats=_repeats(scene.rates))
    useful = tuple(
        sorted(members for members, at_once in again if members in disjoint and 2 * found.at_once <= at_once)
    )
    return replace(found, groups=useful) if useful else None


def _repeats(rates: Rates) -> int:
    """So many transfers a figure that a healthy one misses the limit at 4 sigma: of 31,000 one."""
    wanted = (4 * 1.2533 * rates.sigma / max(1 - rates.limit, 0.02)) ** 2
    return min(_MOST_REPEATS, max(5, math.ceil(wanted) | 1))
