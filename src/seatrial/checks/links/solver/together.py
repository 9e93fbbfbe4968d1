"""Groups and clean pairs by their members: a fleet has thousands of them, and few are of one member."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from seatrial.checks.links.solver.rates import LinkRates
from seatrial.checks.links.solver.records import DirectedLink, GroupResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The groups, and which members were clean together."""

    failed: Mapping[frozenset[int], Sequence[GroupResult]]
    """The failures of each group that failed, by its members."""
    passed: Mapping[int, Sequence[frozenset[int]]]
    """Member -> the groups with it that passed."""
    bit: Mapping[int, int]
    clean: Mapping[int, int]
    """Member -> the bits of those with which it was clean as a pair, or in a group that passed."""

    def has_passed(self, members: Set[int]) -> bool:
        """Return True if these members, together or among more, passed as a group."""
        return any(members <= other for other in self.passed.get(next(iter(members)), ()))

    def all_clean(self, members: Collection[int]) -> bool:
        """Return True if every two members were clean as a pair, or were together in a group that passed."""
        everybody = sum(self.bit[member] for member in members)
        return all(not everybody & ~(self.clean[member] | self.bit[member]) for member in members)


def together(rates: LinkRates) -> Together:
    """Return the groups by their members."""
    failed: dict[frozenset[int], list[GroupResult]] = {}
    passed: defaultdict[int, list[frozenset[int]]] = defaultdict(list)
    ends = {end for key in rates.links for end in key} | {end for group in rates.groups for end in group.members}
    bit = {member: 1 << index for index, member in enumerate(sorted(ends))}
    clean = dict.fromkeys(bit, 0)
    for group in rates.groups:
        members = frozenset(group.members)
        if group.gbps is None:
            failed.setdefault(members, []).append(group)
            continue
        inside = sum(bit[member] for member in members)
        for member in members:
            passed[member].append(members)
            clean[member] |= inside
    for (source, target), link in rates.links.items():
        if not rates.slow(link):
            clean[source] |= bit[target]
            clean[target] |= bit[source]
    return Together(failed=failed, passed=passed, bit=bit, clean=clean)


def of_sources(links: Iterable[DirectedLink]) -> Mapping[int, Set[int]]:
    """Return sender -> receivers of some links."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for link in links:
        found[link.source].add(link.target)
    return found


def holds_one(members: Set[int], targets: Mapping[int, Set[int]]) -> bool:
    """Return True if both ends of a link are among the members. ``targets``: as ``of_sources`` returns them."""
    return any(not targets[member].isdisjoint(members) for member in members & targets.keys())


def without_parts(groups: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Return the groups that are not a part of another one of them."""
    known = list(groups)
    of_member: defaultdict[int, list[frozenset[int]]] = defaultdict(list)
    for members in known:
        for member in members:
            of_member[member].append(members)
    return [members for members in known if not any(members < other for other in of_member[next(iter(members))])]


def disjoint(groups: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return those of the groups that can be measured at once, the first ones first."""
    taken = set[int]()
    chosen = []
    for candidate in dict.fromkeys(groups):
        if taken.isdisjoint(candidate):
            taken.update(candidate)
            chosen.append(candidate)
    return tuple(chosen)
