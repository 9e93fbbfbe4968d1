"""The ranks that share a machine, and the machines of a fleet that differ from the rest. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit

_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInventory:
    """One node: the ranks that share its memory, its limits and its name."""

    name: str
    """The host name, with the number of the node where several machines have the same one."""
    ranks: tuple[int, ...]
    """The trial ranks on it, ascending."""
    place: str = ""
    """Where its agents joined, as the controller knows it; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines of a trial, to be found by their ranks."""

    machines: tuple[HostInventory, ...]
    """In the order of their lowest rank."""
    number_of: Mapping[int, int]
    """Rank -> number of its machine in ``machines``."""

    def of(self, ranks: Iterable[int]) -> list[HostInventory]:
        """Return the machines that have some of these ranks."""
        return [self.machines[number] for number in sorted({self.number_of[rank] for rank in ranks})]

    def among(self, ranks: Iterable[int]) -> list[HostInventory]:
        """Return the machines that have some of these ranks, with these alone."""
        own: defaultdict[int, list[int]] = defaultdict(list)
        for rank in sorted(ranks):
            own[self.number_of[rank]].append(rank)
        return [replace(self.machines[number], ranks=tuple(own[number])) for number in sorted(own)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A fleet that is not all alike."""

    majority: Hashable | None
    """The value of more than half of the machines; None: no value has that many, and no machine can be named."""
    odd: Mapping[Hashable, tuple[int, ...]]
    """The other values with their ranks, ascending; without a majority all values."""


def facts_named(evidence: Evidence, name: str) -> dict[int, Mapping[str, Any]]:
    """Return by rank the last fact of this name that is a dictionary."""
    return {
        fact.rank: fact.value
        for fact in evidence.facts
        if fact.name == name and fact.rank is not None and isinstance(fact.value, dict) and fact.rank in evidence.ranks
    }


def machines(evidence: Evidence, places: Mapping[int, Mapping[str, Any]]) -> tuple[HostInventory, ...]:
    """Return the machines with their ranks, in the order of their lowest rank.

    An agent runs on one machine, or, under an external launcher, for one rank: agents whose ranks report the same
    ``machine`` are on one machine, if the controller knows them at one place. A rank without a report is on the machine
    of its host name, if there is only one.

    Args:
        evidence: The ranks.
        places: By rank, the fact that has its ``machine``.
    """
    hosts: defaultdict[tuple[str, str], dict[int, list[int]]] = defaultdict(dict)
    for entry in evidence.ranks.values():
        place = evidence.places_of_nodes.get(entry.node_rank, "")
        hosts[entry.hostname or entry.node, place].setdefault(entry.node_rank, []).append(entry.rank)
    inventories = []
    for (_, place), agents in hosts.items():
        groups: defaultdict[object, list[int]] = defaultdict(list)
        for agent, ranks in agents.items():
            identity = next((machine for rank in ranks if (machine := places.get(rank, {}).get("machine"))), None)
            groups[agent if identity is None else str(identity)] += ranks
        if len(known := [key for key in groups if isinstance(key, str)]) == 1:
            groups = defaultdict(list, {known[0]: [rank for ranks in groups.values() for rank in ranks]})
        for ranks in groups.values():
            inventories.append(
                HostInventory(name=evidence.ranks[min(ranks)].place, ranks=tuple(sorted(ranks)), place=place)
            )
    names = Counter(machine.name for machine in inventories)
    return tuple(
        replace(machine, name=f"{machine.name} (node {evidence.ranks[machine.ranks[0]].node_rank})")
        if names[machine.name] > 1
        else machine
        for machine in sorted(inventories, key=lambda machine: machine.ranks)
    )


def fleet_of(inventories: Iterable[HostInventory]) -> Fleet:
    """Return machines so that they are found by their ranks."""
    found = tuple(inventories)
    numbers = {rank: number for number, machine in enumerate(found) for rank in machine.ranks}
    return Fleet(machines=found, number_of=numbers)


def split(values: Mapping[int, Hashable], fleet: Iterable[HostInventory]) -> Split | None:
    """Return how the fleet differs; None when all ranks have the same value, or only one has a value.

    More than half of the votes decide.
    """
    votes: defaultdict[Hashable, Fraction] = defaultdict(Fraction)
    ranks: defaultdict[Hashable, list[int]] = defaultdict(list)
    for rank, share in shares_of_votes(values, fleet).items():
        votes[values[rank]] += share
        ranks[values[rank]].append(rank)
    if len(votes) < 2:
        return None
    most = max(votes, key=lambda value: votes[value])
    majority = most if 2 * votes[most] > sum(votes.values()) else None
    odd = {value: tuple(sorted(group)) for value, group in ranks.items() if majority is None or value != majority}
    return Split(majority=majority, odd=odd)


def shares_of_votes(voters: Collection[int], fleet: Iterable[HostInventory]) -> dict[int, Fraction]:
    """Return the share of each voting rank: a machine has one vote, and so have machines that joined from one place.

    A host may claim to be any number of machines where each of its ranks has a separate agent.
    """
    machines_at: defaultdict[str | tuple[int, ...], list[list[int]]] = defaultdict(list)
    for machine in fleet:
        if here := [rank for rank in machine.ranks if rank in voters]:
            machines_at[machine.place or machine.ranks].append(here)
    return {
        rank: Fraction(1, len(here) * len(neighbors))
        for neighbors in machines_at.values()
        for here in neighbors
        for rank in here
    }


def culprit(evidence: Evidence, ranks: Collection[int], fleet: Fleet) -> Culprit:
    """Return whole machines as the culprit where all their ranks are meant, else the ranks."""
    affected = fleet.of(ranks)
    nodes = tuple(dict.fromkeys(evidence.ranks[machine.ranks[0]].node for machine in affected))
    ordered = tuple(sorted(ranks))
    if len(ordered) == 1 and len(affected[0].ranks) > 1:
        return Culprit(kind="device", name=evidence.ranks[ordered[0]].label(), ranks=ordered, nodes=nodes)
    if sum(len(machine.ranks) for machine in affected) == len(set(ranks)):
        name = listed("node", [machine.name for machine in affected])
        return Culprit(kind="node", name=name, ranks=ordered, nodes=nodes)
    name = f"{listed('rank', ordered)} on {listed('node', [machine.name for machine in affected])}"
    return Culprit(kind="device", name=name, ranks=ordered, nodes=nodes)


def listed(word: str, things: Sequence[object], *, count: int | None = None) -> str:
    """Return a noun with its names: ``node a``, ``nodes a and b``, ``nodes a, b, c, d and 7 more``.

    ``count``: how many there are, where ``things`` are only the first ones.
    """
    shown, count = [str(thing) for thing in things[:_SHOWN]], len(things) if count is None else count
    if count == 1:
        return f"{word} {shown[0]}"
    last = f"{count - _SHOWN} more" if count > _SHOWN else shown.pop()
    return f"{word}s {', '.join(shown)} and {last}"
