"""The ranks of one node, started by torch.multiprocessing: no launcher, and a place that was typed by hand."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from seatrial.worker.mpi_end import leave
from seatrial.worker.train import INTERRUPTED, Place, hush_numpy, run_rank
from seatrial.worker.train_spec import Spawn, TrainSpec

__all__ = ["spawn"]

_FAILURE_GRACE_S = 5.0
_HEAR_ALL_S = 1.0


def spawn(spec: TrainSpec) -> int:
    """Start the ranks of this node, and see to it that none is left. Returns the exit code of all of them.

    SIGTERM and SIGINT are passed on: the ranks save and end. A second one ends them at once.
    """
    caught: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    # Before torch, whose import takes seconds.
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    # In the environment, since the ranks import torch before they come to us.
    quiet = "ignore:Failed to initialize NumPy:UserWarning"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), quiet)))
    hush_numpy()
    import torch.multiprocessing as mp

    assert spec.spawn is not None
    processes: list[Any] = []
    try:
        context = mp.spawn(_child, args=(spec.to_json(),), nprocs=spec.spawn.nproc_per_node, join=False)  # type: ignore[no-untyped-call]
        processes = context.processes
        return _watch(processes, caught, spec.spawn)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(processes: list[Any], caught: list[int], node: Spawn) -> int:
    first_rank = node.node_rank * node.nproc_per_node
    until = float("inf")
    told = 0
    ended: dict[int, int] = {}
    while len(ended) < len(processes):
        running = [process.sentinel for at, process in enumerate(processes) if at not in ended]
        wait(running, timeout=0.1)
        now = time.monotonic()
        for at, process in enumerate(processes):
            if at in ended or process.exitcode is None:
                continue
            ended[at] = process.exitcode
            if process.exitcode != 0 and not told and until == float("inf"):
                until = now + _HEAR_ALL_S + _FAILURE_GRACE_S
                if process.exitcode < 0:
                    name = signal.Signals(-process.exitcode).name
                    print(f"seatrial: rank {first_rank + at} was killed by {name}", file=sys.stderr, flush=True)
        if len(caught) > told:
            told = len(caught)
            until = now + node.stop_grace_s if told == 1 else now
            _signal_all(processes, signal.SIGTERM)
        if now >= until:
            _signal_all(processes, signal.SIGKILL)
            until = now + _FAILURE_GRACE_S
    codes = set(ended.values())
    if 2 in codes:  # of what is wrong with a request, the others may only know that rank 0 has left
        return 2
    if told and codes != {0}:
        if 1 not in codes and codes != {INTERRUPTED}:
            how = f"not within {node.stop_grace_s:g} s (--grace)" if -signal.SIGKILL in codes else "before it began"
            print(f"seatrial: stopped on request, {how}: nothing more was saved", file=sys.stderr, flush=True)
        return 1 if 1 in codes else INTERRUPTED
    return codes.pop() if codes in ({0}, {INTERRUPTED}) else 1


def _signal_all(processes: list[Any], number: int) -> None:
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, number)


def _child(local_rank: int, text: str) -> None:
    spec = TrainSpec.from_json(text)
    assert spec.spawn is not None
    nnodes, nproc_per_node = spec.spawn.nnodes, spec.spawn.nproc_per_node
    place = Place(
        rank=spec.spawn.node_rank * nproc_per_node + local_rank,
        world_size=nnodes * nproc_per_node,
        local_rank=local_rank,
        local_world_size=nproc_per_node,
    )
    told = {"RANK": place.rank, "WORLD_SIZE": place.world_size, "LOCAL_RANK": local_rank}
    os.environ.update({name: str(value) for name, value in {**told, "LOCAL_WORLD_SIZE": nproc_per_node}.items()})
    leave(run_rank(spec, place))
