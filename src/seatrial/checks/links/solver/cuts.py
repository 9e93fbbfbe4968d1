"""Cuts: two sets of members between which everything is slow, as behind a slow switch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from seatrial.checks.links.solver.endpoints import MIN_PARTNERS, Endpoints
from seatrial.checks.links.solver.rates import LinkRates
from seatrial.checks.links.solver.records import DirectedLink, Suspect, Topology

_SHARE = 0.9
"""The share of the transfers across a cut that must be slow; the others may be clean by chance."""
_MOST_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Two sets of members between which all transfers are slow, while those within each set are not."""

    near: frozenset[int]
    far: frozenset[int]
    links: tuple[DirectedLink, ...]
    """The slow links across, the slowest first."""

    def holds(self, link: DirectedLink) -> bool:
        """Return True if the link crosses the cut."""
        one_way = link.source in self.near and link.target in self.far
        return one_way or (link.target in self.near and link.source in self.far)

    @property
    def sure(self) -> bool:
        """Whether enough pairs confirm the cut and all of them are slow alike."""
        ratios = [link.ratio for link in self.confirmed]
        enough = min(MIN_PARTNERS + 1, len(self.near), len(self.far))
        return len(ratios) >= enough and _are_alike(ratios)

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
    """Find where the unexplained slow links fill everything between two sets of at least two members."""
    open_links = [link for link in endpoints.open_links if "contested" not in endpoints.states_of(link)]
    if len(open_links) < 4:
        return ()
    members = [member for member in topology.members if not endpoints.bad(member)]
    blocks = _components(endpoints, open_links, members)
    if len(blocks) > _MOST_BLOCKS:
        # Too little was measured so far to see which members reach one another.
        return ()
    blocks = [block for block in blocks if len(block) > 1]
    home = {member: index for index, block in enumerate(blocks) for member in block}
    touched = {
        (min(home[link.source], home[link.target]), max(home[link.source], home[link.target]))
        for link in open_links
        if link.source in home and link.target in home and home[link.source] != home[link.target]
    }
    measured = _measured(endpoints)
    return tuple(
        cut
        for index, other in sorted(touched)
        if (cut := _cut(measured, open_links, blocks[index], blocks[other])) is not None
    )


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
    for index, switch in enumerate(found):
        inside = set(switch.members)
        for suspect in list(left):
            (member,) = suspect.members
            is_alike = _are_alike([link.ratio for link in (*suspect.evidence, *switch.evidence)])
            together = {
                other
                for group in rates.groups
                if group.gbps is not None and member in group.members
                for other in inside.intersection(group.members)
            }
            was_slow = any(
                member in key and not inside.isdisjoint(key) and rates.slow(link) for key, link in rates.links.items()
            )
            if is_alike and len(together) >= MIN_PARTNERS and not was_slow:
                left.remove(suspect)
                inside.add(member)
        found[index] = replace(switch, members=tuple(sorted(inside)))
    return left, tuple(found)


def _are_alike(ratios: Sequence[float]) -> bool:
    return max(ratios) <= 1.25 * min(ratios) + 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """All transfers that were measured, as bit sets."""

    bit: dict[int, int]
    sent: dict[int, int]
    """Member -> the bits of the members to which its transfers were measured, in a group or as a pair."""
    clean: tuple[tuple[int, int], ...]
    """The links that were clean without contention."""


def _measured(endpoints: Endpoints) -> _Measured:
    groups = [group for group in endpoints.rates.groups if group.gbps is not None]
    members = sorted({end for key in endpoints.rates.links for end in key}.union(*(group.members for group in groups)))
    bit = {member: 1 << index for index, member in enumerate(members)}
    sent = dict.fromkeys(members, 0)
    for group in groups:
        inside = sum(bit[member] for member in group.members)
        for member in group.members:
            sent[member] |= inside & ~bit[member]
    for source, target in endpoints.rates.links:
        sent[source] |= bit[target]
    clean = (key for key, link in endpoints.rates.links.items() if link.uncontended and not endpoints.rates.slow(link))
    return _Measured(bit=bit, sent=sent, clean=tuple(clean))


def _cut(measured: _Measured, slow: Iterable[DirectedLink], near: frozenset[int], far: frozenset[int]) -> Cut | None:
    """Return the cut between two sets; None if too few links across are slow, or one of them was clean."""
    if min(len(near), len(far)) < 2:
        return None
    kept: list[DirectedLink] = []
    # One direction alone may be slow. No link across it may be clean without contention.
    for start, end in ((near, far), (far, near)):
        across = [link for link in slow if link.source in start and link.target in end]
        there = sum(measured.bit.get(member, 0) for member in end)
        crossed = sum((measured.sent.get(member, 0) & there).bit_count() for member in start)
        refuted = any(source in start and target in end for source, target in measured.clean)
        if not refuted and len(across) >= _SHARE * crossed:
            kept += across
    if len({frozenset((link.source, link.target)) for link in kept}) < min(3, len(near) * len(far)):
        return None
    kept.sort(key=lambda link: (link.ratio, link.source, link.target))
    return Cut(near=near, far=far, links=tuple(kept))


def _components(endpoints: Endpoints, slow: Iterable[DirectedLink], members: Sequence[int]) -> list[frozenset[int]]:
    """Return the sets of members that reach each other over pairs that are clean in both directions."""
    slow_with: dict[int, set[int]] = {}
    for link in slow:
        slow_with.setdefault(link.source, set()).add(link.target)
        slow_with.setdefault(link.target, set()).add(link.source)
    near: dict[int, set[int]] = {member: set() for member in members}
    for source, target in endpoints.rates.links:
        if source in near and target in near:
            near[source].add(target)
            near[target].add(source)
    groups = [frozenset(group.members) for group in endpoints.rates.groups if group.gbps is not None]
    left, blocks = set(members), []
    while left:
        reached, todo = set[int](), [min(left)]
        while todo:
            member = todo.pop()
            reached.add(member)
            left.discard(member)
            reach = near[member] & left
            for group in groups:
                if member in group:
                    reach |= left & group
            new = reach - slow_with.get(member, set())
            left -= new
            todo += new
        blocks.append(frozenset(reached))
    return sorted(blocks, key=lambda block: (-len(block), min(block)))
