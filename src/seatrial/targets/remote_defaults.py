"""Shared parts of targets whose nodes cannot be inspected from here: mpirun and Slurm.

The user says which devices the nodes have. The bundle is written into the folder of the run, which must be on a file
system that all nodes see; each node makes a private copy of it, compares its SHA-256 with the one in the command, and
runs that (``start.py``). The launchers have no common way to send a file; clusters with MPI or Slurm have a shared
folder, which mostly holds the Python and torch of the ranks, and the agents leave their events there.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import socket
import time
from collections.abc import Iterable, Mapping

from seatrial import start
from seatrial.bundle import bundle
from seatrial.errors import RequestError
from seatrial.probe.names import is_loopback
from seatrial.probe.torch_install import find_torch
from seatrial.resolver import query
from seatrial.targets.target import TargetRequest

_ENV = "/usr/bin/env"
"""It looks for a program in PATH only."""
_ANY_PORT = 9
_RESOLVE_S = 20.0


def device_of(target_request: TargetRequest, python: str) -> str:
    """Return ``cpu``, ``cuda`` or ``rocm``: ``--device``, or the GPUs that the torch of ``python`` supports.

    Raises RequestError when neither names a device, for NCCL on the CPU, and for ``--nproc-per-node cpu``.
    """
    require_count(target_request)
    device = target_request.device
    if device == "auto":
        torch = find_torch(python)
        device = "rocm" if torch.hip else "cuda" if torch.cuda else ""
    if not device:
        # A CPU trial on GPU nodes would report PASS for GPUs that it did not test.
        raise RequestError(
            f"--on {target_request.target}: the devices of the nodes cannot be read from here, and the torch of"
            f" {python} is built for the CPU only; add --device cpu, or cuda or rocm if they have another torch."
        )
    if device == "cpu" and target_request.backend == "nccl":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; with --device cpu use --backend gloo.")
    return device


def require_count(target_request: TargetRequest) -> None:
    """Raise RequestError for a process for each core of nodes whose cores cannot be read from here."""
    if target_request.processes_by == "cpu":
        raise RequestError(
            f"--nproc-per-node cpu: with --on {target_request.target} the cores of the nodes cannot be read from here;"
            " give a number."
        )


def start_argv(python: str, bundle_path: str) -> tuple[str, ...]:
    """Return the command that makes a private copy of the bundle at ``bundle_path`` on a node and starts Python on it.

    The words of that Python follow. The start script is sent in it, since nothing but the bundle lies in the folder.
    """
    text = inspect.getsource(start)
    # In one line, which every launcher hands on; `-c` would look for modules in the working folder first.
    script = f'import sys; del sys.path[: sys.path[:1] == [""]]; exec({text!r})'
    # -E: it needs no module of the user, and the login of a host may set a PYTHONPATH with the working folder in it.
    # srun takes a name from the folder where it starts the agent, too, if PATH has none.
    program = (python,) if os.path.dirname(python) else (_ENV, python)
    return (*program, "-Ec", script, hashlib.sha256(bundle()).hexdigest(), "-", bundle_path, "--")


def agent_environ(environ: Mapping[str, str], *, control: str, token: str, keep: str) -> dict[str, str]:
    """Return the variables that an agent needs to connect, and those of ``environ`` with which Python finds modules and
    the agent waits as long as its controller.

    ``control`` is host:port, ``keep`` the folder in which agents leave events.
    """
    names = ("PYTHONPATH", "PYTHONSAFEPATH", "SEATRIAL_JOIN_TIMEOUT_S")
    passed = {name: environ[name] for name in names if environ.get(name)}
    return {"SEATRIAL_CONTROL": control, "SEATRIAL_TOKEN": token, "SEATRIAL_KEEP": keep, **passed}


def own_address(hosts: Iterable[str]) -> str | None:
    """Return the address of this machine on the route to the first host that has one; None: no host has a route.

    The result is a loopback address only if no host is reached in another way. A resolver that is slow to say that it
    does not know a name is asked for the first names only.
    """
    loopback = None
    until = time.monotonic() + _RESOLVE_S
    for host in hosts:
        if (left_s := until - time.monotonic()) <= 0:
            break
        try:
            addresses = query(host, _ANY_PORT, timeout_s=left_s, kind=socket.SOCK_DGRAM)
        except OSError:  # Slurm has names of any form
            continue
        for family, kind, protocol, _, address in addresses:
            try:
                # This sends no packet; the kernel only chooses the source address.
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(address)
                    source = str(probe.getsockname()[0])
            except OSError:
                continue
            if not is_loopback(source):
                return source
            loopback = loopback or source
    return loopback
