"""The MPI backend of torch.distributed for the torch that pip installs, which has none of its own."""

from __future__ import annotations

import atexit
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from seatrial.errors import RequestError
from seatrial.worker.mpi_library import device_aware, end_mpi, load_mpi
from seatrial.worker.mpi_memory import keep_freed_memory

if TYPE_CHECKING:
    from seatrial.worker.mpi_group import MpiGroup

__all__ = ["BACKEND", "end", "register", "transport"]

BACKEND = "mpi" if dist.is_available() and dist.is_mpi_available() else "seatrial_mpi"
"""The name for ``init_process_group``: torch's own MPI where it was built with it, else ours.

torch refuses the plain name ``mpi`` when it was built without.
"""
_LONGEST_ADDRESS = 300
_created: Counter[tuple[int, ...]] = Counter()
_groups: list[MpiGroup] = []


def register() -> str:
    """Make the backend and the ``mpi://`` rendezvous known to torch, once; returns ``BACKEND``."""
    if BACKEND == "mpi" or hasattr(dist.Backend, BACKEND.upper()):
        return BACKEND
    from torch.distributed.rendezvous import register_rendezvous_handler

    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    # torch 2.15 attaches its flight recorder to every group that is not named here, and looks for a group's name where
    # groups written in Python have none.
    recorded: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recorded.add(BACKEND)
    register_rendezvous_handler("mpi", _rendezvous)  # type: ignore[no-untyped-call]
    atexit.register(_at_exit, os.getpid())
    return BACKEND


def transport(device_type: str = "cpu") -> str:
    """How tensors of a device reach MPI: ``host memory``, ``device memory``, or ``pinned host memory``."""
    if device_type == "cpu":
        return "host memory"
    # torch's own hands MPI every address as it is.
    return "device memory" if BACKEND == "mpi" or _takes_device() else "pinned host memory"


def end() -> None:
    """Finalize MPI on the clean path, when all ranks come here: their launcher waits for it."""
    well = [group.close() for group in _groups]
    _groups.clear()
    if all(well):
        end_mpi()


def _at_exit(pid: int) -> None:
    # An exception ended this rank: it leaves without MPI_Finalize, and the launcher ends the ranks that wait for it.
    # A child that was forked off has nothing to say in this.
    if os.getpid() == pid and getattr(sys, "last_type", None) is None:
        end()


def _takes_device() -> bool:
    return torch.cuda.is_available() and device_aware("rocm" if getattr(torch.version, "hip", None) else "cuda")


def _create(opts: Any, backend_options: Any) -> MpiGroup:
    """What torch calls for the world and for each new group, on its members."""
    from seatrial.worker.mpi_group import MpiGroup
    from seatrial.worker.mpi_lane import Watchdog

    world = load_mpi().COMM_WORLD
    members = tuple(opts.global_ranks_in_group) or tuple(range(opts.group_size))
    rank, size = members[opts.group_rank], opts.group_size
    if world.rank != rank or (world.size != size if not opts.global_ranks_in_group else world.size < size):
        raise RequestError(
            f"torch says that this is rank {rank} of {size}, MPI says rank {world.rank} of {world.size}; start the"
            " script with mpirun and let both count alike (RANK and WORLD_SIZE as the MPI launcher has them, or"
            ' init_method="mpi://").'
        )
    if not _created:
        keep_freed_memory()
    # Groups of the same members that are made one after the other must not be mistaken for one another.
    _created[members] += 1
    tag = zlib.crc32(repr((members, _created[members])).encode()) % 30_000
    timeout_s = opts.timeout.total_seconds()
    watchdog = Watchdog()
    watchdog.running = (time.monotonic(), "group creation", lambda: timeout_s)
    try:
        comm = world.Create_group(world.group.Incl(members), tag)
        group = MpiGroup(comm, opts.store, timeout_s, takes_device=_takes_device())
    finally:
        watchdog.running = None
    _groups.append(group)
    return group


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """``init_method="mpi://"``: MPI itself says who is where; the store stands on rank 0."""
    import socket

    MPI = load_mpi()  # noqa: N806
    world = MPI.COMM_WORLD
    # On one machine the name that it gives itself need not be known.
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    timeout = options.get("timeout") or timedelta(minutes=5)
    store = None
    text = ""
    if world.rank == 0:
        store = dist.TCPStore("0.0.0.0", 0, world.size, True, timeout, wait_for_workers=False)
        text = f"{'127.0.0.1' if local.size == world.size else socket.gethostname()} {store.port}"
    host, port = _told(world, text)
    if store is None:
        store = dist.TCPStore(host, port, world.size, False, timeout)
    yield store, world.rank, world.size
    raise RuntimeError("an mpi:// rendezvous cannot be repeated; destroy the process group and form it anew")


def _told(world: Any, text: str) -> tuple[str, int]:
    """Rank 0's address on all ranks, as text: nothing is pickled."""
    line = bytearray(text.encode().ljust(_LONGEST_ADDRESS, b"\0"))
    world.Bcast([line, _LONGEST_ADDRESS, load_mpi().BYTE], root=0)
    host, port = bytes(line).rstrip(b"\0").decode().split()
    return host, int(port)
