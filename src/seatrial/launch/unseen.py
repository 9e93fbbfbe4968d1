"""Nodes that cannot be looked at from here: their devices are told, and our code lies in a folder that they share.

The file that travels is written into the folder of the run, which is private and must be on a file system that all
nodes see. The launchers have no way of handing a file on that all of them know; a shared folder is what clusters with
MPI or Slurm have, Python and torch of the ranks mostly lie in one, and the agents leave their events there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from seatrial.errors import RequestError
from seatrial.launch.target import Where
from seatrial.probe import own_code
from seatrial.probe.names import is_loopback
from seatrial.probe.torch_install import find_torch

__all__ = ["agent_environ", "device_of", "own_address"]

_ANY_PORT = 9


def device_of(where: Where, python: str) -> str:
    """``cpu``, ``cuda`` or ``rocm``. Raises RequestError when it is neither told nor to be seen by the torch here."""
    device = where.device
    if device == "auto":
        torch = find_torch(python)
        device = "rocm" if torch.hip else "cuda" if torch.cuda else ""
    if not device:
        # A CPU trial on GPU nodes would say PASS of devices that nobody looked at.
        raise RequestError(
            f"--on {where.target}: the nodes cannot be looked at from here, and the torch of {python} is built for the"
            " CPU only; add --device cpu, or cuda or rocm if they have another torch."
        )
    if device == "cpu" and where.backend == "nccl":
        raise RequestError("--backend nccl: NCCL moves data between GPUs only; with --device cpu use --backend gloo.")
    return device


def agent_environ(
    environ: Mapping[str, str], *, control: str, token: str, keep: str, code: str | None
) -> dict[str, str]:
    """What an agent must have in its environment to join, and to find our code.

    ``code``: the file that travels; None: the nodes have an installation.
    """
    return {
        "SEATRIAL_CONTROL": control,
        "SEATRIAL_TOKEN": token,
        "SEATRIAL_KEEP": keep,
        **(own_code.environ_for(environ) if code is None else own_code.environ_for(environ, code)),
    }


def own_address(hosts: Iterable[str]) -> str | None:
    """The address of this machine on its way to the first of the hosts that has an address and can be routed to.

    One of loopback is for hosts that are all this machine.
    """
    loopback = None
    for host in hosts:
        try:
            found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, protocol, _, address in found:
            try:
                # No packet leaves: the kernel tells what it would send from.
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(address)
                    own = str(probe.getsockname()[0])
            except OSError:
                continue
            if not is_loopback(own):
                return own
            loopback = loopback or own
    return loopback
