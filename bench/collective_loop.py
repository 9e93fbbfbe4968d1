"""Our collective loop against the bare call, on the same group in the same processes; prints one JSON line.

    python bench/collective_loop.py ROUNDS

Each round times the same number of calls both ways, in turn; the ratio is the median over rounds of their medians.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from seatrial.checks.collectives import measure

SIZES = (8, 65_536, 1_048_576)
CALLS = 50


def bare(call: object, calls: int) -> float:
    """Median seconds of a call in the loop that anybody would write."""
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()  # type: ignore[operator]
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def rank_main(rank: int, port: int, rounds: int, results: object) -> None:
    """One rank: both loops in turn, at each size."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    context = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    told = {}
    for size in SIZES:
        call = partial(dist.all_reduce, torch.zeros(size // 4))
        ratios = []
        for _ in range(rounds):
            dist.barrier()
            ours = statistics.median(measure._time_calls(context, call, CALLS))
            dist.barrier()
            ratios.append(ours / bare(call, CALLS))
        told[str(size)] = {"median_ratio": round(statistics.median(ratios), 4)}
    if rank == 0:
        results.put({"all_reduce bytes: ours / bare": told, "rounds": rounds, "calls": CALLS})  # type: ignore[attr-defined]
    dist.destroy_process_group()


def main() -> None:
    """Start two ranks and print what rank 0 found."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_main, args=(port, int(sys.argv[1]), results), nprocs=2)
    print(json.dumps(results.get()))


if __name__ == "__main__":
    main()
