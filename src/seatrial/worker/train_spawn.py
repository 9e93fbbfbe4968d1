"""``--spawn``: the ranks of one node, started by torch.multiprocessing without a launcher."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from seatrial.mpi_backend.finalize import leave
from seatrial.worker.train_rank import INTERRUPTED, RankIdentity, run_rank, suppress_numpy_warning
from seatrial.worker.train_spec import Spawn, TrainSpec

_FAILURE_GRACE_S = 5.0
"""Seconds that the other ranks have to end by themselves after one has failed."""
_REPORT_S = 1.0
"""Seconds for the other ranks to report the same failure, before the grace begins."""


def spawn(spec: TrainSpec) -> int:
    """Start the ranks of this node, wait for all of them, and return their common exit code.

    The first SIGTERM or SIGINT is passed on, so that the ranks save and end; a second one kills them. No rank is left
    running when this returns.
    """
    signals: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    # Before the import of torch, which takes seconds.
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    # In the environment, because the children import torch before they run our code.
    quiet = "ignore:Failed to initialize NumPy:UserWarning"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), quiet)))
    suppress_numpy_warning()
    import torch.multiprocessing as mp

    assert spec.spawn is not None
    processes: list[Any] = []
    try:
        context = mp.spawn(_child, args=(spec.to_json(),), nprocs=spec.spawn.nproc_per_node, join=False)  # type: ignore[no-untyped-call]
        processes = context.processes
        return _wait_for_ranks(processes, signals, spec.spawn)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_ranks(processes: list[Any], signals: list[int], node: Spawn) -> int:
    """Return the exit code. ``signals`` grows while this runs; those not yet passed on are passed on."""
    first_rank = node.node_rank * node.nproc_per_node
    until = float("inf")
    num_passed_on = 0
    codes_by_local_rank: dict[int, int] = {}
    while len(codes_by_local_rank) < len(processes):
        wait([process.sentinel for number, process in enumerate(processes) if number not in codes_by_local_rank], 0.1)
        now = time.monotonic()
        for local_rank, process in enumerate(processes):
            if local_rank in codes_by_local_rank or process.exitcode is None:
                continue
            codes_by_local_rank[local_rank] = process.exitcode
            if process.exitcode != 0 and not num_passed_on and until == float("inf"):
                until = now + _REPORT_S + _FAILURE_GRACE_S
                if process.exitcode < 0:
                    name = signal.Signals(-process.exitcode).name
                    print(f"seatrial: rank {first_rank + local_rank} was killed by {name}", file=sys.stderr, flush=True)
        if len(signals) > num_passed_on:
            num_passed_on = len(signals)
            until = now + node.stop_grace_s if num_passed_on == 1 else now
            _signal_all(processes, signal.SIGTERM)
        if now >= until:
            _signal_all(processes, signal.SIGKILL)
            until = now + _FAILURE_GRACE_S
    codes = set(codes_by_local_rank.values())
    if 2 in codes:  # when rank 0 refuses a request, the other ranks may see only that rank 0 left
        return 2
    if num_passed_on and codes != {0}:
        if 1 not in codes and codes != {INTERRUPTED}:
            reason = f"not within {node.stop_grace_s:g} s (--grace)" if -signal.SIGKILL in codes else "before it began"
            print(f"seatrial: stopped on request, {reason}: nothing more was saved", file=sys.stderr, flush=True)
        return 1 if 1 in codes else INTERRUPTED
    return codes.pop() if codes in ({0}, {INTERRUPTED}) else 1


def _signal_all(processes: list[Any], number: int) -> None:
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, number)


def _child(local_rank: int, spec_json: str) -> None:
    spec = TrainSpec.from_json(spec_json)
    assert spec.spawn is not None
    nnodes, nproc_per_node = spec.spawn.nnodes, spec.spawn.nproc_per_node
    identity = RankIdentity(
        rank=spec.spawn.node_rank * nproc_per_node + local_rank,
        world_size=nnodes * nproc_per_node,
        local_rank=local_rank,
        local_world_size=nproc_per_node,
    )
    os.environ.update(
        RANK=str(identity.rank),
        WORLD_SIZE=str(identity.world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(nproc_per_node),
    )
    leave(run_rank(spec, identity))
