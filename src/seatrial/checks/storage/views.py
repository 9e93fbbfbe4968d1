"""What the ranks found in their folders: whose tokens, and so which nodes share a file system. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from seatrial.checks.storage.node_names import node_names
from seatrial.checks.storage.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit
from seatrial.util.text import as_name

View: TypeAlias = frozenset[int]
"""The ranks whose tokens a rank sees."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""The first and the last of ranks, any number of times."""
Sharing: TypeAlias = Mapping[int, frozenset[str]]
"""By rank the nodes that share its folder; without the ranks whose folder no other host is known to share."""


def ranges_by_rank(evidence: Evidence, name: str) -> dict[int, Ranges]:
    """Return the ranges of ranks in each rank's fact of a name."""
    return {
        fact.rank: tuple((first, last) for first, last in fact.value)
        for fact in evidence.facts
        if fact.name == name and fact.rank is not None and fact.rank in evidence.ranks
    }


def within(ranks: Sequence[int], ranges: Iterable[tuple[int, int]]) -> View:
    """Return which of ascending ranks are in ranges, of which there may be any number of any length."""
    seen, below = list[int](), 0
    for first, last in sorted(ranges):
        after = bisect_right(ranks, last)
        seen += ranks[max(below, bisect_left(ranks, first)) : after]
        below = max(below, after)
    return frozenset(seen)


def sharing_nodes(evidence: Evidence, params: Params) -> Sharing:
    """Return the nodes that share the folder of each rank, as far as their tokens tell.

    Unless the user says that they share none, a token that somebody moved may have been anywhere, and a rank that could
    not look, as in a folder that was full, may share one with all others.
    """
    everyone, hosts = sorted(evidence.ranks), evidence.hosts()
    found: dict[int, Ranges] = {}
    for name in ("sees", "foreign", "finds"):
        for rank, ranges in ranges_by_rank(evidence, name).items():
            found[rank] = found.get(rank, ()) + ranges
    movers = {fact.rank for fact in evidence.facts if fact.name == "token_lost" and params.shared != "no"}
    lost = frozenset(evidence.ranks.keys() & movers)
    view_of = {ranges: within(everyone, ranges) | lost for ranges in set(found.values())}
    views = {rank: view_of[ranges] for rank, ranges in found.items()}
    if params.shared != "no":
        views |= dict.fromkeys(evidence.ranks.keys() - found.keys(), frozenset(everyone))
    nodes_of = {view: frozenset(evidence.ranks[rank].node for rank in view) for view in set(views.values())}
    return {
        rank: nodes_of[view] | {evidence.ranks[rank].node}
        for rank, view in views.items()
        if any(hosts[other] != hosts[rank] for other in view)
    }


def shared_culprit(sharing: Sharing, path: str, ranks: Iterable[int | None]) -> Culprit:
    """Return what is at fault for what these ranks saw of a folder that they share: any user of it may have caused it.

    ``path``: that of the folder.
    """
    nodes = frozenset[str]().union(*(sharing[rank] for rank in ranks if rank is not None))
    return Culprit(kind="none", name=f"the file system at {as_name(path)}, which {node_names(nodes)} seem to share")
