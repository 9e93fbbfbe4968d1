"""Which agents are on one machine, where a launcher started one for each rank. Pure.

Where hosts are compared, each has one vote. An agent's place is where its connection comes from, and a machine can join
from several addresses: from several network namespaces or interfaces. So its agents get one place, where the launcher
says enough to find them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SHOWN = 4
_Groups = Sequence[range]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the environment of the process that conducts says about the ranks of all machines."""

    ranks_here: int
    """Ranks that the launcher started on this machine."""
    machines: int
    """Number of machines."""


def machines_of(places: Mapping[int, str], layout: Layout) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the places of nodes with one rank each, one for the agents of a machine, and what to note of it.

    Launchers fill one machine after the other, or deal the ranks out in turn. That counts which fits all places: node 0
    is on the machine that conducts, whose agents have one place. Where the machines do not have as many ranks each,
    nobody knows which agents are on one: their places stay.

    Args:
        places: Node -> the place that its agent joined from, numbered from 0.
        layout: What the launcher says.
    """
    size = layout.ranks_here
    if size * layout.machines != len(places):
        return dict(places), ()
    in_turn = [range(first, len(places), layout.machines) for first in range(layout.machines)]
    filled = [range(first, first + size) for first in range(0, len(places), size)]
    groups = next((groups for groups in (filled, in_turn) if _fit(groups, places)), ())
    merged, several = dict(places), list[str]()
    for group in groups:
        here = list(dict.fromkeys(places[node] for node in group))
        merged.update(dict.fromkeys(group, here[0]))
        # A place that is not known has the number of its node.
        known = [place for place in here if not place.isdecimal()]
        if len(known) > 1:
            several.append(f"nodes {_listed([str(node) for node in group])} from {_listed(known)}")
    notes = (f"agents of one machine joined from several addresses: {_listed(several, '; ')}",) if several else ()
    return merged, notes


def _fit(groups: _Groups, places: Mapping[int, str]) -> bool:
    """Return whether each place is on one of these machines, or all of several are at it, as behind a router."""
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    nodes_at = defaultdict[str, set[int]](set)
    for node, place in places.items():
        nodes_at[place].add(node)
    for nodes in nodes_at.values():
        of = {group_of[node] for node in nodes}
        if len(of) > 1 and len(nodes) != sum(len(groups[number]) for number in of):
            return False
    return True


def _listed(things: list[str], between: str = ", ") -> str:
    more = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return between.join(things[:_SHOWN]) + more
