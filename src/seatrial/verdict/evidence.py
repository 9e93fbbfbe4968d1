"""What a check is judged by: its figures and facts, and who was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.verdict.figures import Fact, Figure

__all__ = ["Evidence", "RankSeen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """What the fold knows of a rank by the time a check is judged."""

    rank: int
    node: str
    node_rank: int
    local_rank: int
    device: str
    """The device model; two ranks with equal ``kind`` may be compared bit by bit."""
    kind: str
    """Device model, library versions and CPU capability in one string."""
    device_id: str = ""
    """Its PCI address, else its UUID; empty: not told, or a CPU."""

    def label(self) -> str:
        """As a finding names it. The local rank alone does not tell which device: a variable may hide some of them."""
        device = f"{self.device}, {self.device_id}" if self.device_id else self.device
        return f"rank {self.rank} ({device}, local rank {self.local_rank} on {self.node})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a check may judge by: its own figures and facts, and who was asked."""

    ranks: Mapping[int, RankSeen]
    """The ranks of generation 0, by trial rank."""
    asked: tuple[int, ...]
    """Trial ranks that the check was asked of and that finished it."""
    figures: tuple[Figure, ...]
    facts: tuple[Fact, ...]
    backend: str = ""
    """``gloo``, ``nccl``: the backend that was really used; empty before a group was formed."""
    device_type: str = ""
    """``cpu`` or ``cuda`` (CUDA and ROCm alike)."""
