"""``--on mpirun``: one agent a rank, as the ranks of Open MPI, MPICH or Intel MPI.

Of a rank, not of a node: so OMPI_*, PMI_* and MPI itself in a rank are what they are in any job of this mpirun.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from seatrial.errors import RequestError, SeatrialError
from seatrial.launch import place
from seatrial.launch.command import Command
from seatrial.launch.hosts import HOSTFILE, HOSTS, Host, hosts_of
from seatrial.launch.job import Processes
from seatrial.launch.launchers import FileCommand, Launcher, shown_with_files
from seatrial.launch.mpi_launchers import MpiLauncher, argv_of, environ_of, hostfile_of, recognise
from seatrial.launch.option import MPIRUN, Option
from seatrial.launch.target import Driver, Placement, Target, Where
from seatrial.launch.unseen import agent_environ, device_of, own_address

__all__ = ["TARGETS", "render"]

_VERSION_S = 30.0
_THIS_MACHINE = "localhost"
_LEAST_OF_MPI = 2

_MORE = Option(flags=("--mpi-arg",), name="mpi_arg", help="Another word for mpirun.", metavar="WORD", multiple=True)

_WHO = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID"),
    "intel": ("PMI_RANK", "MPI_LOCALRANKID"),
}
"""The variables that tell a rank who it is: rank, local rank."""
# MPICH kills all ranks when a signal ends what it started, and Open MPI that may recover from deaths does not say that
# there is no such Python. A shell in between turns both into a line and an exit code.
_IN_A_SHELL = ("/bin/sh", "-c", '"$@"; exit $?', "agent")
# All ranks are started with the same words: the hosts and how many each has, in the order of ranks. Whether a rank was
# placed where it should be is seen at once: an mpirun that does not heed its hosts starts all on one machine.
_AGENT = (
    'import os, runpy, sys; del sys.path[: sys.path[:1] == [""]]; e = os.environ; a = sys.argv;'
    ' e.keys() >= {a[1], a[2]} or sys.exit(f"the launcher has not set {a[1]} and {a[2]}");'
    ' names, _, slots = zip(*(word.rpartition(":") for word in a[3].split(",")));'
    " rank, told, slots = int(e[a[1]]), int(e[a[2]]), [int(n) for n in slots];"
    " node = next(n for n in range(len(slots)) if rank < sum(slots[: n + 1])); local = rank - sum(slots[:node]);"
    ' told == local or sys.exit(f"the launcher has made rank {rank} number {told} of its host, not number {local}");'
    ' tell = {"NODE_RANK": rank, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": slots[node], "GROUP_RANK": node,'
    ' "GROUP_WORLD_SIZE": len(slots), "PEER": " ".join((names[node + 1 :] + names[:node])[:2]), "NIC": "route"};'
    ' e.update({f"SEATRIAL_{name}": str(value) for name, value in tell.items()}); del a[1:];'
    ' runpy.run_module("seatrial.agent.main", run_name="__main__", alter_sys=True)'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mpirun:
    """What only this target knows of its job."""

    launcher: MpiLauncher
    hosts: tuple[tuple[str, int], ...]
    """Names and slots."""
    more: tuple[str, ...]
    alone: bool
    """All ranks are on this machine."""
    installed: bool
    """The hosts have an installation; else our code is handed to them."""


def _resolve(where: Where) -> Placement:
    python = where.python or sys.executable
    launcher = _find(where.own["mpirun"])
    asked = _hosts(where)
    if asked:
        device = device_of(where, python)
        hosts = tuple((host.name, _slots(host, where)) for host in asked)
        env: dict[str, str] = {}
    else:
        here = place.choose(
            device=where.device, backend=where.backend, nproc_per_node=where.nproc_per_node, python=python
        )
        device, env = here.device, here.env
        hosts = ((_THIS_MACHINE, here.nproc_per_node),)
    count = sum(slots for _, slots in hosts)
    if where.backend == "mpi" and count < _LEAST_OF_MPI and where.typed[:1] == ("run",):
        raise RequestError(f"--backend mpi: one rank has nobody to talk to; ask for {_LEAST_OF_MPI} or more.")
    there = "this machine" if not asked else f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}"
    return Placement(
        nodes=count,
        nproc_per_node=1,
        device=device,
        backend=where.backend,
        python=python,
        env=env,
        words=f"on {there} by {launcher}",
        detail=_Mpirun(
            launcher=launcher,
            hosts=hosts,
            more=where.own["mpi_arg"],
            alone=not asked,
            installed=not asked or where.backend == "mpi",
        ),
    )


def _hosts(where: Where) -> tuple[Host, ...]:
    """Those that were told; none: this machine."""
    if where.own["hosts"] is None and where.own["hostfile"] is None:
        return ()
    found = hosts_of(where.own["hosts"], where.own["hostfile"])
    names = [host.name for host in found]
    for host in found:
        if host.user is not None or host.port is not None:
            raise RequestError(
                f"{host.name}: mpirun cannot be told a user or a port for each host; put them into ~/.ssh/config."
            )
        if names.count(host.name) > 1:
            raise RequestError(f"{host.name} is named twice; give it all its slots in one place.")
    return found


def _find(told: str) -> MpiLauncher:
    path = shutil.which(told)
    if path is None:
        raise RequestError(
            f"--on mpirun: {told} is not to be found; name an mpirun with --mpirun, or put it into PATH."
        )
    # Its helpers on the other hosts are looked for beside it.
    path = os.path.abspath(path)
    try:
        done = subprocess.run(
            [path, "--version"],
            env={**os.environ, "PATH": os.pathsep.join([os.path.dirname(path), os.environ.get("PATH", "")])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_S,
            check=False,
        )
    except OSError as error:
        raise RequestError(
            f"{path} cannot be started ({error.strerror}); name another mpirun with --mpirun."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SeatrialError(f"{path} --version has not answered within {_VERSION_S:.0f} s.") from error
    return recognise(path, done.stdout + done.stderr)


def _slots(host: Host, where: Where) -> int:
    slots = host.slots or where.nproc_per_node
    if slots is None:
        raise RequestError(
            f"{host.name}: how many ranks it gets is not told; write {host.name}:M, or add --nproc-per-node M."
        )
    if where.nproc_per_node is not None and where.nproc_per_node > slots:
        raise RequestError(f"{host.name} has {slots} slots, and --nproc-per-node asks for {where.nproc_per_node}.")
    return where.nproc_per_node or slots


def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
    """One mpirun that starts the agents of all ranks."""
    mpi: _Mpirun = job.detail
    folder = os.path.abspath(keep)
    hostfile = os.path.join(folder, "hostfile")
    code = None if mpi.installed else os.path.join(folder, "seatrial.pyz")
    environ = agent_environ(os.environ, control=control, token=token, keep=folder, code=code)
    argv = argv_of(
        mpi.launcher,
        hostfile=hostfile,
        count=job.nodes,
        passed_on=environ,
        as_root=os.geteuid() == 0,
        more=mpi.more,
    )
    rank, local_rank = _WHO[mpi.launcher.kind]
    hosts = ",".join(f"{name}:{slots}" for name, slots in mpi.hosts)
    agent = (*_IN_A_SHELL, job.python, "-c", _AGENT, rank, local_rank, hosts)
    return (
        FileCommand(
            argv=(*argv, *agent),
            env={**environ, **environ_of(mpi.launcher, os.environ)},
            nodes=tuple(range(job.nodes)),
            files={hostfile: hostfile_of(mpi.launcher, mpi.hosts)},
            code=code,
        ),
    )


def _address(job: Processes) -> str:
    mpi: _Mpirun = job.detail
    if mpi.alone:
        return "127.0.0.1"
    names = [name for name, _ in mpi.hosts]
    found = own_address(names)
    if found is None:
        raise SeatrialError(f"none of the hosts {', '.join(names[:4])} has an address that can be routed to from here.")
    return found


def _driver(job: Processes) -> Driver:
    return Launcher()


TARGETS = (
    Target(
        name="mpirun",
        help="Open MPI, MPICH or Intel MPI",
        options=(HOSTS, HOSTFILE, MPIRUN, _MORE),
        resolve=_resolve,
        render=render,
        shown=shown_with_files,
        address=_address,
        driver=_driver,
    ),
)
