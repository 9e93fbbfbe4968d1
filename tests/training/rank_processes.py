"""Real ranks over Gloo for tests: a function runs in each of several processes, and its results come back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of module level, and what it is given besides the rank."""


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(rank, *arguments)`` in ``world_size`` processes with one group; returns the results by rank."""
    return run_jobs(world_size, {"": (function, arguments)})[""]


def run_jobs(world_size: int, jobs: dict[str, Job]) -> dict[str, list[Any]]:
    """Several such functions, one after the other in the same processes, each with a group of its own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_main, args=(world_size, store.port, folder, jobs), nprocs=world_size)  # type: ignore[no-untyped-call]
        # Written by the lines below, so trusted.
        results = [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world_size)]
    return {name: [rank[name] for rank in results] for name in jobs}


def groups_of(*sizes: int) -> dict[int, dist.ProcessGroup]:
    """Groups of the first so many ranks, by size: those that this rank belongs to. All ranks call this."""
    made = {size: dist.new_group(range(size)) for size in sizes}
    return {size: group for size, group in made.items() if dist.get_rank() < size}


def _main(rank: int, world_size: int, port: int, folder: str, jobs: dict[str, Job]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    results = {}
    for name, (function, arguments) in jobs.items():
        dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world_size)
        results[name] = function(rank, *arguments)
        if dist.is_initialized():  # the function may have closed it
            dist.destroy_process_group()
    torch.save(results, Path(folder, f"{rank}.pt"))
