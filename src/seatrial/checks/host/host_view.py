"""What the rules of the host check read, and the remarks that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.checks.host.params import Params
from seatrial.checks.host.remedies import remedy
from seatrial.checks.shared.host_inventory import HostInventory
from seatrial.evidence.findings import Limit, Severity
from seatrial.evidence.measurement import Measurement
from seatrial.util.text import as_name

MOST_LINES = 8
"""The largest number of evidence lines of one finding."""


def in_names(value: Any) -> Any:
    """Return a fact with each text as findings may have it: a name, path or address as it is, other words in quotes."""
    if isinstance(value, str):
        return as_name(value)
    if isinstance(value, dict):
        return {in_names(key): in_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        # A list has names or numbers.
        return [entry if isinstance(entry, (int, float)) else as_name(str(entry)) for entry in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A machine, and what its lowest rank reported about it."""

    machine: HostInventory
    facts: Mapping[str, Any]
    """The fact ``host`` ``in_names``."""
    measurements: Mapping[str, Measurement]
    """By name."""
    processes: Mapping[int, Mapping[str, Any]]
    """The fact ``process`` of every rank of the trial."""

    @property
    def num_ranks(self) -> int:
        return len(self.machine.ranks)

    def remedy(self, topic: str) -> str:
        """Return what to change on this node, one clause."""
        return remedy(topic, self.facts.get("environment"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing about one node. Remarks that differ only in node and measured value become one finding."""

    severity: Severity
    what: str
    """The sentence, with ``{nodes}`` for the nodes."""
    machine: HostInventory
    action: str = ""
    limit: Limit | None = None
    measured: str = ""
    badness: float = 0.0
    """The finding shows the value of the node with the highest badness."""
    named: bool = True
    """Whether the node is at fault; False: the measurements do not show which node is."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetup:
    """The properties of the trial that decide how severe a remark is."""

    params: Params
    gpu: bool
    """Whether the ranks run on GPUs."""
    gloo: bool
    """Whether the backend is Gloo."""
    world_size: int
