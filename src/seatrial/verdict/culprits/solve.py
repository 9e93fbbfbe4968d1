"""From observations to culprits. Pure: the same observations in any order give the same diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from seatrial.verdict.culprits.cover import most_rounds
from seatrial.verdict.culprits.cuts import Cut, find_cuts, name_cuts
from seatrial.verdict.culprits.others import judge_alone
from seatrial.verdict.culprits.rates import Rates, gather
from seatrial.verdict.culprits.records import (
    Cell,
    Diagnosis,
    Direction,
    GroupResult,
    Limits,
    MemberKind,
    Named,
    Observations,
    Topology,
)
from seatrial.verdict.culprits.sides import PARTNERS, Sides, both_sides, sides_of, weigh

__all__ = ["ENOUGH_REPEATS", "link_fault", "solve", "uncovered"]

_NO_LIMITS = Limits()
_MOST_LINKS = 8
_HUB = 3
"""So many slow links of one member are the member's."""
_OWN = 2
"""At least so many of them with members that are no such hub themselves, and not bad."""
_SIGMAS = 3
"""A link that is nearer to the limit than so much of its noise is measured again."""
ENOUGH_REPEATS = 45


def solve(observations: Observations, topology: Topology, limits: Limits = _NO_LIMITS) -> Diagnosis:
    """Name who is at fault, and say what could not be told.

    Bandwidths and latencies are judged apart, each against its own reference. Raises ValueError for a result of a
    member that the topology does not have.
    """
    alone = judge_alone(observations.alone, topology)
    broken = {member for each in alone for member in each.members}
    told, told_remain = _witnesses(observations, topology)
    diagnosis = _solve_rates(observations, topology, limits, broken, latency=False)
    if any(each.latency_s is not None for each in observations.pairs):
        late = _solve_rates(observations, topology, limits, broken, latency=True)
        known = {(each.kind, each.members) for each in diagnosis.culprits}
        diagnosis = replace(
            diagnosis,
            culprits=diagnosis.culprits + tuple(c for c in late.culprits if (c.kind, c.members) not in known),
            unconfirmed=diagnosis.unconfirmed + late.unconfirmed,
            remains=diagnosis.remains + tuple(text for text in late.remains if text not in diagnosis.remains),
        )
    return replace(
        diagnosis,
        culprits=(*alone, *told, *diagnosis.culprits),
        remains=(*told_remain, *diagnosis.remains),
    )


def _witnesses(observations: Observations, topology: Topology) -> tuple[tuple[Named, ...], tuple[str, ...]]:
    if not (observations.digests or observations.phases):
        return (), ()
    from seatrial.verdict.culprits.witnesses import judge_digests, judge_phases

    bits, bits_remain = judge_digests(observations.digests, topology)
    hung, hung_remain = judge_phases(observations.phases, topology)
    return bits + hung, bits_remain + hung_remain


def _solve_rates(
    observations: Observations, topology: Topology, limits: Limits, broken: Iterable[int], *, latency: bool
) -> Diagnosis:
    rates = gather(observations, topology, limits, latency=latency)
    if not rates.cells and not rates.groups:
        return Diagnosis()
    sides = weigh(rates, broken)
    cuts = find_cuts(sides, topology)
    shared = name_cuts(cuts, topology)
    named_cuts = tuple(cut for cut in cuts if any(cell in each.evidence for each in shared for cell in cut.cells))
    members = _members(sides, topology)
    links, unconfirmed = _links(sides, named_cuts, topology)
    links = _hubs(links, topology, {end for each in members for end in each.members})
    # What else is slow with a member that answers for several links needs no other answer.
    hubs = {end for each in links if each.kind == topology.kind for end in each.members}
    unconfirmed = tuple(cell for cell in unconfirmed if hubs.isdisjoint((cell.source, cell.target)))
    culprits = [*_together(members, topology), *shared, *links, *_whole(rates, limits, latency)]
    silent = {member for each in links if hubs.issuperset(each.members) for member in each.members if each.ratio == 0}
    traced, remains = _groups(rates, sides, silent)
    if len(members) > len(topology.members) / 2:
        share = f"{len(members)} of {len(topology.members)}"
        what = f"{share} are slower than the rest: two kinds of members, or a common cause"
        culprits = [Named(kind="fabric", members=topology.members, why=what), *shared]
    if observations.rounds >= most_rounds(topology):
        remains.append(f"the search was ended after {observations.rounds} rounds")
    if rates.contended and (rates.groups or any(not cell.quiet for cell in rates.cells.values())):
        remains.append("the pairs slowed one another down: what is slower than they were together was not seen")
    if not latency:
        gaps = uncovered(observations, topology, {each for culprit in members for each in culprit.members})
        if gaps:
            remains.append(gaps)
    unjudged = ""
    if limits.gbps is None:
        unjudged = "no limit was given: what is slow for all alike is not seen; there is no other peer to compare with"
    return Diagnosis(
        culprits=(*culprits, *traced),
        unconfirmed=unconfirmed,
        remains=tuple(remains),
        reference=rates.reference,
        origin=f"what healthy pairs reach, {len(rates.cells)} transfers" if rates.cells else "median of the groups",
        limit=None if rates.reference is None else rates.limit * rates.reference,
        unjudged=unjudged,
    )


def _members(sides: Sides, topology: Topology) -> list[Named]:
    """Bad sides, as members. Who failed alone was named for that."""
    found = []
    for member in topology.members:
        bad = [side for side in both_sides(member) if sides.state(side) == "bad"]
        if not bad or member in sides.broken:
            continue
        # The other direction of a dead member may have been tried with one partner only: it is no better.
        is_both = all(sides.state(side) in ("bad", "suspect") for side in both_sides(member))
        direction: Direction = "both" if is_both else bad[0][1]
        cells = [cell for side in both_sides(member) for cell in sides.accusing(side)]
        cells.sort(key=lambda cell: (cell.ratio, cell.source, cell.target))
        partners = {end for cell in cells for end in (cell.source, cell.target)} - {member}
        found.append(
            Named(
                kind=topology.kind,
                members=(member,),
                direction=direction,
                why=f"slow with {len(partners)} known-good partners, one at a time",
                ratio=cells[0].ratio,
                evidence=tuple(cells),
            )
        )
    return found


def _together(members: Sequence[Named], topology: Topology) -> list[Named]:
    """All members of one switch or rail, at least three: what they share is at fault, or each of them."""
    named = {each.members[0]: each for each in members}
    found: list[Named] = []
    for kind, labels in (("switch", topology.switch), ("rail", topology.rail)):
        for name in sorted(set(labels.values())):
            inside = tuple(sorted(member for member in topology.members if labels.get(member) == name))
            if 3 <= len(inside) < len(topology.members) and all(member in named for member in inside):
                cells = tuple(cell for member in inside for cell in named[member].evidence[:1])
                found.append(
                    Named(
                        kind="switch" if kind == "switch" else "rail",
                        members=inside,
                        name=name,
                        confidence="likely",
                        why="all its members are slow, and those of others are not",
                        ratio=min(cell.ratio for cell in cells),
                        evidence=cells,
                        inseparable=inside,
                    )
                )
                for member in inside:
                    del named[member]
    return [*named.values(), *found]


def link_fault(sides: Sides, cell: Cell) -> Literal["yes", "no", "unclear", "unknown"]:
    """Whether a slow cell on a quiet fabric is the link's own fault: both ends are good, and clearly better elsewhere.

    ``unclear``: by less than the noise allows. ``unknown``: the ends have nothing good elsewhere to hold it against.
    """
    sender, receiver = sides_of(cell.source, cell.target)
    sent, received = sides.elsewhere(sender, besides=cell), sides.elsewhere(receiver, besides=cell)
    if sent is None or received is None or sides.states_of(cell) != ("good", "good"):
        return "unknown"
    limit = sides.rates.limit * min(1.0, sent, received)
    # Measured often enough, it is what it is.
    few = cell.repeats < ENOUGH_REPEATS
    spread = sides.rates.spread(cell)
    if cell.ratio >= limit + (_SIGMAS * spread if few else 0.0):
        return "no"
    return "yes" if cell.failed or cell.ratio < limit - (_SIGMAS if few else 1) * spread else "unclear"


def _links(sides: Sides, cuts: Sequence[Cut], topology: Topology) -> tuple[list[Named], tuple[Cell, ...]]:
    """What no bad member and no cut explains: links between good ends, what is not separable, what is open."""
    clear: dict[tuple[int, int], list[Cell]] = {}
    blurred: dict[tuple[int, int], list[Cell]] = {}
    unconfirmed = []
    for cell in sides.open_cells:
        if any(cut.holds(cell) for cut in cuts):
            continue
        pair = (min(cell.source, cell.target), max(cell.source, cell.target))
        fault = link_fault(sides, cell) if cell.quiet else ""
        if fault == "yes":
            clear.setdefault(pair, []).append(cell)
        elif fault == "unknown" and not _could_tell(sides, cell, topology):
            blurred.setdefault(pair, []).append(cell)
        else:
            unconfirmed.append(cell)
    for pair in clear.keys() & blurred.keys():
        # One direction tells that it is the link; the other one has the same name.
        clear[pair] += blurred.pop(pair)
    found = [_link(pair, cells, ()) for pair, cells in sorted(clear.items())]
    for pair, cells in sorted(blurred.items()):
        suspects = {
            side[0] for cell in cells for side in sides_of(cell.source, cell.target) if sides.state(side) != "good"
        }
        found.append(_link(pair, cells, tuple(sorted(suspects))))
    return found, tuple(unconfirmed)


def _hubs(links: Sequence[Named], topology: Topology, named: set[int]) -> list[Named]:
    """Links without those of a member that has several slow ones: that one end is bad is likelier than several cables.

    Such a member is bad towards some only, or only at times. It is named by links that nobody else can answer for: in a
    pattern that one side explains as well as the other, the links stay what is named.
    """
    left, hubs = list(links), set[int]()
    while left:
        ends = Counter(end for each in left for end in each.members)
        most = max(ends.values())
        if most < _HUB:
            break
        hubs |= {end for end, number in ends.items() if number == most}
        left = [each for each in left if hubs.isdisjoint(each.members)]
    found = []
    # One that is named already needs no second name.
    for end in sorted(hubs - named):
        mine = [each for each in links if end in each.members]
        own = [each for each in mine if (hubs | named).isdisjoint({*each.members} - {end})]
        if len(own) >= _OWN:
            why = f"{len(mine)} of its links are slow, others are not: one end is likelier than {len(mine)} cables"
            found.append(_common(topology.kind, (end,), why, mine))
    told = {each.members[0] for each in found} | (hubs & named)
    left = [each for each in links if told.isdisjoint(each.members)]
    if max(len(left), len(found)) > _MOST_LINKS:
        # So many do not go bad at once: it is something that they share, and nothing is known of what.
        why = f"{len(links)} links between good ends are slow, in no pattern of a switch or rail"
        return [_common("fabric", tuple(sorted({end for each in links for end in each.members})), why, links)]
    return [*found, *left]


def _common(kind: MemberKind | Literal["fabric"], members: tuple[int, ...], why: str, links: Sequence[Named]) -> Named:
    sends = {cell.source in members for each in links for cell in each.evidence}
    return Named(
        kind=kind,
        members=members,
        direction="both" if len(members) > 1 or len(sends) > 1 else "send" if sends == {True} else "receive",
        confidence="likely",
        why=why,
        ratio=min(each.ratio or 0.0 for each in links),
        evidence=tuple(each.evidence[0] for each in links),
    )


def _link(pair: tuple[int, int], cells: Sequence[Cell], inseparable: tuple[int, ...]) -> Named:
    ways = {cell.source == pair[0] for cell in cells}
    why = (
        "slow, while both ends are good with others"
        if not inseparable
        else "slow, and its ends have no other good peer"
    )
    return Named(
        kind="link",
        members=pair,
        direction="both" if len(ways) == 2 else "send" if ways == {True} else "receive",
        confidence="likely" if inseparable else "confirmed",
        why=why,
        ratio=min(cell.ratio for cell in cells),
        evidence=tuple(cells),
        inseparable=inseparable,
    )


def _could_tell(sides: Sides, cell: Cell, topology: Topology) -> bool:
    """Whether another measurement could separate the link from its ends: there are good members left to ask."""
    ends = {cell.source, cell.target}
    asked = {frozenset((each.source, each.target)) for each in sides.rates.cells.values() if each.quiet}
    for side in sides_of(cell.source, cell.target):
        if sides.state(side) == "good" or len(sides.accusing(side)) >= PARTNERS:
            continue
        for other in topology.members:
            if other not in ends and sides.cleared(other) and frozenset((side[0], other)) not in asked:
                return True
    return False


def _whole(rates: Rates, limits: Limits, latency: bool) -> list[Named]:
    """Everything is slow alike: only a limit from outside can tell."""
    if latency or limits.gbps is None or rates.reference is None or rates.reference >= limits.gbps:
        return []
    why = f"even healthy pairs reach {rates.reference:.3g} GB/s of {limits.gbps:.3g} ({limits.origin or 'limit'})"
    members = tuple(sorted({member for key in rates.cells for member in key}))
    ratio = rates.reference / limits.gbps
    if len(members) == 2:
        why = f"{why}, and nobody else is there"
        return [Named(kind="link", members=members, confidence="likely", why=why, ratio=ratio, inseparable=members)]
    return [Named(kind="fabric", members=members, why=why, ratio=ratio)]


def _groups(rates: Rates, sides: Sides, silent: set[int]) -> tuple[list[Named], list[str]]:
    """Failed groups: explained by who is dead or silent to some, by nobody though all pairs are clean, or not yet."""
    found: list[Named] = []
    remains: list[str] = []
    for group in rates.groups:
        members = set(group.members)
        if group.gbps is not None or any(map(sides.dead, members)) or not members.isdisjoint(silent):
            continue
        if any(key[0] in members and key[1] in members for key, c in rates.cells.items() if c.quiet and c.failed):
            continue
        reason = group.failed or "no figure was measured"
        if _all_clean(group, rates):
            why = f"the group failed ({reason}) although every pair in it is clean: it takes many at once to show"
            found.append(Named(kind="fabric", members=tuple(sorted(members)), confidence="likely", why=why))
        else:
            remains.append(f"a group of {len(members)} failed ({reason}), and not every pair in it was measured since")
    return found, remains


def _all_clean(group: GroupResult, rates: Rates) -> bool:
    clean = dict.fromkeys(group.members, 0)
    bit = {member: 1 << index for index, member in enumerate(group.members)}
    for other in rates.groups:
        if other.gbps is not None:
            inside = sum(bit[member] for member in other.members if member in bit)
            for member in other.members:
                if member in bit:
                    clean[member] |= inside
    for (source, target), cell in rates.cells.items():
        if source in bit and target in bit and not rates.slow(cell):
            clean[source] |= bit[target]
            clean[target] |= bit[source]
    everybody = sum(bit.values())
    return all(clean[member] | bit[member] == everybody for member in group.members)


def uncovered(observations: Observations, topology: Topology, named: Iterable[int]) -> str:
    """How many pairs of members were in no measurement, in words; empty when none. Those named do not count."""
    apart = set(named)
    members = [member for member in topology.members if member not in apart]
    rails = topology.rail
    bit = {member: 1 << index for index, member in enumerate(members)}
    seen = dict(bit)
    for pair in observations.pairs:
        if pair.source in bit and pair.target in bit:
            seen[pair.source] |= bit[pair.target]
            seen[pair.target] |= bit[pair.source]
    for group in observations.groups:
        if group.gbps is not None:
            inside = sum(bit[member] for member in group.members if member in bit)
            for member in group.members:
                if member in bit:
                    seen[member] |= inside
    all_of: dict[str | None, int] = {}
    for member in members:
        all_of[rails.get(member)] = all_of.get(rails.get(member), 0) | bit[member]
    missing = sum((all_of[rails.get(member)] & ~seen[member]).bit_count() for member in members) // 2
    return f"{missing} pairs were not measured" if missing else ""
