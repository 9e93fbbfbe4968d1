"""The input of a judge: measurements and facts of a check, and the ranks that finished it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.schema_types import Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What the events say about one rank."""

    rank: Whole
    """The rank in generation 0, used for the whole trial."""
    node: str
    """Name of the node: the one that the controller knows, else the host's; ``node 3`` where neither is known."""
    node_rank: Whole
    local_rank: Whole
    device: str
    """The device model, as the driver names it."""
    kind: str
    """Device model, library versions and CPU capability; ranks of equal ``kind`` may be compared bit by bit."""
    device_id: str = ""
    """PCI address of the device, else its UUID; empty on a CPU, and where the rank did not report it."""
    hostname: str = ""
    """The name that the host gives itself; empty where it is not known."""
    calls_itself: str = ""
    """The same, where a person would not take it for ``node``."""

    @property
    def place(self) -> str:
        """The node as a finding names it: ``node2``, or ``node2 (calls itself worker)``."""
        return f"{self.node} (calls itself {self.calls_itself})" if self.calls_itself else self.node

    def label(self) -> str:
        """Return the rank as a finding names it, with its device and node.

        The local rank alone does not identify the device: a variable may hide some devices of the node.
        """
        device = f"{self.device}, {self.device_id}" if self.device_id else self.device
        return f"rank {self.rank} ({device}, local rank {self.local_rank} on {a_node(self.place)})"


def a_node(place: str) -> str:
    """Return a node with the word in front: its name alone, such as ``gpu-0``, reads like that of a device."""
    return place if place.startswith("node ") else f"node {place}"


def short_names(ranks: Mapping[int, RankRecord]) -> Callable[[int], str]:
    """Return what names a rank beside the one that a finding is about: with its node where there are several."""
    first = next((record.node for record in ranks.values()), "")
    several = any(record.node != first for record in ranks.values())
    return lambda rank: f"rank {rank} on {a_node(ranks[rank].place)}" if several and rank in ranks else f"rank {rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that one check is judged by."""

    ranks: Mapping[int, RankRecord]
    """The ranks of generation 0, by rank."""
    asked: tuple[int, ...]
    """The ranks that were asked to run the check and finished it."""
    measurements: tuple[Measurement, ...]
    facts: tuple[Fact, ...]
    backend: str = ""
    """The backend that the ranks used: ``gloo``, ``nccl`` or ``mpi``; empty before a group was formed."""
    device_type: str = ""
    """``cpu`` or ``cuda`` (CUDA and ROCm alike)."""
    rounds: Mapping[str, Any] = field(default_factory=dict)
    """What the conductor asked for in each further round, by its stage: a rank that lies cannot make one up."""
    interface: str = ""
    """The network interface that the conductor had the ranks use by this check; empty: that of their addresses. The
    facts of a node may say something else at the end."""
    places_of_nodes: Mapping[int, str] = field(default_factory=dict)
    """Number of a node -> its place as the controller knows it: nodes of one machine have the same one, and a host that
    lies cannot choose that of another."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Host name of each node whose agent was asked to carry out the check and did, by number."""
    other_names: Mapping[str, int] = field(default_factory=dict)
    """Name that a host gives itself, or its address -> number of the node."""
    disputed_names: frozenset[str] = frozenset()
    """Names that hosts of several places give themselves: any of them may only say so."""

    def hosts(self) -> dict[int, str]:
        """Return by rank its host, as the controller knows it where it does: a host may have any number of names."""
        return {rank: self.places_of_nodes.get(record.node_rank) or record.node for rank, record in self.ranks.items()}

    def node_numbers(self) -> dict[int, int]:
        """Return by rank the number of its node."""
        return {rank: record.node_rank for rank, record in self.ranks.items()}
