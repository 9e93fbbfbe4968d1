"""The jobs: everything that a target needs to render its commands, all decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from seatrial.environment.drill import planting
from seatrial.environment.working_folder import script_of
from seatrial.protocol.job_digest import VARIABLE, digest_of_job
from seatrial.targets.hidden_values import shown_arguments, shown_environment

if TYPE_CHECKING:
    from seatrial.plan.model import Plan

Output = Literal["all", "rank0", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The common part of all jobs: how many processes run, on which target and device."""

    run: str
    """The name of the run."""
    target: str
    """The name of the target."""
    nodes: int
    """The number of nodes."""
    nproc_per_node: int
    """The number of ranks on each node."""
    device: str
    """The device of all ranks: ``cpu``, ``cuda`` or ``rocm``, never ``auto``."""
    backend: str
    """``gloo``, ``nccl``, ``mpi``, or ``auto`` (NCCL on GPUs, Gloo on CPUs)."""
    python: str
    """The interpreter of the ranks on every node."""
    env: Mapping[str, str]
    """The variables that the ranks get in addition to the environment of their agent."""
    absent: tuple[str, ...] = ()
    """The hosts that were requested and left out (``--min-hosts``), each with the reason."""
    hosts: tuple[str, ...] = ()
    """The name of each node, in the words of the request; empty where the request names no hosts."""
    ends_together: bool = False
    """The launcher ends the agents of all nodes with one of them."""
    detail: Any = None
    """``Placement.detail``: data that only the target reads."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.nproc_per_node

    @property
    def rank_env(self) -> Mapping[str, str]:
        """``env``, with what else all ranks get."""
        return self.env

    @property
    def digest(self) -> str:
        """``digest_of_job`` of what its agents may start."""
        return digest_of_job(self.rank_env)

    @property
    def agent_env(self) -> Mapping[str, str]:
        """The variables that its agents get on every target, besides those by which they connect."""
        return {VARIABLE: self.digest}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the ``run`` event and the report, with secrets hidden."""
        return {
            "target": self.target,
            "nodes": self.nodes,
            "nproc_per_node": self.nproc_per_node,
            "world_size": self.world_size,
            "device": self.device,
            "backend": self.backend,
            "python": self.python,
            "env": shown_environment(self.env),
            **({"hosts": list(self.hosts)} if self.hosts else {}),
            **({"absent": list(self.absent)} if self.absent else {}),
            **({"ends_together": True} if self.ends_together else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Processes):
    """One trial on one target."""

    plan: Plan
    """The checks with their settings."""
    planted: tuple[str, ...] = ()
    """The faults to inject, as typed: ``kill@training:1``."""
    require_full: bool = False
    """A partial PASS ends with exit code 3."""
    options: tuple[str, ...] = ()
    """The options of ``seatrial run`` that differ from their defaults, with secrets hidden, to type them again."""
    launcher: str = ""
    """The launcher that started the ranks in the place of our agents, such as ``torchrun``; empty for none."""

    @property
    def rank_env(self) -> Mapping[str, str]:
        """``env``, and the planted faults: a host that conducts for others can plant none that nobody has typed."""
        return {**self.env, **planting(self.planted)}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the ``run`` event and the report, with secrets hidden."""
        return {
            **Processes.to_json(self),
            "planted": list(self.planted),
            "options": list(self.options),
            **({"require_full": True} if self.require_full else {}),
            **({"launcher": self.launcher} if self.launcher else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob(Processes):
    """One program on one target: every rank runs the same command, with its rank in the environment."""

    argv: tuple[str, ...]
    """The interpreter and the program."""
    args: tuple[str, ...] = ()
    """The arguments that follow, where ``{rank}`` and the like are replaced for each rank."""
    per_node: bool = False
    """The program is started once per node, because it starts the processes of its node itself."""
    watched: bool
    """The program reports phases and results as ``worker.train_rank`` does."""
    output: Output
    """The ranks whose output is shown; the files of the run have the output of all ranks."""
    max_restarts: int
    """The number of restarts after a failure, 0 for none."""
    stop_grace_s: float
    """Seconds between SIGTERM and SIGKILL when the program is stopped."""
    cwd: str
    """The working folder on each node that has it."""
    lacks_script_here: bool = False
    """The program is a script that is not on this machine; the nodes may have it."""

    @property
    def script(self) -> str:
        """The path of the user's script; empty where there is none."""
        return "" if self.watched else script_of(self.argv)

    @property
    def digest(self) -> str:
        """``digest_of_job`` of what its agents may start."""
        return digest_of_job(
            self.env,
            self.argv,
            self.args,
            self.cwd,
            self.script,
            watched=self.watched,
            per_node=self.per_node,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for the ``run`` event, with secrets hidden."""
        args = self.args if self.watched else shown_arguments(self.args)
        return {**Processes.to_json(self), "argv": [*self.argv, *args], "max_restarts": self.max_restarts}
