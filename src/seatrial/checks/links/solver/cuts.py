"""Cuts: two sets of members between which everything is slow, as behind a slow switch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from seatrial.checks.links.solver.endpoints import MIN_PARTNERS, Endpoints
from seatrial.checks.links.solver.rates import LinkRates
from seatrial.checks.links.solver.records import DirectedLink, Suspect, Topology
from seatrial.evidence.statistics import median

_SHARE = 0.9
"""The share of the transfers across a cut that must be slow; the others may be clean by chance."""
_MOST_BLOCKS = 8
_MOST_LEFT_OUT = 64
"""The largest number of members of which each is left out once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Two sets of members between which all transfers are slow, while those within each set are not."""

    near: frozenset[int]
    far: frozenset[int]
    links: tuple[DirectedLink, ...]
    """The slow links across, the slowest first."""
    apart: tuple[DirectedLink, ...] = ()
    """Links across that are slow too, but not as these are."""

    def holds(self, link: DirectedLink) -> bool:
        """Return True if the link crosses the cut, and is slow as the others that do."""
        if link in self.apart:
            return False
        one_way = link.source in self.near and link.target in self.far
        return one_way or (link.target in self.near and link.source in self.far)

    @property
    def sure(self) -> bool:
        """Whether enough pairs confirm the cut and all of them are slow alike."""
        enough = max(min(MIN_PARTNERS + 1, len(self.near), len(self.far)) - bool(self.apart), MIN_PARTNERS)
        return len(self.confirmed) >= enough and self.is_alike

    @property
    def is_alike(self) -> bool:
        """Whether the pairs that confirm the cut, if any do yet, are slow alike."""
        ratios = [link.ratio for link in self.confirmed]
        return not ratios or _are_alike(ratios)

    @property
    def num_odd(self) -> int:
        """The number of links without contention that are not slow as most of them are."""
        ratios = [link.ratio for link in self.links if link.uncontended]
        middle = median(ratios) if ratios else 0.0
        return sum(not _are_alike([ratio, middle]) for ratio in ratios)

    @property
    def confirmed(self) -> tuple[DirectedLink, ...]:
        """The links that are slow without contention and have no member in common."""
        uncontended = [link for link in self.links if link.uncontended]
        degree = Counter(end for link in uncontended for end in (link.source, link.target))
        # Links of members with few others come first, which leaves the most links for the rest.
        uncontended.sort(key=lambda link: sorted((degree[link.source], degree[link.target])))
        used: set[int] = set()
        found = []
        for link in uncontended:
            if used.isdisjoint((link.source, link.target)):
                used |= {link.source, link.target}
                found.append(link)
        return tuple(found)


def find_cuts(endpoints: Endpoints, topology: Topology) -> tuple[Cut, ...]:
    """Find where the unexplained slow links fill everything between two sets of at least two members.

    One member behind a slow switch may be slow by itself too, or make others believe that it is: then its links fill no
    cut, or are not alike. So each member is left out once, and the cut that has the most links counts.
    """
    open_links = [link for link in endpoints.open_links if "contested" not in endpoints.states_of(link)]
    if len(open_links) < 4:
        return ()
    measured = _measured(endpoints, topology, open_links)
    members = [member for member in topology.members if not endpoints.bad(member)]
    cuts = _cuts_of(measured, open_links, members)
    if (cuts and all(cut.is_alike for cut in cuts)) or len(members) > _MOST_LEFT_OUT:
        return cuts
    found = {}
    for member in members:
        without = _cuts_of(measured, open_links, [other for other in members if other != member])
        if without and all(cut.is_alike for cut in without):
            found[member] = without
    if not found:
        return cuts

    def odd_then_few(member: int) -> tuple[int, int]:
        return sum(cut.num_odd for cut in found[member]), -sum(len(cut.links) for cut in found[member])

    chosen = min(found, key=odd_then_few)
    return tuple(_rejoined(cut, chosen, open_links) for cut in found[chosen])


def _cuts_of(measured: _Measured, slow: Iterable[DirectedLink], members: Sequence[int]) -> tuple[Cut, ...]:
    """Return the cuts between some members."""
    blocks = _components(measured, members)
    if len(blocks) > _MOST_BLOCKS:
        # Too little was measured so far to see which members reach one another.
        return ()
    blocks = [block for block in blocks if len(block) > 1]
    return tuple(cut for near, far in combinations(blocks, 2) if (cut := _cut(measured, slow, near, far)) is not None)


def _rejoined(cut: Cut, member: int, slow: Iterable[DirectedLink]) -> Cut:
    """Return the cut with a member that was left out on the side with which it is not slow, if at least half of its
    links across are slow as those of the cut are. The others stay apart."""
    ratios = [link.ratio for link in cut.confirmed]
    mine = {
        link: other
        for link in slow
        for other in ({link.source, link.target} - {member})
        if len({link.source, link.target, member}) == 2
    }
    for near, far in ((cut.near, cut.far), (cut.far, cut.near)):
        across = [link for link, other in mine.items() if other in far]
        alike = [link for link in across if _are_alike([link.ratio, *ratios])]
        if near.isdisjoint(mine.values()) and 2 * len({mine[link] for link in alike}) >= len(far):
            links = sorted((*cut.links, *alike), key=lambda link: (link.ratio, link.source, link.target))
            apart = tuple(link for link in across if link not in alike)
            return Cut(near=near | {member}, far=far, links=tuple(links), apart=apart)
    return cut


def name_cuts(cuts: Iterable[Cut]) -> tuple[Suspect, ...]:
    """Return the switch behind each confirmed cut: its members are the smaller set, or all if both are equal."""
    found = []
    for cut in cuts:
        if cut.sure:
            small, large = sorted((cut.near, cut.far), key=len)
            links = sorted(cut.confirmed, key=lambda link: (link.ratio, link.source))
            found.append(
                Suspect(
                    kind="switch",
                    members=tuple(sorted(small if len(small) < len(large) else small | large)),
                    why="everything between two halves is slow, nothing within",
                    ratio=links[0].ratio,
                    evidence=tuple(links),
                )
            )
    return tuple(found)


def join_switches(
    members: Iterable[Suspect], switches: Iterable[Suspect], rates: LinkRates
) -> tuple[list[Suspect], tuple[Suspect, ...]]:
    """Return the suspects, with a member that is slow as the members of a switch are as one of these.

    It has only been paired with members beyond the switch so far. Among those of the switch it was never slow, although
    it was in groups with them: a member that is slow by itself would have been.
    """
    left, found = list(members), list(switches)
    if not (left and found):
        return left, tuple(found)
    groups = [set(group.members) for group in rates.groups if group.gbps is not None]
    groups_of: defaultdict[int, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        for member in group:
            groups_of[member].append(place)
    slow_with: defaultdict[int, set[int]] = defaultdict(set)
    for (source, target), link in rates.links.items():
        if rates.slow(link):
            slow_with[source].add(target)
            slow_with[target].add(source)
    for index, switch in enumerate(found):
        inside, others = set(switch.members), list[Suspect]()
        here = [inside & group for group in groups]
        for suspect in left:
            (member,) = suspect.members
            is_alike = _are_alike([link.ratio for link in (*suspect.evidence, *switch.evidence)])
            # As many of each group as are needed.
            together = {other for place in groups_of[member] for other in islice(here[place], MIN_PARTNERS)}
            if is_alike and len(together) >= MIN_PARTNERS and inside.isdisjoint(slow_with[member]):
                inside.add(member)
                for place in groups_of[member]:
                    here[place].add(member)
            else:
                others.append(suspect)
        left = others
        found[index] = replace(switch, members=tuple(sorted(inside)))
    return left, tuple(found)


def _are_alike(ratios: Sequence[float]) -> bool:
    return max(ratios) <= 1.25 * min(ratios) + 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """All transfers that were measured, as bit sets."""

    bit: dict[int, int]
    """The bit of each member, ascending."""
    sent: dict[int, int]
    """Member -> the bits of the members to which its transfers were measured, in a group or as a pair."""
    met: dict[int, int]
    """The same, and the members whose transfers to it were measured."""
    clean: dict[int, int]
    """Member -> the bits of the members to which it sent cleanly without contention."""
    slow: dict[int, int]
    """Member -> the bits of the members with which it has an unexplained slow link, in either direction."""


def _measured(endpoints: Endpoints, topology: Topology, open_links: Iterable[DirectedLink]) -> _Measured:
    bit = {member: 1 << index for index, member in enumerate(sorted(topology.members))}
    sent, clean, slow = (dict.fromkeys(bit, 0) for _ in range(3))
    for group in endpoints.rates.groups:
        if group.gbps is not None:
            inside = sum(bit[member] for member in group.members)
            for member in group.members:
                sent[member] |= inside & ~bit[member]
    met = dict(sent)
    for (source, target), link in endpoints.rates.links.items():
        sent[source] |= bit[target]
        met[source] |= bit[target]
        met[target] |= bit[source]
        if link.uncontended and not endpoints.rates.slow(link):
            clean[source] |= bit[target]
    for link in open_links:
        slow[link.source] |= bit[link.target]
        slow[link.target] |= bit[link.source]
    return _Measured(bit=bit, sent=sent, met=met, clean=clean, slow=slow)


def _cut(measured: _Measured, slow: Iterable[DirectedLink], near: frozenset[int], far: frozenset[int]) -> Cut | None:
    """Return the cut between two sets; None if too few links across are slow, or one of them was clean."""
    if min(len(near), len(far)) < 2:
        return None
    kept: list[DirectedLink] = []
    # One direction alone may be slow. No link across it may be clean without contention.
    for start, end in ((near, far), (far, near)):
        across = [link for link in slow if link.source in start and link.target in end]
        there = sum(measured.bit[member] for member in end)
        crossed = sum((measured.sent[member] & there).bit_count() for member in start)
        refuted = any(measured.clean[member] & there for member in start)
        if not refuted and len(across) >= _SHARE * crossed:
            kept += across
    if len({frozenset((link.source, link.target)) for link in kept}) < min(3, len(near) * len(far)):
        return None
    kept.sort(key=lambda link: (link.ratio, link.source, link.target))
    return Cut(near=near, far=far, links=tuple(kept))


def _components(measured: _Measured, members: Iterable[int]) -> list[frozenset[int]]:
    """Return the sets of members that reach each other over pairs that are clean in both directions."""
    by_bit = {measured.bit[member]: member for member in sorted(members)}
    left, blocks = sum(by_bit), []
    while left:
        reached, todo = set[int](), left & -left
        left ^= todo
        while todo:
            first = todo & -todo
            member = by_bit[first]
            reached.add(member)
            new = measured.met[member] & left & ~measured.slow[member]
            left ^= new
            todo = todo ^ first | new
        blocks.append(frozenset(reached))
    return sorted(blocks, key=lambda block: (-len(block), min(block)))
