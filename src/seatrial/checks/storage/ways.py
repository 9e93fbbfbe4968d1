"""The ways to the folders of ranks, by which a fault of a folder is that of a node or of a file system. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from seatrial.checks.shared.common_places import common_places
from seatrial.checks.storage.node_names import node_culprit, ranks_of_nodes
from seatrial.checks.storage.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit
from seatrial.util.text import as_name

RankFolder: TypeAlias = tuple[int, str]
"""A rank, and the path of a folder that it used or tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways from ``/`` to the folders of ranks, links included."""

    own: frozenset[RankFolder]
    """Folders to which their rank, whenever it looked, met no file system that another machine may have."""
    exchanged: frozenset[RankFolder]
    """Folders that another user of the machine may have exchanged, or mounted something over, as their rank says."""
    measured: Mapping[str, RankFolder]
    """Node -> one of these that was measured there, if any."""
    are_all_own: bool
    """Whether the user says that no two nodes share a folder."""
    ranks_of: Mapping[str, Sequence[int]]
    """The ranks of each node."""

    def is_own(self, rank: int, path: str) -> bool:
        """Return whether no other machine or user can have changed what this rank found at the path."""
        return (rank, path) not in self.exchanged and (self.are_all_own or (rank, path) in self.own)

    def culprit(self, evidence: Evidence, folders: Collection[RankFolder]) -> Culprit:
        """Return the culprit for a fault of folders, at least one: their nodes if all ways to them are own."""
        if all(self.is_own(*folder) for folder in folders):
            return node_culprit(self.ranks_of, {evidence.ranks[rank].node for rank, _ in folders})
        rank, path = next(each for each in folders if not self.is_own(*each))
        where = f"at {as_name(path)}" if path else "of the folder"
        why = "another user may have exchanged" if (rank, path) in self.exchanged else "other nodes may share"
        return Culprit(kind="none", name=f"the file system {where}, which {why}")


def ways_of_ranks(evidence: Evidence, params: Params) -> Ways:
    """Return which ways are those of one machine."""
    seen = [
        ((fact.rank, fact.value["folder"]), fact.value["places"])
        for fact in evidence.facts
        if fact.name == "way" and fact.rank is not None and fact.rank in evidence.ranks
    ]
    exchanged = frozenset(
        (fact.rank, fact.value)
        for fact in evidence.facts
        if fact.name == "exchanged" and fact.rank is not None and fact.rank in evidence.ranks
    )
    used = {
        (fact.rank, fact.value["path"])
        for fact in evidence.facts
        if fact.name == "folder" and fact.rank is not None and fact.rank in evidence.ranks
    }
    common = common_places(evidence, ((rank, places) for (rank, _), places in seen))
    shared = {way for way, places in seen if places is None or not common.isdisjoint(places)}
    return Ways(
        own=frozenset(way for way, _ in seen) - shared,
        exchanged=exchanged,
        measured={evidence.ranks[rank].node: (rank, path) for rank, path in sorted(exchanged & used)},
        are_all_own=params.shared == "no",
        ranks_of=ranks_of_nodes(evidence),
    )
