"""Real ranks over Gloo for tests: a function runs in each of several processes, and what it gives back comes home."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

__all__ = ["groups_of", "run_ranks"]


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(rank, *arguments)`` in so many processes with one group; what each rank gave back, by rank."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as folder:
        places = (world_size, store.port, folder, function, arguments)
        mp.spawn(_main, args=places, nprocs=world_size)  # type: ignore[no-untyped-call]
        # Written by the lines below, so trusted.
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world_size)]


def groups_of(*sizes: int) -> dict[int, dist.ProcessGroup]:
    """Groups of the first so many ranks, by size: those that this rank belongs to. All ranks call this."""
    made = {size: dist.new_group(range(size)) for size in sizes}
    return {size: group for size, group in made.items() if dist.get_rank() < size}


def _main(
    rank: int, world_size: int, port: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    torch.save(function(rank, *arguments), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
