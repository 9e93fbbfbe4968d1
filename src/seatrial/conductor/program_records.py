"""What is given to the conductor of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

__all__ = ["ProgramConfig", "ProgramState"]


class ProgramState(Enum):
    """Where the program is."""

    GATHER = "gather"
    PORT = "port"
    RUN = "run"
    TERMINATE = "terminate"
    KILL = "kill"
    STOP = "stop"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """What is started where, and how it may end."""

    run: str
    nodes: int
    nproc_per_node: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    watched: bool
    """It tells phases and results as ``worker.train`` does; a user's script does not."""
    args: tuple[str, ...] = ()
    """What follows ``argv``, with ``{rank}`` and so on for the place of each rank."""
    spawns: int = 0
    """So many processes each of the ranks starts itself (``--per-node``)."""
    cwd: str = ""
    """Where it is started on each node that has this folder."""
    output: Literal["all", "rank0", "none"] = "rank0"
    max_restarts: int = 0
    stop_grace_s: float = 30.0
    """From SIGTERM to SIGKILL when the user or the scheduler wants the end."""
    failure_grace_s: float = 5.0
    """The same after a failure, when nothing is left to wait for."""
    join_timeout_s: float = 60.0
    start_timeout_s: float = 180.0

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    def program(self, master_addr: str, master_port: int) -> dict[str, Any]:
        """What an agent must know to start its ranks, besides which they are."""
        return {
            "argv": list(self.argv),
            "args": list(self.args),
            "spawns": self.spawns,
            "nnodes": self.nodes,
            "cwd": self.cwd,
            "watched": self.watched,
            "shown": {"all": list(range(self.world_size)), "rank0": [0], "none": []}[self.output],
            "world_size": self.world_size,
            "master_addr": master_addr,
            "master_port": master_port,
        }
