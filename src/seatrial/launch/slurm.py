"""``--on slurm``: one agent a node, as the tasks of srun; in an allocation right away, else in a job of its own."""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass

from seatrial.errors import RequestError
from seatrial.launch.command import Command
from seatrial.launch.hosts import QUEUE_TIMEOUT, queue_timeout_s
from seatrial.launch.job import Job, Processes
from seatrial.launch.launchers import FileCommand, Launcher, shown_with_files
from seatrial.launch.option import NODES, Option
from seatrial.launch.slurm_driver import Batch
from seatrial.launch.target import Driver, Placement, Target, Where
from seatrial.launch.unseen import agent_environ, device_of, own_address
from seatrial.probe import own_code

__all__ = ["TARGETS", "render"]

_CPU_PROCESSES = 2
_BESIDE_THE_TRIAL_S = 300
"""Of a job's time limit: agents join, ranks start and end, before and after the deadline of the trial."""
_ASK_S = 20.0
# The way to the other nodes counts, not that to us: two of them, as one may be the node itself.
_WITH_PEERS = r'export SEATRIAL_NIC=route SEATRIAL_PEER="$(scontrol show hostnames | sed -n -e 1p -e \$p)"; exec'

_REQUESTED = (
    Option(flags=("--partition",), name="partition", help="Slurm's partition.", metavar="NAME"),
    Option(flags=("--account",), name="account", help="Slurm's account.", metavar="NAME"),
    Option(flags=("--time",), name="time", help="Time limit of the job; a trial tells its own.", metavar="TIME"),
    Option(flags=("--gres",), name="gres", help="Devices of each node, such as gpu:8.", metavar="LIST"),
    Option(flags=("--constraint",), name="constraint", help="Features that the nodes must have.", metavar="LIST"),
)
"""What a job asks for; sbatch has the same names for them."""
_CONTAINER = Option(
    flags=("--container-image",), name="container_image", help="Image of the ranks (needs Pyxis).", metavar="IMAGE"
)
_MORE = Option(
    flags=("--slurm-arg",),
    name="slurm_arg",
    help="Another word for sbatch, or for srun in an allocation.",
    metavar="WORD",
    multiple=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slurm:
    """What only this target knows of its job."""

    requested: tuple[str, ...]
    """Words for sbatch."""
    more: tuple[str, ...]
    container_image: str | None
    partition: str | None
    allocation: str | None
    """The number of the job that we are in; None: a job is to be submitted."""
    queue_timeout_s: float


def _resolve(where: Where) -> Placement:
    own = where.own
    allocation = os.environ.get("SLURM_JOB_ID") or None
    if where.backend == "mpi":
        raise RequestError(
            "--on slurm --backend mpi: MPI's launcher must start the ranks; type salloc, then --on mpirun."
        )
    given = [option for option in _REQUESTED if own[option.name] is not None]
    for option in (*given, _CONTAINER):
        value = own[option.name]
        if value is not None and not (value and value.isprintable()):
            raise RequestError(f"{option.flags[0]} {value!a}: a word is expected.")
    if allocation and given:
        raise RequestError(
            f"{given[0].flags[0]}: this is a shell of Slurm job {allocation}, whose nodes were requested already;"
            " leave it out."
        )
    python = where.python or sys.executable
    device = device_of(where, python)
    nodes = _nodes(own["nodes"], allocation)
    return Placement(
        nodes=nodes,
        nproc_per_node=_processes(where, device),
        device=device,
        backend=where.backend,
        python=python,
        words=f"on {nodes} node{'' if nodes == 1 else 's'} of Slurm" + (f" job {allocation}" if allocation else ""),
        detail=_Slurm(
            requested=tuple(f"{option.flags[0]}={own[option.name]}" for option in given),
            more=own["slurm_arg"],
            container_image=own["container_image"],
            partition=own["partition"],
            allocation=allocation,
            queue_timeout_s=queue_timeout_s(own),
        ),
    )


def _nodes(asked: int | None, allocation: str | None) -> int:
    if asked is not None and asked < 1:
        raise RequestError(f"--nodes {asked}: at least one is needed.")
    told = os.environ.get("SLURM_JOB_NUM_NODES", "") if allocation else ""
    there = int(told) if re.fullmatch("[0-9]{1,6}", told) else None
    if asked is not None and there is not None and asked > there:
        raise RequestError(f"--nodes {asked}: Slurm job {allocation} has {there}; ask for fewer.")
    return asked or there or 1


def _processes(where: Where, device: str) -> int:
    asked = where.nproc_per_node
    if asked is not None:
        if asked < 1:
            raise RequestError(f"--nproc-per-node {asked}: at least one process is needed.")
        return asked
    if device == "cpu":
        return _CPU_PROCESSES
    # gpu:8, gpu:h100:8, gres/gpu:8, and in an allocation what Slurm says itself.
    gres = re.search(r"\bgpu(?::[A-Za-z][\w.-]*)?:([0-9]{1,4})\b", where.own["gres"] or "")
    told = gres[1] if gres else os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not re.fullmatch("[1-9][0-9]{0,3}", told):
        raise RequestError(
            "--on slurm: how many devices a node has cannot be seen from here; add --gres gpu:M or --nproc-per-node M."
        )
    return int(told)


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """One command that starts all agents: srun, or sbatch of a script that is this srun."""
    slurm: _Slurm = job.detail
    folder = os.path.abspath(keep)
    code = os.path.join(folder, "seatrial.pyz")
    environ = agent_environ(os.environ, control=control, token=token, keep=folder, code=code)
    environ["SEATRIAL_NODE_RANK"] = "SLURM_NODEID"
    # No task ends another, neither by its end nor by its node's: the agents tell what happened first.
    step = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--export=ALL"]
    step += ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none"]
    if slurm.container_image is not None:
        step += [f"--container-image={slurm.container_image}", f"--container-mounts={folder}:{folder}"]
    agent = own_code.module_argv(job.python, "seatrial.agent.main")
    if slurm.allocation is not None:
        # The shell that we are in may be a step itself, and hold what this one needs.
        argv = ["sh", "-c", f'{_WITH_PEERS} "$@"', "sh", *step, "--overlap", *slurm.more, *agent]
    else:
        argv = ["sbatch", "--parsable", "--job-name=seatrial", "--ntasks-per-node=1"]
        # Whole nodes: the jobs of others on them would be measured as slow devices of theirs.
        argv += ["--exclusive", "--mem=0", "--no-kill", "--no-requeue", "--export=ALL"]
        argv += [f"--output={os.path.join(folder, 'slurm.log')}"]
        argv += [*_asked(job), f"--wrap={_WITH_PEERS} {shlex.join([*step, *agent])}"]
    return (FileCommand(argv=tuple(argv), env=environ, nodes=tuple(range(job.nodes)), code=code),)


def _asked(job: Processes) -> list[str]:
    return [f"--nodes={job.nodes}", *_limit(job), *job.detail.requested, *job.detail.more]


def _limit(job: Processes) -> list[str]:
    """Slurm starts short jobs sooner, and ends one whose controller is gone."""
    if not isinstance(job, Job) or any(word.startswith("--time=") for word in job.detail.requested):
        return []
    return [f"--time={math.ceil((job.plan.deadline_s.value + _BESIDE_THE_TRIAL_S) / 60)}"]


def _address(job: Processes) -> str:
    """Of this machine, on its way to a node of the partition."""
    partition = [f"--partition={job.detail.partition}"] if job.detail.partition else []
    try:
        told = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%o", *partition],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""  # what comes next will meet the same, and say so
    return own_address(dict.fromkeys(told.split())) or socket.gethostname()


def _driver(job: Processes) -> Driver:
    if job.detail.allocation is not None:
        return Launcher()
    return Batch(queue_timeout_s=job.detail.queue_timeout_s, asked=shlex.join(_asked(job)))


TARGETS = (
    Target(
        name="slurm",
        help="Slurm: srun in an allocation, else sbatch",
        options=(NODES, *_REQUESTED, _CONTAINER, QUEUE_TIMEOUT, _MORE),
        resolve=_resolve,
        render=render,
        shown=shown_with_files,
        address=_address,
        driver=_driver,
    ),
)
