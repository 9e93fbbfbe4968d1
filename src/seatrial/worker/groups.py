"""The store and the process group of a rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from seatrial.worker.context import Context

__all__ = ["barrier", "close_world", "form", "form_world", "join_store", "open_store", "torch_backend", "transport"]


def torch_backend(backend: str) -> str:
    """The name that torch knows a backend by. Ours for MPI is registered by it."""
    if backend != "mpi":
        return backend
    from seatrial.worker import mpi

    return mpi.register()


def transport(context: Context) -> str:
    """From where MPI takes the tensors of this rank; empty with any other backend."""
    if context.backend != "mpi":
        return ""
    from seatrial.worker import mpi

    return mpi.transport(context.device.type)


def open_store(context: Context, timeout: timedelta) -> None:
    """Rank 0 of the group: open the TCP store on a port that the system chooses and share where it is."""
    import torch.distributed as dist

    # world_size stays None: nobody waits here, so a rank that never comes cannot hold up the one that opens.
    if context.store is None:
        context.store = dist.TCPStore(context.address, 0, None, True, timeout, wait_for_workers=False)
    context.share("store", {"host": context.address, "port": context.store.port})


def form_world(context: Context, timeout: timedelta) -> None:
    """Meet at the store and form the world group of this generation."""
    import torch.distributed as dist

    form(context, "world", context.ranks, timeout)
    context.group = dist.group.WORLD


def join_store(context: Context, timeout: timedelta) -> dist.TCPStore:
    """The store that the first rank opened."""
    import torch.distributed as dist

    if context.store is None:
        where = context.given["store"]
        context.store = dist.TCPStore(where["host"], where["port"], None, False, timeout)
    return context.store


def form(context: Context, name: str, ranks: Sequence[int], timeout: timedelta) -> None:
    """Meet those ranks at the store, under a name of their own, and make their group the default one of each."""
    import torch.distributed as dist

    options: dict[str, Any] = {}
    # Over NCCL a transfer that fails or comes too late raises nothing. 2: its group raises at the next operation.
    value = "2"
    if name == "world" and context.device.type == "cuda":
        # 3: the process ends, as whoever went on would compute with what never came. But never because a network is
        # slow: the time is for each operation of all steps to come, and the conductor has its deadlines.
        value, timeout = "3", timedelta(days=1)
    if context.device.type == "cuda" and context.backend != "mpi":
        # Without it a barrier guesses the device, and may guess another rank's.
        options["device_id"] = context.device.torch
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = value
    # Else the watchdog does so after a minute only, and has all other ranks end meanwhile.
    os.environ.update(TORCH_NCCL_DUMP_ON_TIMEOUT="0", TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="0")
    try:
        dist.init_process_group(
            torch_backend(context.backend),
            store=dist.PrefixStore(name, join_store(context, timeout)),
            rank=ranks.index(context.rank),
            world_size=len(ranks),
            timeout=timeout,
            **options,
        )
    except RuntimeError:
        # torch counts the attempt, and its count is in the names of the keys that two ranks meet by: the next partner,
        # who has failed less often, would wait for another key. To end a group sets the count back.
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        raise


def barrier(context: Context) -> None:
    """All ranks of the world have come here, and their devices are idle."""
    import torch.distributed as dist

    dist.barrier(group=context.group)
    context.device.synchronize()


def close_world() -> None:
    """Give the group back. On the clean path only: after a failure it would wait for ranks that are gone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    if "seatrial.worker.mpi" in sys.modules:
        # A rank ends past all exit handlers, and a launcher of MPI takes it for dead that has not finalized.
        sys.modules["seatrial.worker.mpi"].end()
