"""What to measure next. Pure and without memory: each call works out from the observations what is missing."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from seatrial.verdict.circle import Pair
from seatrial.verdict.culprits.cover import (
    ALL_PAIRS,
    ONE_BY_ONE,
    cover_pairs,
    most_rounds,
    shuffled,
)
from seatrial.verdict.culprits.cuts import find_cuts
from seatrial.verdict.culprits.group_rounds import in_groups, thinner_groups
from seatrial.verdict.culprits.others import judge_alone
from seatrial.verdict.culprits.rates import MOST_REPEATS, gather
from seatrial.verdict.culprits.records import Cell, Limits, Observations, Round, Topology
from seatrial.verdict.culprits.scene import Scene
from seatrial.verdict.culprits.sides import MANY, PARTNERS, Side, sides_of, weigh
from seatrial.verdict.culprits.solve import ENOUGH_REPEATS, link_fault
from seatrial.verdict.culprits.trace import trace

__all__ = ["next_round"]

_COVER_REPEATS = 9
_QUIET_REPEATS = 15
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


def next_round(
    observations: Observations,
    topology: Topology,
    limits: Limits = _NO_LIMITS,
    *,
    seed: int = 0,
) -> Round | None:
    """What to measure next; None when nothing more would change the diagnosis, or after ``most_rounds``.

    Ask, measure, take ``observations.after(...)``, and ask again. A pair that gave no result has to be reported as
    failed, else it is asked for again.
    """
    if len(topology.members) < 2 or observations.rounds >= most_rounds(topology):
        return None
    broken = {member for each in judge_alone(observations.alone, topology) for member in each.members}
    order = shuffled(topology, seed)
    plan = cover_pairs(topology, [member for member in order if member not in broken])
    first = _first_pairs(plan, observations, few=len(order) <= ONE_BY_ONE)
    if first is not None:
        return first
    all_steps = (_once_more, trace_groups, _suspects, _thinner_pairs, thinner_groups, in_groups)
    for latency, steps in ((False, all_steps), (True, (_once_more, _suspects, _thinner_pairs))):
        rates = gather(observations, topology, limits, latency=latency)
        sides = weigh(rates, broken)
        scene = Scene(
            observations=observations,
            latency=latency,
            topology=topology,
            rates=rates,
            sides=sides,
            order=order,
            first_pairs=plan,
            dead=frozenset(member for member in topology.members if sides.dead(member)),
        )
        for step in steps:
            found = step(scene)
            if found is not None:
                return found
        if not any(each.latency_s is not None for each in observations.pairs):
            break
    return None


def trace_groups(scene: Scene) -> Round | None:
    """Groups that failed without a word: who is inside is split until the pair is left."""
    return trace(scene.observations.groups, scene.rates, scene.sides, repeats=scene.rates.repeats)


def _first_pairs(plan: Sequence[tuple[Pair, ...]], observations: Observations, *, few: bool) -> Round | None:
    """Every pair of a small fleet, round by round; of a large one each member with one other."""
    known = {frozenset((each.source, each.target)) for each in observations.pairs}
    if few:
        alone = tuple(pair for pairs in plan for pair in pairs if frozenset(pair) not in known)
        return Round(purpose="cover", pairs=alone, turns=len(alone), repeats=_QUIET_REPEATS) if alone else None
    for pairs in plan:
        missing = tuple(pair for pair in pairs if frozenset(pair) not in known)
        if missing:
            return Round(purpose="cover", pairs=missing, repeats=_COVER_REPEATS if len(missing) > 1 else _QUIET_REPEATS)
    return None


def _once_more(scene: Scene) -> Round | None:
    """A few members were measured one pair at a time from the start: what was slow is measured a second time."""
    if len(scene.order) > ONE_BY_ONE:
        return None
    times = Counter(frozenset((each.source, each.target)) for each in scene.of_kind)
    near_limit = (1 + scene.rates.limit) / 2
    slow = {
        (min(c.source, c.target), max(c.source, c.target)) for c in scene.rates.cells.values() if c.ratio < near_limit
    }
    if scene.rates.reference and scene.rates.goal and scene.rates.reference < 1.05 * scene.rates.goal:
        slow = {(min(key), max(key)) for key in scene.rates.cells}
    pairs = tuple(sorted(pair for pair in slow if times[frozenset(pair)] <= 2))
    return Round(purpose="repeat", pairs=pairs, turns=len(pairs), repeats=MOST_REPEATS) if pairs else None


def _suspects(scene: Scene) -> Round | None:
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
    elif len(wanted) > _QUIET_PAIRS and (thinner := thinner_groups(scene)) is not None:
        return thinner
    elif len(wanted) > _QUIET_PAIRS and (sieve := _sieve(scene, wanted)) is not None:
        return sieve
    wanted = wanted[: max(0, min(_QUIET_PAIRS, 4 * _QUIET_PAIRS - asked))]
    pairs = tuple(dict.fromkeys([*wanted, *(pair for pair in controls if pair not in wanted)]))
    if not pairs:
        return None
    return Round(purpose="repeat", pairs=pairs, turns=len(pairs), repeats=_QUIET_REPEATS)


def _controls(scene: Scene) -> list[Pair]:
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


def _wanted(scene: Scene) -> list[Pair]:
    """Pairs to be measured on a quiet fabric before anything is said of them, the slowest first."""
    sides, quiet = scene.sides, scene.quiet_pairs
    wanted: dict[frozenset[int], Pair] = {}
    again: dict[frozenset[int], Pair] = {}
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
    asked = Counter[Side]()
    for cell in sides.open_cells:
        mine = sides_of(cell.source, cell.target)
        if waiting.intersection(mine) or any(cut.holds(cell) for cut in cuts):
            continue
        pair = (cell.source, cell.target)
        # A member at the limit itself has many such links: a few of them tell as much as all.
        if any(asked[side] >= MANY for side in mine):
            continue
        if not cell.quiet:
            if not any(sides.at_limit(side) for side in mine):
                asked.update(mine)
                wanted[frozenset(pair)] = pair
                if cell.failed:
                    # It will hardly come back: what its ends reach elsewhere is needed too.
                    wanted.update((frozenset(other), other) for other in _elsewhere(scene, cell))
            continue
        fault = link_fault(sides, cell)
        if fault == "unclear" and cell.repeats < ENOUGH_REPEATS:
            asked.update(mine)
            # What it is held against may have been luck as well.
            sides_there = (sides.others(side, besides=cell) for side in mine)
            best = (max(others, key=lambda c: c.ratio) for others in sides_there)
            again.update((frozenset((c.source, c.target)), (c.source, c.target)) for c in (cell, *best))
        elif fault != "no":
            wanted.update((frozenset(other), other) for other in _elsewhere(scene, cell))
    return list((again | {key: pair for key, pair in wanted.items() if key not in quiet}).values())


def _separate(scene: Scene, side: Side) -> list[Pair]:
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


def _unlisted(scene: Scene, side: Side) -> list[Pair]:
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


def _among_the_bad(scene: Scene) -> list[Pair]:
    """Bad members with one another: those that are clean there are behind something that all of them share."""
    if len(scene.order) <= ALL_PAIRS:
        return []
    bad = [member for member in scene.order if scene.sides.bad(member) and member not in scene.sides.broken]
    known = {frozenset(key) for key in scene.rates.cells}
    steps = range(1, min(_NEIGHBOURS, len(bad) - 1) + 1)
    pairs = [(member, bad[(index + step) % len(bad)]) for index, member in enumerate(bad) for step in steps]
    return [pair for pair in {frozenset(pair): pair for pair in pairs}.values() if frozenset(pair) not in known]


def _elsewhere(scene: Scene, cell: Cell) -> list[Pair]:
    """What both ends of a slow link reach with another known-good partner, on a quiet fabric too."""
    found = []
    for side in sides_of(cell.source, cell.target):
        mine = [c for c in scene.sides.cells.get(side, ()) if c.quiet]
        if len(mine) <= MANY and all(map(scene.sides.rates.slow, mine)):
            ends = {cell.source, cell.target}
            tried = {end for pair in scene.quiet_pairs if side[0] in pair for end in pair}
            found += [(side[0], other) for other in scene.partners(side[0], ends | tried)[:PARTNERS]]
    return found


def _sieve(scene: Scene, wanted: Sequence[Pair]) -> Round | None:
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


def _thinner_pairs(scene: Scene) -> Round | None:
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
