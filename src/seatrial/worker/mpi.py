"""The MPI backend of torch.distributed for the torch that pip installs, which has none of its own."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from seatrial.errors import RequestError
from seatrial.worker.mpi_library import device_aware, end_mpi, load_mpi

__all__ = ["BACKEND", "end", "register", "transport"]

BACKEND = "mpi" if dist.is_available() and dist.is_mpi_available() else "seatrial_mpi"
"""The name for ``init_process_group``: torch's own MPI where it was built with it, else ours.

torch refuses the plain name ``mpi`` when it was built without.
"""
_created: Counter[tuple[int, ...]] = Counter()


def register() -> str:
    """Make the backend and the ``mpi://`` rendezvous known to torch, once; returns ``BACKEND``."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    from torch.distributed.rendezvous import register_rendezvous_handler

    try:
        register_rendezvous_handler("mpi", _rendezvous)
    except RuntimeError:  # it is known already
        pass
    return BACKEND


def transport(device_type: str = "cpu") -> str:
    """How tensors of a device reach MPI: ``host memory``, ``device memory``, or ``pinned host memory``."""
    if device_type == "cpu":
        return "host memory"
    return "device memory" if _takes_device() else "pinned host memory"


def end() -> None:
    """Finalize MPI, on the clean path, after the groups were destroyed. The launcher waits for it."""
    end_mpi()


def _takes_device() -> bool:
    import torch

    return torch.cuda.is_available() and device_aware("rocm" if getattr(torch.version, "hip", None) else "cuda")


def _create(opts: Any, backend_options: Any) -> Any:
    """What torch calls for the world and for each new group, on its members."""
    from seatrial.worker.mpi_group import MpiGroup

    MPI = load_mpi()  # noqa: N806
    world = MPI.COMM_WORLD
    members = tuple(opts.global_ranks_in_group) or tuple(range(opts.group_size))
    expected = members[opts.group_rank]
    if world.rank != expected or world.size < opts.group_size:
        raise RequestError(
            f"torch says that this is rank {expected} of {opts.group_size}, MPI says rank {world.rank} of {world.size};"
            " start the script with mpirun and let both count alike (RANK and WORLD_SIZE from the MPI launcher, or"
            " init_method='mpi://')."
        )
    # Groups of the same members that are made one after the other must not be mistaken for one another.
    _created[members] += 1
    tag = zlib.crc32(repr((members, _created[members])).encode()) % 30_000
    comm = world.Create_group(world.group.Incl(members), tag)
    return MpiGroup(comm, opts.store, opts.timeout.total_seconds(), takes_device=_takes_device())


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """``init_method="mpi://"``: MPI itself says who is where; the store stands on rank 0."""
    import socket
    from datetime import timedelta

    world = load_mpi().COMM_WORLD
    timeout = options.get("timeout") or timedelta(minutes=5)
    store = address = None
    if world.rank == 0:
        store = dist.TCPStore("0.0.0.0", 0, world.size, True, timeout, wait_for_workers=False)
        address = (socket.gethostname(), store.port)
    host, port = _told(world, address)
    if store is None:
        store = dist.TCPStore(host, port, world.size, False, timeout)
    yield store, world.rank, world.size
    raise RuntimeError("an mpi:// rendezvous cannot be repeated")


def _told(world: Any, address: tuple[str, int] | None) -> tuple[str, int]:
    """Rank 0's address on all ranks, as text: nothing is pickled."""
    line = bytearray(b"\0" * 300)
    if address is not None:
        text = f"{address[0]} {address[1]}".encode()
        line[: len(text)] = text
    world.Bcast([line, 300, load_mpi().BYTE], root=0)
    host, port = bytes(line).rstrip(b"\0").decode().split()
    return host, int(port)
