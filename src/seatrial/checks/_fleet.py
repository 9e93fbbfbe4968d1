"""Which ranks share a machine, and who of a fleet is unlike the rest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit

__all__ = ["Machine", "Split", "culprit", "facts_named", "listed", "machines", "split"]

_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node: the ranks that share its memory, its limits and its name."""

    name: str
    ranks: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A fleet that is not all alike."""

    majority: Hashable | None
    """What more than half of the machines have; None: no value has that many, and nobody can be named."""
    odd: Mapping[Hashable, tuple[int, ...]]
    """The other values with their ranks; without a majority all values."""


def facts_named(evidence: Evidence, name: str) -> dict[int, Mapping[str, Any]]:
    """By rank what it told last under this name, as far as it is a table."""
    return {
        fact.rank: fact.value
        for fact in evidence.facts
        if fact.name == name and fact.rank is not None and isinstance(fact.value, dict) and fact.rank in evidence.ranks
    }


def machines(evidence: Evidence, told: Mapping[int, Mapping[str, Any]]) -> tuple[Machine, ...]:
    """The ranks by machine, in the order of their lowest rank. ``told``: what they said, with ``machine``.

    An agent looks after one machine, or, where somebody else started the ranks, after one rank: agents whose ranks tell
    the same ``machine`` are on one. Who told nothing is with those of its host name, if all of them are on one.
    """
    hosts: defaultdict[str, dict[int, list[int]]] = defaultdict(dict)
    for seen in evidence.ranks.values():
        hosts[seen.node].setdefault(seen.node_rank, []).append(seen.rank)
    found = []
    for name, agents in hosts.items():
        groups: defaultdict[object, list[int]] = defaultdict(list)
        for agent, ranks in agents.items():
            identity = next((held for rank in ranks if (held := told.get(rank, {}).get("machine"))), None)
            groups[agent if identity is None else str(identity)] += ranks
        if len(known := [key for key in groups if isinstance(key, str)]) == 1:
            groups = defaultdict(list, {known[0]: [rank for ranks in groups.values() for rank in ranks]})
        for ranks in groups.values():
            label = name if len(groups) == 1 else f"{name} (node {evidence.ranks[min(ranks)].node_rank})"
            found.append(Machine(name=label, ranks=tuple(sorted(ranks))))
    return tuple(sorted(found, key=lambda machine: machine.ranks))


def split(values: Mapping[int, Hashable], fleet: Iterable[Machine]) -> Split | None:
    """Who is unlike the rest; None: all are alike, or there is nobody to compare with.

    Every machine has one vote, which its ranks share. More than half of the votes decide.
    """
    votes: defaultdict[Hashable, Fraction] = defaultdict(Fraction)
    ranks: defaultdict[Hashable, list[int]] = defaultdict(list)
    for machine in fleet:
        own = [rank for rank in machine.ranks if rank in values]
        for rank in own:
            votes[values[rank]] += Fraction(1, len(own))
            ranks[values[rank]].append(rank)
    if len(votes) < 2:
        return None
    most = max(votes, key=lambda value: votes[value])
    majority = most if 2 * votes[most] > sum(votes.values()) else None
    odd = {value: tuple(sorted(held)) for value, held in ranks.items() if majority is None or value != majority}
    return Split(majority=majority, odd=odd)


def culprit(evidence: Evidence, ranks: Collection[int], fleet: Sequence[Machine]) -> Culprit:
    """Whole machines by name, else the ranks."""
    held = [machine for machine in fleet if not set(machine.ranks).isdisjoint(ranks)]
    nodes = tuple(dict.fromkeys(evidence.ranks[machine.ranks[0]].node for machine in held))
    ordered = tuple(sorted(ranks))
    if len(ordered) == 1 and len(held[0].ranks) > 1:
        return Culprit(kind="device", name=evidence.ranks[ordered[0]].label(), ranks=ordered, nodes=nodes)
    if all(set(machine.ranks) <= set(ranks) for machine in held):
        name = listed("node", [machine.name for machine in held])
        return Culprit(kind="node", name=name, ranks=ordered, nodes=nodes)
    name = f"{listed('rank', ordered)} on {listed('node', [machine.name for machine in held])}"
    return Culprit(kind="device", name=name, ranks=ordered, nodes=nodes)


def listed(word: str, things: Sequence[object]) -> str:
    """``node a``, ``nodes a and b``, ``nodes a, b, c, d and 7 more``."""
    shown = [str(thing) for thing in things[:_SHOWN]]
    if len(things) == 1:
        return f"{word} {shown[0]}"
    last = f"{len(things) - _SHOWN} more" if len(things) > _SHOWN else shown.pop()
    return f"{word}s {', '.join(shown)} and {last}"
