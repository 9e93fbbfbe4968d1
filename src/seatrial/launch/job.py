"""What is to run and where, resolved: every target renders from this and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from seatrial.plan.model import Plan

__all__ = ["Command", "Job", "Output", "Processes", "ProgramJob", "Render"]

Output = Literal["all", "rank0", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What all that is started on a target has in common: how many processes, where, on what."""

    run: str
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
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Processes):
    """One trial on one target."""

    plan: Plan
    planted: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON for the ``run`` event and the report."""
        return {**Processes.to_json(self), "planted": list(self.planted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob(Processes):
    """One program on one target: every rank executes the same arguments, with its place in the environment."""

    argv: tuple[str, ...]
    args: tuple[str, ...] = ()
    """What follows, with ``{rank}`` and so on for the place of each rank."""
    spawns: int = 0
    """So many processes each of the ranks starts itself."""
    watched: bool
    """It tells phases and results as ``worker.train`` does."""
    output: Output
    """Whose output is shown; all of it is in the files of the run."""
    max_restarts: int
    stop_grace_s: float
    """Between SIGTERM and SIGKILL when it is stopped."""

    def to_json(self) -> dict[str, Any]:
        """JSON for the ``run`` event."""
        return {**Processes.to_json(self), "argv": [*self.argv, *self.args], "max_restarts": self.max_restarts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start: arguments, and what its environment has beside ours."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    node_rank: int


class Render(Protocol):
    """A target: turns a job into commands. What runs and what ``--dry-run`` prints come from the same call."""

    def __call__(self, job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
        """The commands that start the agents. ``control`` is host:port, ``keep`` the folder of this run."""
