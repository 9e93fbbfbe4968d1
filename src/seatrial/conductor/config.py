"""The settings of a run that is conducted, and the states that it passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from seatrial.conductor.steps import StepPlan
from seatrial.environment.working_folder import FolderTrust
from seatrial.protocol.commands import ProgramSpec, Trust


class State(Enum):
    """State of a run. GATHER, KILL, STOP and OVER belong to both kinds of run."""

    GATHER = "gather"
    """Waiting for the agents."""
    AGENTS = "agents"
    """Trial: the agents carry out a step, before the ranks start."""
    START = "start"
    """Trial: the ranks start."""
    STEP = "step"
    """Trial: the ranks run a step."""
    QUIT = "quit"
    """Trial: all steps are done; the ranks end by themselves."""
    PORT = "port"
    """Program: node 0 looks for a free port."""
    RUN = "run"
    """Program: the ranks run."""
    TERMINATE = "terminate"
    """Program: the ranks received SIGTERM."""
    KILL = "kill"
    """The agents kill the ranks of this generation."""
    STOP = "stop"
    """The agents end."""
    OVER = "over"
    """The run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of both kinds of run."""

    run: str
    """Name of the run."""
    nodes: int
    """Number of nodes, each with one agent."""
    nproc_per_node: int
    """Ranks on each node."""
    hosts: tuple[str, ...] = ()
    """Name of each node, in the words of the request; empty where that names none."""
    ends_together: bool | None = None
    """Whether the launcher that started all nodes always ends all with one of them; None: no launcher started all."""
    machines: int | None = None
    """Number of machines, where a launcher started an agent for each rank and says on how many; else None."""
    env: Mapping[str, str]
    """Variables to add to the environment of the ranks."""
    join_timeout_s: float = 60.0
    """Seconds in which all agents must have joined."""
    start_timeout_s: float = 180.0
    """Seconds from the start of the ranks until all are ready."""

    def host_name(self, node: int) -> str:
        """Return the name of a node in the words of the request, else its number."""
        return self.hosts[node] if node < len(self.hosts) else str(node)

    @property
    def world_size(self) -> int:
        """Number of ranks in the first generation."""
        return self.nodes * self.nproc_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig(Config):
    """Settings of a trial: one step after the other."""

    steps: tuple[StepPlan, ...]
    """Steps of the first generation."""
    deadline_s: float
    """Seconds for the whole trial."""
    device: str
    """cpu, cuda, rocm or auto."""
    backend: str
    """gloo, nccl, mpi or auto."""
    suspects: Callable[[str, list[dict[str, Any]]], tuple[int, ...]]
    """(check, its events) -> ranks to measure again, one after the other. Pure."""
    next_round: Callable[[str, list[dict[str, Any]]], tuple[tuple[int, ...], Any] | None] = lambda check, events: None
    """(check, its events) -> ranks of the next round and the values for them; None: no further round. Pure."""
    fails: Callable[[str, list[dict[str, Any]]], bool] = lambda check, events: False
    """(check, its events) -> whether it fails: then checks that need the network are not started. Pure."""
    interface: Callable[[str, list[dict[str, Any]]], str] = lambda check, events: ""
    """(check of agents, its events) -> the network interface that the ranks must use; empty: no other one. Pure."""
    most_generations: int = 3
    """The first generation and at most this many less one after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig(Config):
    """Settings of a program: every rank executes one argv."""

    argv: tuple[str, ...]
    """The command of every rank."""
    watched: bool
    """The program reports phases and results as ``worker.train_rank`` does; a user's script does not."""
    args: tuple[str, ...] = ()
    """Arguments after ``argv``, with ``{rank}`` and the other placeholders."""
    spawns: int = 0
    """Processes that each rank starts itself (``--per-node``); 0: none."""
    cwd: str = ""
    """Working directory on each node that has this folder."""
    script: str = ""
    """Path of the user's script; empty: a module, or a program in PATH."""
    cwd_trust: FolderTrust = field(default_factory=FolderTrust)
    """The users who are trusted with the working directory."""
    script_trust: FolderTrust = field(default_factory=FolderTrust)
    """The users who are trusted with the script."""
    output: Literal["all", "rank0", "none"] = "rank0"
    """Ranks whose output is shown."""
    max_restarts: int = 0
    """Restart attempts."""
    stop_grace_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL when the user or the scheduler ends the run."""
    failure_grace_s: float = 5.0
    """Seconds from SIGTERM to SIGKILL after a failure."""
    lacks_script_here: bool = False
    """The program is a script that is not on the controller's machine."""

    def program(self, master_addr: str, master_port: int, group_rank: int) -> ProgramSpec:
        """Return the program for the agent of node ``group_rank``."""
        return ProgramSpec(
            argv=list(self.argv),
            args=list(self.args),
            spawns=self.spawns,
            nnodes=self.nodes,
            cwd=self.cwd,
            script=self.script,
            cwd_trust=_message_of(self.cwd_trust),
            script_trust=_message_of(self.script_trust),
            watched=self.watched,
            shown={"all": list(range(self.world_size)), "rank0": [0], "none": []}[self.output],
            world_size=self.world_size,
            master_addr=master_addr,
            master_port=master_port,
            group_rank=group_rank,
            max_restarts=self.max_restarts,
        )


def _message_of(trust: FolderTrust) -> Trust:
    return Trust(owners=list(trust.owners), mounters=list(trust.mounters), open_places=list(trust.open_places))
