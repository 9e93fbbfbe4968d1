"""``--on slurm``: srun starts one agent on each node, inside the current allocation or in a job for sbatch."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial import start
from seatrial.environment.job_token import MUNGE, read_token
from seatrial.errors import RequestError
from seatrial.targets.hidden_values import shown_launcher_arguments
from seatrial.targets.hosts import QUEUE_TIMEOUT, queue_timeout_s
from seatrial.targets.option import NODES, Option
from seatrial.targets.target import Driver, Placement, Target, TargetRequest

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes

_CPU_PROCESSES = 2
_TIME_LIMIT_MARGIN_S = 300
"""Added to the deadline of the trial: agents join and ranks start before it begins, and end after it has passed."""
_SINFO_S = 20.0
# The ranks use the interface that leads to the other nodes, not the one that leads to the controller. The agent gets
# the names of two nodes, because one of them may be its own.
_WITH_PEERS = r'export SEATRIAL_NIC=route SEATRIAL_PEER="$(scontrol show hostnames | sed -n -e 1p -e \$p)"; exec'

_REQUESTED = (
    Option(flags=("--partition",), name="partition", help="Slurm partition.", metavar="NAME"),
    Option(flags=("--account",), name="account", help="Slurm account.", metavar="NAME"),
    Option(
        flags=("--time",), name="time", help="Slurm time limit. Default: the deadline of the trial.", metavar="TIME"
    ),
    Option(flags=("--gres",), name="gres", help="Devices of each node, such as gpu:8.", metavar="LIST"),
    Option(flags=("--constraint",), name="constraint", help="Features that the nodes must have.", metavar="LIST"),
)
"""Resources that a job requests; sbatch has the same options."""
_CONTAINER = Option(
    flags=("--container-image",), name="container_image", help="Image of the ranks (needs Pyxis).", metavar="IMAGE"
)
_EXTRA_ARGS = Option(
    flags=("--slurm-arg",),
    name="slurm_arg",
    help="Extra argument for sbatch (or for srun inside an allocation); repeatable.",
    metavar="WORD",
    multiple=True,
    for_launcher=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slurm:
    """The details of a job that only this target knows."""

    requested: tuple[str, ...]
    """Options for sbatch, such as ``--partition=gpu``."""
    extra_args: tuple[str, ...]
    """From ``--slurm-arg``."""
    container_image: str | None
    partition: str | None
    allocation: str | None
    """ID of the job that this process runs in; None: sbatch submits a new job."""
    queue_timeout_s: float
    by_munge: bool
    """Munge passes the token of the run, and not the environment of the agents."""


def _resolve(target_request: TargetRequest) -> Placement:
    from seatrial.targets.remote_defaults import device_of

    own = target_request.own
    allocation = os.environ.get("SLURM_JOB_ID") or None
    if target_request.backend == "mpi":
        raise RequestError(
            "--on slurm --backend mpi: MPI's launcher must start the ranks; run salloc, then use --on mpirun."
        )
    given = [option for option in _REQUESTED if own[option.name] is not None]
    for option in (*given, _CONTAINER):
        value = own[option.name]
        if value is not None and not (value and value.isprintable()):
            raise RequestError(f"{option.flags[0]} {value!a} is empty or unprintable; give a printable value.")
    if allocation and given:
        raise RequestError(
            f"{given[0].flags[0]}: this shell runs in Slurm job {allocation}, which has its nodes already;"
            " leave the option out."
        )
    python = target_request.python or sys.executable
    device = device_of(target_request, python)
    nodes = _nodes(own["nodes"], allocation)
    return Placement(
        nodes=nodes,
        nproc_per_node=_processes(target_request, device),
        device=device,
        backend=target_request.backend,
        python=python,
        words=f"on {nodes} node{'' if nodes == 1 else 's'} of Slurm" + (f" job {allocation}" if allocation else ""),
        detail=_Slurm(
            requested=tuple(f"{option.flags[0]}={own[option.name]}" for option in given),
            extra_args=own["slurm_arg"],
            container_image=own["container_image"],
            partition=own["partition"],
            allocation=allocation,
            queue_timeout_s=queue_timeout_s(own),
            # Nobody but the user knows whether munge works where the agents start: not in a container without the
            # socket of munged, nor beside a Slurm whose munged is another one.
            by_munge=read_token(os.environ) == MUNGE,
        ),
    )


def _nodes(requested: int | None, allocation: str | None) -> int:
    if requested is not None and requested < 1:
        raise RequestError(f"--nodes {requested}: at least one node is needed.")
    node_count = os.environ.get("SLURM_JOB_NUM_NODES", "") if allocation else ""
    allocated = int(node_count) if re.fullmatch("[0-9]{1,6}", node_count) else None
    if requested is not None and allocated is not None and requested > allocated:
        raise RequestError(f"--nodes {requested}: Slurm job {allocation} has {allocated}; request fewer.")
    return requested or allocated or 1


def _processes(target_request: TargetRequest, device: str) -> int:
    requested = target_request.nproc_per_node
    if requested is not None:
        if requested < 1:
            raise RequestError(f"--nproc-per-node {requested}: at least one process is needed.")
        return requested
    if device == "cpu":
        return _CPU_PROCESSES
    # gpu:8, gpu:h100:8 or gres/gpu:8; inside an allocation Slurm sets the number.
    gres = re.search(r"\bgpu(?::[A-Za-z][\w.-]*)?:([0-9]{1,4})\b", target_request.own["gres"] or "")
    gpu_count = gres[1] if gres else os.environ.get("SLURM_GPUS_ON_NODE", "")
    if not re.fullmatch("[1-9][0-9]{0,3}", gpu_count):
        raise RequestError(
            "--on slurm: the number of devices of a node is unknown here; add --gres gpu:M or --nproc-per-node M."
        )
    return int(gpu_count)


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """Return the one command that starts all agents: srun, or sbatch with a script that calls this srun."""
    from seatrial.targets.launcher_process import FileCommand
    from seatrial.targets.remote_defaults import agent_environ, start_argv
    from seatrial.targets.slurm.driver import job_name

    slurm: _Slurm = job.detail
    folder = str(Path(keep).absolute())
    bundle_path = os.path.join(folder, "seatrial.pyz")
    environ = {**agent_environ(os.environ, control=control, token=token, keep=folder), **job.agent_env}
    environ["SEATRIAL_NODE_RANK"] = "SLURM_NODEID"
    # --export=ALL hands all variables on, and srun goes to /tmp where a host lacks the working folder.
    environ |= start.absolute_entries(os.environ)
    # Neither the end of a task nor the loss of a node ends the other tasks: the agents report first what happened.
    step = ["srun", f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--export=ALL"]
    # By its name the controller finds the step again, and asks Slurm on which host each node of it is.
    step += [f"--job-name={job.run}", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none"]
    if slurm.container_image is not None:
        step += [f"--container-image={slurm.container_image}", f"--container-mounts={folder}:{folder}"]
    # A relative path would begin in /tmp on a host that lacks the working folder.
    python = str(Path(job.python).absolute()) if os.path.dirname(job.python) else job.python
    agent = (*start_argv(python, bundle_path), "-m", "seatrial.agent.agent_main")
    if slurm.allocation is not None:
        # This shell may be a job step that holds the resources of the nodes; --overlap shares them.
        argv = ["sh", "-c", f'{_WITH_PEERS} "$@"', "sh", *step, "--overlap", *slurm.extra_args, *agent]
    else:
        argv = ["sbatch", "--parsable", f"--job-name={job_name(job.run)}", "--ntasks-per-node=1"]
        # Whole nodes: other jobs on them would slow their devices down, and the trial would call them stragglers.
        argv += ["--exclusive", "--mem=0", "--no-kill", "--no-requeue", "--export=ALL"]
        # Slurm would open a file by its name and follow a link that others have put there. A shell with -C (noclobber)
        # opens a new file, or a FIFO or a device that is there, which the shell then sees.
        log = shlex.quote(os.path.join(folder, "slurm.log"))
        argv += ["--output=/dev/null"]
        argv += [
            *_sbatch_options(job),
            f"--wrap=set -C; exec > {log} 2>&1; [ -f /proc/self/fd/1 ] || exit 1;"
            f" {_WITH_PEERS} {shlex.join([*step, *agent])}",
        ]
    return (FileCommand(argv=tuple(argv), env=environ, nodes=tuple(range(job.nodes)), bundle_path=bundle_path),)


def _sbatch_options(job: Processes) -> list[str]:
    return [f"--nodes={job.nodes}", *_time_limit(job), *job.detail.requested, *job.detail.extra_args]


def _time_limit(job: Processes) -> list[str]:
    """Return ``--time`` of a trial: Slurm starts short jobs sooner, and ends a job whose controller has died."""
    from seatrial.targets.job import Job

    if not isinstance(job, Job) or any(word.startswith("--time=") for word in job.detail.requested):
        return []
    return [f"--time={math.ceil((job.plan.deadline_s.value + _TIME_LIMIT_MARGIN_S) / 60)}"]


def _address(job: Processes) -> str:
    """Return the address of this machine on the route to a node of the partition."""
    import socket
    import subprocess

    from seatrial.targets.remote_defaults import own_address

    # Without a partition the job goes to the default one, which is not hidden: the others may lie in other networks.
    partition = ["--all", f"--partition={job.detail.partition}"] if job.detail.partition else []
    try:
        output = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%o", *partition],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SINFO_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""  # sbatch or srun will fail for the same reason and report it
    return own_address(dict.fromkeys(output.split())) or socket.gethostname()


def _has_munge(job: Processes) -> bool:
    return bool(job.detail.by_munge)


def _shown(commands: Sequence[Command]) -> list[str]:
    from seatrial.targets.launcher_process import shown_with_files

    return shown_with_files(commands)


def _driver(job: Processes) -> Driver:
    from seatrial.targets.slurm.driver import BatchJobDriver
    from seatrial.targets.slurm.step_driver import StepDriver

    if job.detail.allocation is not None:
        return StepDriver(job.detail.allocation, job.run)
    requested = shlex.join(shown_launcher_arguments(_sbatch_options(job)))
    return BatchJobDriver(queue_timeout_s=job.detail.queue_timeout_s, requested=requested, step_name=job.run)


TARGETS = (
    Target(
        name="slurm",
        help="Slurm: srun in an allocation, else sbatch (--nodes)",
        order=3,
        options=(NODES, *_REQUESTED, _CONTAINER, QUEUE_TIMEOUT, _EXTRA_ARGS),
        resolve=_resolve,
        render=render,
        dry_run_lines=_shown,
        address=_address,
        driver=_driver,
        has_munge=_has_munge,
    ),
)
