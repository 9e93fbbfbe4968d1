"""What is to run and where, resolved: every target renders from this and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.plan.model import Plan

__all__ = ["Job", "Output", "Processes", "ProgramJob"]

_SECRET = re.compile(r"(?i)^[^=]*(SECRET|CREDENTIAL|PASS(W|P|_|=)|(TOKEN|(\b|_|API)KEY)S?[_=])|://[^/]+@")
"""Of NAME=value: what is set here for the ranks is shown to all who see the report."""
_HIDDEN = "(hidden)"

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
    absent: tuple[str, ...] = ()
    """Hosts that were asked for and left out (``--min-hosts``), each with the reason."""
    detail: Any = None
    """What the target has found out about its hosts, in a type of its own; nobody else reads it."""

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
            "env": {name: _HIDDEN if _SECRET.search(f"{name}={value}") else value for name, value in self.env.items()},
            **({"absent": list(self.absent)} if self.absent else {}),
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
    per_node: bool = False
    """Started once a node, as it starts the processes of its node itself."""
    watched: bool
    """It tells phases and results as ``worker.train`` does."""
    output: Output
    """Whose output is shown; all of it is in the files of the run."""
    max_restarts: int
    stop_grace_s: float
    """Between SIGTERM and SIGKILL when it is stopped."""
    cwd: str
    """Where it is started on each node that has this folder."""

    def to_json(self) -> dict[str, Any]:
        """JSON for the ``run`` event."""
        return {**Processes.to_json(self), "argv": [*self.argv, *self.args], "max_restarts": self.max_restarts}
