"""What is to run and where, resolved: every target renders from this and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from seatrial.plan.model import Plan

__all__ = ["Command", "Job", "Render"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One trial on one target."""

    run: str
    plan: Plan
    target: str
    nodes: int
    nproc_per_node: int
    device: str
    """``cpu``, ``cuda`` or ``rocm``: decided, no longer ``auto``."""
    backend: str
    """``gloo``, ``nccl`` or ``auto`` (the device's own)."""
    python: str
    env: Mapping[str, str]
    """What the ranks get beside the environment of their agent."""
    planted: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    def to_json(self) -> dict[str, Any]:
        """JSON for the ``run`` event and the report."""
        return {
            "target": self.target,
            "nodes": self.nodes,
            "nproc_per_node": self.nproc_per_node,
            "world_size": self.world_size,
            "device": self.device,
            "backend": self.backend,
            "python": self.python,
            "env": dict(self.env),
            "planted": list(self.planted),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start: arguments, and what its environment has beside ours."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    node_rank: int


class Render(Protocol):
    """A target: turns a job into commands. What runs and what ``--dry-run`` prints come from the same call."""

    def __call__(self, job: Job, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
        """The commands that start the agents. ``control`` is host:port, ``keep`` the folder of this run."""
