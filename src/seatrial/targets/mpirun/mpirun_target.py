"""``--on mpirun``: Open MPI, MPICH or Intel MPI starts one agent for each rank.

With an agent for each rank instead of each node, OMPI_*, PMI_* and MPI itself are in a rank what they are in any other
job of this mpirun.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial import start
from seatrial.environment import self_location, working_folder
from seatrial.environment.job_token import MUNGE, read_token
from seatrial.errors import RequestError, TargetUnreachableError
from seatrial.targets.hosts import HOSTFILE, HOSTS, Host, hosts_of
from seatrial.targets.option import MPIRUN, OVERSUBSCRIBE, Option
from seatrial.targets.target import Driver, Placement, Target, TargetRequest

if TYPE_CHECKING:
    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes
    from seatrial.targets.mpirun.implementations import MpiLauncher

_VERSION_S = 30.0
_THIS_MACHINE = "localhost"
_LEAST_MPI_RANKS = 2

_EXTRA_ARGS = Option(
    flags=("--mpi-arg",),
    name="mpi_arg",
    help="Extra argument for mpirun; repeatable.",
    metavar="WORD",
    multiple=True,
    for_launcher=True,
)

_RANK_VARIABLES = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID"),
    "intel": ("PMI_RANK", "MPI_LOCALRANKID"),
}
"""Implementation -> the variables in which it gives each rank its rank and local rank."""
# MPICH kills all ranks when a signal ends a process that it started, and Open MPI with --enable-recovery does not
# report a missing Python. A shell between mpirun and the agent turns both into a line of output and an exit code.
_SHELL = '"$@"; exit $?'
_AGENT = "seatrial.agent.mpi_rank"
_OF_ROOT = "/"
"""Where agents start on other hosts, and here where others could put files in the folder in which the user types: Open
MPI 4 gives them an LD_LIBRARY_PATH with an empty entry, so that the loader takes what it needs from this folder. mpirun
itself starts there, too: that of Intel MPI takes options from a file in this folder. The agents enter the folder of the
user themselves (``agent/mpi_rank.py``)."""
_MOST_BYTES = 120 << 10
"""Linux takes 128 KiB in one word or variable, and Open MPI hands all words of a rank on in one (``OMPI_ARGV``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mpirun:
    """The details of a job that only this target knows."""

    launcher: MpiLauncher
    hosts: tuple[tuple[str, int], ...]
    """Pairs of a name and its number of ranks."""
    extra_args: tuple[str, ...]
    """From ``--mpi-arg``."""
    only_this_machine: bool
    """Whether all ranks run on this machine."""
    counted: str
    """The kind of ranks that each host counts, as ``agent/mpi_rank.py`` has it: ``torch``, ``script``, or ``any``."""
    installed: bool
    """Whether seatrial is installed on the hosts; otherwise they run private copies of the bundle."""


def _resolve(target_request: TargetRequest) -> Placement:
    from seatrial.probe.capacity import refuse_too_many
    from seatrial.probe.torch_install import interpreter
    from seatrial.targets import resources
    from seatrial.targets.remote_defaults import device_of

    launcher = _find_mpirun(target_request.own["mpirun"])
    requested_hosts = _hosts(target_request)
    if requested_hosts and read_token(os.environ) == MUNGE:
        raise RequestError(
            f"SEATRIAL_TOKEN={MUNGE}: mpirun sends the token readable to other hosts, and munge cannot carry it there;"
            " use --on slurm or --on ssh, or leave the variable out where you trust the network."
        )
    if launcher.kind != "openmpi" and (name := next((host.name for host in requested_hosts if ":" in host.name), "")):
        # hydra splits its lines at the first colon, and knows no brackets.
        raise RequestError(f"{name}: the hostfile of {launcher} takes no IPv6 address; give the host a name.")
    python = target_request.python or sys.executable
    of_torch = target_request.typed[:1] != ("launch",)
    if requested_hosts:
        device = device_of(target_request, python)
        hosts = tuple((host.name, _slots(host, target_request)) for host in requested_hosts)
        env: dict[str, str] = {}
    else:
        python = interpreter(python)
        local = resources.local_resources(
            device=target_request.device,
            backend=target_request.backend,
            nproc_per_node=target_request.nproc_per_node,
            processes_by=target_request.processes_by,
            python=python,
        )
        device, env = local.device, local.env
        if device == "cpu" and not target_request.own.get("oversubscribe"):
            words = f"--nproc-per-node {local.nproc_per_node}"
            refuse_too_many(local.nproc_per_node, words, of_torch=of_torch)
        hosts = ((_THIS_MACHINE, local.nproc_per_node),)
    rank_count = sum(slots for _, slots in hosts)
    if target_request.backend == "mpi" and rank_count < _LEAST_MPI_RANKS and target_request.typed[:1] == ("run",):
        raise RequestError(f"--backend mpi: one rank alone cannot communicate; request {_LEAST_MPI_RANKS} or more.")
    # Those of this machine are counted above.
    is_counted = requested_hosts and device == "cpu" and not target_request.own.get("oversubscribe")
    location = "this machine" if not requested_hosts else f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}"
    return Placement(
        nodes=rank_count,
        nproc_per_node=1,
        device=device,
        backend=target_request.backend,
        python=python,
        env=env,
        words=f"on {location} by {launcher}",
        # One agent for each rank.
        hosts=tuple(name for name, slots in hosts for _ in range(slots)) if requested_hosts else (),
        # Once a signal has ended what hydra started on one host.
        ends_together=launcher.kind != "openmpi",
        detail=_Mpirun(
            launcher=launcher,
            hosts=hosts,
            extra_args=target_request.own["mpi_arg"],
            only_this_machine=not requested_hosts,
            counted=("torch" if of_torch else "script") if is_counted else "any",
            installed=not requested_hosts or target_request.backend == "mpi",
        ),
    )


def _hosts(target_request: TargetRequest) -> tuple[Host, ...]:
    """Return the hosts of ``--hosts`` or ``--hostfile``; empty: this machine."""
    if target_request.own["hosts"] is None and target_request.own["hostfile"] is None:
        return ()
    hosts = hosts_of(target_request.own["hosts"], target_request.own["hostfile"])
    names: set[str] = set()
    for host in hosts:
        if host.user is not None or host.port is not None:
            raise RequestError(
                f"{host.name}: mpirun takes no user or port for a single host; set them in ~/.ssh/config."
            )
        if host.name in names:
            raise RequestError(f"{host.name} is named twice; name it once, with all its slots.")
        names.add(host.name)
    return hosts


def _find_mpirun(name: str) -> MpiLauncher:
    import subprocess

    from seatrial.targets.mpirun.implementations import recognize
    from seatrial.util.tool import find_tool

    path = find_tool(name)
    if path is None:
        raise RequestError(
            f"--on mpirun: {name} was not found; give the path of an mpirun with --mpirun, or add its folder to PATH."
        )
    # mpirun expects its helpers in the same folder on the other hosts.
    path = str(Path(path).absolute())
    if os.pathsep in os.path.dirname(path):
        # Others may make the folder that the first part of its name leads to.
        raise RequestError(
            f"{path}: the name of its folder has a {os.pathsep!r}, which would make several entries of it in PATH; give"
            " the path of an mpirun elsewhere with --mpirun."
        )
    try:
        done = subprocess.run(
            [path, "--version"],
            env={**os.environ, "PATH": os.pathsep.join([os.path.dirname(path), os.environ.get("PATH", "")])},
            cwd=_OF_ROOT,  # Intel MPI would execute what an mpiexec.conf in the working folder names
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_S,
            check=False,
        )
    except OSError as error:
        raise RequestError(f"{path} does not start ({error.strerror}); name another mpirun with --mpirun.") from error
    except subprocess.TimeoutExpired as error:
        raise TargetUnreachableError(
            f"{path} --version did not end within {_VERSION_S:.0f} s; name another mpirun with --mpirun."
        ) from error
    return recognize(path, done.stdout + done.stderr)


def _slots(host: Host, target_request: TargetRequest) -> int:
    slots = host.slots or target_request.nproc_per_node
    if slots is None:
        raise RequestError(
            f"{host.name}: the number of its ranks is missing; write {host.name}:M, or add --nproc-per-node M."
        )
    if target_request.nproc_per_node is not None and target_request.nproc_per_node > slots:
        raise RequestError(
            f"{host.name} has {slots} slots, and --nproc-per-node requests {target_request.nproc_per_node}."
        )
    return target_request.nproc_per_node or slots


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """Return the one mpirun that starts the agents of all ranks."""
    from seatrial.targets.launcher_process import FILE_OF_HOSTS, FileCommand
    from seatrial.targets.mpirun.implementations import (
        argv_of,
        environ_of,
        for_mpirun_alone,
        hostfile_of,
        own_folders_of,
    )
    from seatrial.targets.remote_defaults import agent_environ, start_argv

    mpi: _Mpirun = job.detail
    folder = str(Path(keep).absolute())
    bundle_path = None if mpi.installed else os.path.join(folder, "seatrial.pyz")
    environ = {**agent_environ(os.environ, control=control, token=token, keep=folder), **job.agent_env}
    # Open MPI 4 makes an empty LD_LIBRARY_PATH one with an empty entry: the loader would take libraries from there.
    left = working_folder.open_folder()
    agents_enter = not mpi.only_this_machine or left != ""
    own: dict[str, str] = {}
    if agents_enter:
        # hydra hands all variables on, and on another host the working folder may be a neighbor's.
        own = start.absolute_entries(os.environ, left if mpi.only_this_machine else "")
    environ |= {name: value for name, value in own.items() if name in environ}
    python = job.python
    if agents_enter:
        place = {"path": os.getcwd(), **dataclasses.asdict(working_folder.trust_here(os.getcwd(), ""))}
        environ["SEATRIAL_FOLDER"] = json.dumps(place)
        python = str(Path(python).absolute()) if os.path.dirname(python) else python
    if bundle_path is None:
        environ |= self_location.import_variables({**os.environ, **own})
        agent = self_location.module_argv(python, _AGENT)
    else:
        agent = (*start_argv(python, bundle_path), "-m", _AGENT)
    argv = argv_of(
        mpi.launcher,
        hostfile=FILE_OF_HOSTS,
        rank_count=job.nodes,
        exported=environ,
        as_root=os.geteuid() == 0,
        start_in=_OF_ROOT if agents_enter else None,
        extra_args=mpi.extra_args,
    )
    rank, local_rank = _RANK_VARIABLES[mpi.launcher.kind]
    hosts = ",".join(f"{name}:{slots}" for name, slots in mpi.hosts)
    left_out = for_mpirun_alone(mpi.launcher)
    shell = f"unset {' '.join(left_out)}; {_SHELL}" if left_out else _SHELL
    words = ("/bin/sh", "-c", shell, "agent", *agent, mpi.counted, rank, local_rank, hosts)
    if (size_bytes := len(os.fsencode(" ".join(words)))) > _MOST_BYTES:
        raise RequestError(
            f"the names of {len(mpi.hosts)} hosts need a command line of {size_bytes >> 10} KiB, and with mpirun"
            f" {_MOST_BYTES >> 10} KiB are possible; give shorter names or fewer hosts, or use --on ssh."
        )
    return (
        FileCommand(
            argv=(*argv, *words),
            env={**own, **environ, **environ_of(mpi.launcher, {**os.environ, **own})},
            nodes=tuple(range(job.nodes)),
            folder=_OF_ROOT if left else None,
            hosts=hostfile_of(mpi.launcher, mpi.hosts),
            bundle_path=bundle_path,
            own_folders=own_folders_of(
                mpi.launcher, os.environ, mpi.extra_args, only_this_machine=mpi.only_this_machine
            ),
        ),
    )


def _address(job: Processes) -> str:
    from seatrial.targets.remote_defaults import own_address

    mpi: _Mpirun = job.detail
    if mpi.only_this_machine:
        return "127.0.0.1"
    names = [name for name, _ in mpi.hosts]
    address = own_address(names)
    if address is None:
        raise TargetUnreachableError(
            f"none of the hosts {', '.join(names[:4])} has an address with a route from here; check their names"
            f" (getent hosts {names[0]}) and the network."
        )
    return address


def _shown(commands: Sequence[Command]) -> list[str]:
    from seatrial.targets.launcher_process import shown_with_files

    return shown_with_files(commands)


def _driver(job: Processes) -> Driver:
    from seatrial.targets.launcher_process import Launcher

    return Launcher()


TARGETS = (
    Target(
        name="mpirun",
        help="Open MPI, MPICH or Intel MPI (--hosts, --hostfile)",
        order=2,
        options=(HOSTS, HOSTFILE, MPIRUN, _EXTRA_ARGS, OVERSUBSCRIBE),
        resolve=_resolve,
        render=render,
        dry_run_lines=_shown,
        address=_address,
        driver=_driver,
    ),
)
