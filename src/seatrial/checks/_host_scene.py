"""What the rules of the host check are given, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seatrial.checks._fleet import Machine
from seatrial.checks._host_words import remedy
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Limit, Severity

if TYPE_CHECKING:
    from seatrial.checks.host import Params

__all__ = ["LINES", "Node", "Remark", "Scene"]

LINES = 8
"""Of evidence at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, and what its lowest rank told of it."""

    machine: Machine
    facts: Mapping[str, Any]
    figures: Mapping[str, Figure]
    places: Mapping[int, Mapping[str, Any]]

    @property
    def num_ranks(self) -> int:
        return len(self.machine.ranks)

    def remedy(self, about: str) -> str:
        return remedy(about, self.facts.get("environment"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing about one node. Remarks that differ only in node and measured value become one finding."""

    severity: Severity
    what: str
    """With ``{who}`` for the nodes."""
    machine: Machine
    action: str = ""
    limit: Limit | None = None
    measured: str = ""
    worse: float = 0.0
    """The node with the highest is the one whose value is shown."""
    named: bool = True
    """False: which node is at fault cannot be told."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What decides how grave something is."""

    params: Params
    gpu: bool
    gloo: bool
    world_size: int
