"""Which ranks share a machine, and who of a fleet is unlike the rest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from seatrial.verdict.evidence import Evidence, RankSeen
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
    """The ranks by machine, in the order of their lowest rank. ``told``: what they said, with ``boot_id``.

    An agent looks after one machine, or, where somebody else started the ranks, after one rank. So those of one host
    name and one boot are one machine, unless a local rank is there twice: then they are hosts that only look alike.
    """
    hosts: defaultdict[str, dict[int, list[RankSeen]]] = defaultdict(dict)
    for seen in evidence.ranks.values():
        hosts[seen.node].setdefault(seen.node_rank, []).append(seen)
    found = []
    for name, agents in hosts.items():
        boots: defaultdict[Any, list[list[RankSeen]]] = defaultdict(list)
        for group in agents.values():
            boots[next((told[seen.rank].get("boot_id") for seen in group if seen.rank in told), None)].append(group)
        if len(boots) == 2 and None in boots:  # ranks that told nothing belong to those beside them
            silent = boots.pop(None)
            next(iter(boots.values())).extend(silent)
        groups = [together for several in boots.values() for together in _together(several)]
        for group in groups:
            label = name if len(groups) == 1 else f"{name} (node {group[0].node_rank})"
            found.append(Machine(name=label, ranks=tuple(sorted(seen.rank for seen in group))))
    return tuple(sorted(found, key=lambda machine: machine.ranks))


def _together(groups: list[list[RankSeen]]) -> list[list[RankSeen]]:
    joined = [seen for group in groups for seen in group]
    return [joined] if len({seen.local_rank for seen in joined}) == len(joined) else groups


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
