"""Registration of the MPI backend with torch, creation of its groups, and the ``mpi://`` rendezvous."""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import os
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from seatrial.errors import RequestError
from seatrial.mpi_backend.library import device_aware, end_mpi, load_mpi
from seatrial.mpi_backend.memory import keep_freed_memory

if TYPE_CHECKING:
    from seatrial.mpi_backend.group import MpiGroup


BACKEND = "mpi" if dist.is_available() and dist.is_mpi_available() else "seatrial_mpi"
"""The name for ``init_process_group``: ``mpi`` where torch was built with MPI, else our own.

torch refuses the name ``mpi`` when it was built without MPI.
"""
_LONGEST_ADDRESS = 300
_MPI_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where Open MPI, hydra or srun with pmi2, and MVAPICH2 give the number of the ranks that they started."""
_created: Counter[tuple[int, ...]] = Counter()
_groups: list[MpiGroup] = []


def register() -> str:
    """Register the backend and the ``mpi://`` rendezvous with torch, once; return ``BACKEND``."""
    if BACKEND == "mpi" or hasattr(dist.Backend, BACKEND.upper()):
        return BACKEND
    from torch.distributed.rendezvous import register_rendezvous_handler

    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    # torch 2.15 attaches its flight recorder to every backend that is not in this set, and reads an attribute that
    # groups written in Python do not have.
    recorded: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recorded.add(BACKEND)
    register_rendezvous_handler("mpi", _rendezvous)  # type: ignore[no-untyped-call]
    atexit.register(_at_exit, os.getpid())
    return BACKEND


def transport(device_type: str = "cpu") -> str:
    """Return how tensors of a device reach MPI: ``host memory``, ``device memory`` or ``pinned host memory``."""
    if device_type == "cpu":
        return "host memory"
    # torch's own MPI backend passes every address to MPI unchanged.
    return "device memory" if BACKEND == "mpi" or _takes_device() else "pinned host memory"


def end() -> None:
    """Finalize MPI on the clean path, on all ranks: their launcher waits for it."""
    succeeded = [group.close() for group in _groups]
    _groups.clear()
    if all(succeeded):
        end_mpi()


def _at_exit(pid: int) -> None:
    # A rank that ends by an exception skips MPI_Finalize, so that the launcher ends the ranks that wait for it.
    # A forked child must not finalize the MPI of its parent.
    if os.getpid() == pid and getattr(sys, "last_type", None) is None:
        end()


def _takes_device() -> bool:
    return torch.cuda.is_available() and device_aware("rocm" if getattr(torch.version, "hip", None) else "cuda")


def _create(opts: Any, backend_options: Any) -> MpiGroup:
    """Create a group; torch calls this for the world and for each new group, on its members."""
    from seatrial.mpi_backend.group import MpiGroup
    from seatrial.mpi_backend.lane import Watchdog

    world = load_mpi().COMM_WORLD
    members = tuple(opts.global_ranks_in_group) or tuple(range(opts.group_size))
    rank, size = members[opts.group_rank], opts.group_size
    if world.rank != rank or (world.size != size if not opts.global_ranks_in_group else world.size < size):
        if reason := _reason_for_one_rank(world.size, {**os.environ, "WORLD_SIZE": str(size)}):
            raise RequestError(reason)
        raise RequestError(
            f"torch says that this is rank {rank} of {size}, MPI says rank {world.rank} of {world.size}; use the same"
            " numbers for both: RANK and WORLD_SIZE as MPI's launcher has them (seatrial launch --on mpirun sets them),"
            ' or init_method="mpi://".'
        )
    if not _created:
        keep_freed_memory()
    # Groups with the same members, created one after the other, need different tags.
    _created[members] += 1
    tag = zlib.crc32(repr((members, _created[members])).encode()) % 30_000
    timeout_s = opts.timeout.total_seconds()
    with Watchdog().watching("group creation", timeout_s):
        comm = world.Create_group(world.group.Incl(members), tag)
        group = MpiGroup(comm, opts.store, timeout_s, takes_device=_takes_device())
    _groups.append(group)
    return group


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """Rendezvous by ``init_method="mpi://"``: rank and world size come from MPI, and rank 0 opens the store."""
    from seatrial.mpi_backend.lane import Watchdog

    timeout = options.get("timeout") or timedelta(minutes=5)
    store = None
    text = ""
    MPI = load_mpi()  # noqa: N806
    world = MPI.COMM_WORLD
    if reason := _reason_for_one_rank(world.size, os.environ):
        raise RequestError(reason)
    with Watchdog().watching("rendezvous", timeout.total_seconds()):
        # On one machine its own host name may not resolve.
        local = world.Split_type(MPI.COMM_TYPE_SHARED)
        # Not every build of torch has libuv.
        if world.rank == 0:
            store = dist.TCPStore("0.0.0.0", 0, world.size, True, timeout, wait_for_workers=False, use_libuv=False)
            text = f"{'127.0.0.1' if local.size == world.size else _own_address()} {store.port}"
        host, port = _broadcast_address(world, text)
    if store is None:
        store = dist.TCPStore(host, port, world.size, False, timeout, use_libuv=False)
    yield store, world.rank, world.size
    raise RuntimeError("an mpi:// rendezvous cannot be repeated; destroy the process group and form a new one")


def _own_address() -> str:
    """Return the address at which the others reach this rank.

    A name they would have to ask for: in a pod that of any account with a Service, or of a domain of the host, comes
    first on the way of the question, and each rank would join a stranger. The own name is in /etc/hosts of a pod.
    """
    try:
        ipaddress.ip_address(master := os.environ.get("MASTER_ADDR", ""))
        towards = [master]
    except ValueError:
        towards = []
    with contextlib.suppress(OSError):
        towards += [str(place[0]) for *_, place in socket.getaddrinfo(socket.gethostname(), None)]
    # Debian maps the name of a host to 127.0.1.1. The last ones are for documentation (RFC 5737, RFC 3849): the default
    # route leads there, and no packet leaves.
    for address in (*towards, "192.0.2.1", "2001:db8::1"):
        if source := _source_towards(address):
            number = ipaddress.ip_address(source.partition("%")[0])
            if not (number.is_loopback or number.is_link_local):
                return source
    return "127.0.0.1"


def _source_towards(address: str) -> str:
    """Return the address from which this host sends to another one; empty without a way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((address, 9))
        return str(way.getsockname()[0])
    return ""


def _reason_for_one_rank(size: int, environ: Mapping[str, str]) -> str:
    """Return why MPI's world of ``size`` ranks is not the job's, or an empty text.

    Without its launcher each rank would see itself alone, and train on all data.
    """
    if size > 1:
        return ""
    by_mpi = any(name in environ for name in _MPI_WORLD_SIZES)
    start = "start the script with mpirun -np N, or with seatrial launch --on mpirun"
    # Helpers of mpirun are tasks of srun too, whose number is not that of the ranks.
    for name in ("WORLD_SIZE",) if by_mpi else ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if (text := environ.get(name, "")).isdecimal() and int(text) > 1:
            return f"this job has {text} ranks ({name}), but MPI sees 1: mpirun did not start this process; {start}."
    if not by_mpi and "PMIX_RANK" not in environ:
        return f"MPI takes rank and world size from mpirun, which did not start this process; {start}."
    return ""


def _broadcast_address(world: Any, text: str) -> tuple[str, int]:
    """Return rank 0's address on all ranks. It travels as text: nothing is pickled."""
    line = bytearray(text.encode().ljust(_LONGEST_ADDRESS, b"\0"))
    world.Bcast([line, _LONGEST_ADDRESS, load_mpi().BYTE], root=0)
    host, port = bytes(line).rstrip(b"\0").decode().split()
    return host, int(port)
