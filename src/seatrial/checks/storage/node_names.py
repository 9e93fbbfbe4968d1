"""Names of nodes and ranks in the sentences of the storage check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit
from seatrial.evidence.measurement import Fact

_MOST_NAMES = 8
"""The largest number of names in one sentence."""


def ranks_of_nodes(evidence: Evidence) -> Mapping[str, Sequence[int]]:
    """Return the ranks of each node, ascending."""
    ranks_of = defaultdict[str, list[int]](list)
    for rank, seen in sorted(evidence.ranks.items()):
        ranks_of[seen.node].append(rank)
    return ranks_of


def node_culprit(ranks_of: Mapping[str, Sequence[int]], nodes: Collection[str]) -> Culprit:
    """Return the culprit that consists of these nodes with all their ranks. ``ranks_of``: ``ranks_of_nodes``."""
    ranks = tuple(sorted(rank for node in nodes for rank in ranks_of[node]))
    return Culprit(kind="node", name=node_names(nodes), ranks=ranks, nodes=tuple(sorted(nodes)))


def node_names(nodes: Collection[str]) -> str:
    """Return ``node a``, or ``nodes a, b and 3 more``."""
    return _listed("node", sorted(nodes))


def rank_names(ranks: Iterable[int]) -> str:
    """Return ``rank 0``, or ``ranks 0, 1 and 3 more``."""
    return _listed("rank", [str(rank) for rank in ranks])


def _listed(word: str, names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{word}{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMES])}{more}"


def nodes_of(evidence: Evidence, facts: Iterable[Fact]) -> set[str]:
    """Return the nodes of the ranks that reported these facts."""
    return {evidence.ranks[fact.rank].node for fact in facts if fact.rank is not None}
