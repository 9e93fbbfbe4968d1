"""Which agents have one vote together, where a launcher started one for each rank. Pure.

Where hosts are compared each machine has one vote. An agent's place is where its connection comes from, and a machine
can join from several addresses: from several network namespaces or interfaces. So a vote belongs to
the ranks that the launcher started on one machine, as far as the process that conducts knows them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the environment of the process that conducts says about the ranks of all machines."""

    ranks_here: int
    """Ranks that the launcher started on this machine."""
    machines: int | None = None
    """Number of machines; None: the launcher does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The places of nodes, with one for each machine that the launcher filled."""

    places: Mapping[int, str]
    """Node -> its place."""
    one_vote: frozenset[int] = frozenset()
    """Nodes of several places of which nobody knows which are on one machine: together they have one vote."""
    notes: tuple[str, ...] = ()
    """What a person should know of it."""


def machines_of(places: Mapping[int, str], layout: Layout) -> Machines:
    """Return the machines of nodes with one rank each, numbered from 0; node 0 is on the machine that conducts.

    Launchers fill one machine after the other, or deal the ranks out in turn, and only some say how many machines there
    are. Where all have as many ranks, the agents of a machine have no other place than those that it alone has; what is
    left at places with too few agents may be one machine, however it was filled. Where they have not, there may not be
    more places than machines.

    Args:
        places: Node -> the place that its agent joined from.
        layout: What the launcher says.
    """
    size = layout.ranks_here
    if size * (layout.machines or len(places) // size) == len(places):
        places, notes = _merged(places, size)
        doubted = {place for place, nodes in _nodes_at(places).items() if len(nodes) < size} - {places[0]}
    else:
        notes = ()
        doubted = {*places.values()} - {places[0]}
        if layout.machines is not None and len(doubted) < layout.machines:
            doubted = set()
    one_vote = frozenset(node for node, place in places.items() if place in doubted and len(doubted) > 1)
    if one_vote:
        notes += (
            f"the launcher does not tell which of the {len(doubted)} addresses {_listed(sorted(doubted))} are of one"
            " machine: where hosts are compared, they have one vote together (give all machines as many ranks)",
        )
    return Machines(places=places, one_vote=one_vote, notes=notes)


def _merged(places: Mapping[int, str], size: int) -> tuple[dict[int, str], tuple[str, ...]]:
    """Give each ``size`` nodes in turn one place, if nobody else is at theirs. Return the places, and what to note."""
    merged, nodes_at, several = dict(places), _nodes_at(places), list[str]()
    for first in range(0, len(places), size):
        nodes = range(first, first + size)
        here = list(dict.fromkeys(places[node] for node in nodes))
        if len(here) > 1 and {*nodes} == {node for place in here for node in nodes_at[place]}:
            merged.update(dict.fromkeys(nodes, here[0]))
            # A place that is not known has the number of its node.
            known = [place for place in here if not place.isdecimal()]
            if len(known) > 1:
                several.append(f"nodes {first} to {nodes[-1]} from {_listed(known)}")
    notes = (f"agents of one machine joined from several addresses: {_listed(several, '; ')}",) if several else ()
    return merged, notes


def _nodes_at(places: Mapping[int, str]) -> dict[str, list[int]]:
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for node, place in places.items():
        nodes[place].append(node)
    return nodes


def _listed(things: list[str], between: str = ", ") -> str:
    more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return between.join(things[:_SHOWN]) + more
