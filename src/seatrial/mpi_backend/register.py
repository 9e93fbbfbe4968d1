"""Registration of the MPI backend with torch, creation of its groups, and the ``mpi://`` rendezvous."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from seatrial.errors import RequestError, TargetUnreachableError
from seatrial.mpi_backend import addresses, proof
from seatrial.mpi_backend.library import device_aware, end_mpi, load_mpi
from seatrial.mpi_backend.memory import keep_freed_memory

if TYPE_CHECKING:
    from seatrial.mpi_backend.group import MpiGroup


BACKEND = "mpi" if dist.is_available() and dist.is_mpi_available() else "seatrial_mpi"
"""The name for ``init_process_group``: ``mpi`` where torch was built with MPI, else our own.

torch refuses the name ``mpi`` when it was built without MPI.
"""
_LINE_BYTES = 2048
"""What each rank tells rank 0, and what that one tells all: at least 40 addresses."""
_HEADER_BYTES = 120
"""What rank 0 needs of that for two ports, its proof and MASTER_ADDR."""
_SEARCHES = 0.8
"""The part of the timeout in which a rank searches for rank 0. The rest is for its sentence: then rank 0 ends."""
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
    world = load_mpi().COMM_WORLD
    if reason := _reason_for_one_rank(world.size, os.environ):
        raise RequestError(reason)
    watchdog = Watchdog()
    with contextlib.ExitStack() as until_all_met:
        with watchdog.watching("rendezvous", timeout.total_seconds()):
            here = addresses.this_place()
            places = [addresses.place_of(line) for line in _gather(world, here.line(_LINE_BYTES - _HEADER_BYTES))]
            # Not every build of torch has libuv.
            if world.rank == 0:
                store = dist.TCPStore("0.0.0.0", 0, world.size, True, timeout, wait_for_workers=False, use_libuv=False)
                known = secrets.token_hex(16)
                own = addresses.addresses_of_first(places, os.environ.get("MASTER_ADDR", ""))
                ports = f"{store.port} {until_all_met.enter_context(proof.answering(known))}"
                text = " ".join((ports, known, here.stack, *own))
            port, asked_port, known, line = _broadcast(world, text).split(maxsplit=3)
        first = addresses.place_of(line)
        found = first.addresses if world.rank == 0 else addresses.nearest_first(first, here)
        if not found:
            raise RequestError(
                "rank 0 has no address for the other hosts: each one of its interfaces that are up is that of a"
                " loopback, or one that another host has, too (of a bridge, or behind a translation of addresses); set"
                " MASTER_ADDR=ADDRESS to one at which the others reach it."
            )
        # From here on all ranks have the same time, however late the last one came.
        with watchdog.watching("rendezvous", timeout.total_seconds()):
            if store is None:
                store = _join(found, int(port), int(asked_port), known, world.size, timeout)
            world.Barrier()
    yield store, world.rank, world.size
    raise RuntimeError("an mpi:// rendezvous cannot be repeated; destroy the process group and form a new one")


def _join(found: Sequence[str], port: int, asked_port: int, known: str, size: int, timeout: timedelta) -> dist.TCPStore:
    """Join the store of rank 0, which is at that of these addresses where somebody shows the proof."""
    limit_s = _SEARCHES * timeout.total_seconds()
    if address := proof.first_with_proof(known, found, asked_port, limit_s):
        return dist.TCPStore(address, port, size, False, timeout, use_libuv=False)
    raise TargetUnreachableError(
        f"rank 0 answers at none of its addresses within {limit_s:g} s ({', '.join(found)}, port {asked_port}); see"
        " which firewall is between the hosts, or who else has such an address, or set MASTER_ADDR=ADDRESS to one at"
        " which the other hosts reach rank 0"
    )


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


def _gather(world: Any, line: str) -> list[str]:
    """Return the lines of all ranks on rank 0, and none elsewhere. They travel as text: nothing is pickled."""
    kind = load_mpi().BYTE
    lines = bytearray(_LINE_BYTES * world.size if world.rank == 0 else 0)
    everything = [lines, _LINE_BYTES, kind] if world.rank == 0 else None
    world.Gather([_padded(line), _LINE_BYTES, kind], everything, root=0)
    return [_text(lines[at : at + _LINE_BYTES]) for at in range(0, len(lines), _LINE_BYTES)]


def _broadcast(world: Any, line: str) -> str:
    """Return the line of rank 0 on all ranks."""
    buffer = _padded(line)
    world.Bcast([buffer, _LINE_BYTES, load_mpi().BYTE], root=0)
    return _text(buffer)


def _padded(line: str) -> bytearray:
    return bytearray(line.encode().ljust(_LINE_BYTES, b"\0"))


def _text(line: bytearray) -> str:
    return bytes(line).rstrip(b"\0").decode()
