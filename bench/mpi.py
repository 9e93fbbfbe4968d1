"""The MPI backend against raw mpi4py and against Gloo, in turn, in the same two processes; writes results/mpi.json.

    python bench/mpi.py MPIRUN [ROUNDS]

MPIRUN with its options, in one argument: "mpirun --oversubscribe". mpi4py and MPI must be installed for this Python. A
round times a series of calls of each subject; what is told are medians over rounds of rank 0's medians.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import alternately, ratios, write_result

SIZES = (8, 1 << 20, 16 << 20, 64 << 20)
CALLS = {8: 2000, 1 << 20: 60, 16 << 20: 8, 64 << 20: 4}
STEPS = 3
ROUNDS = 21
MOST_ADDED_US = 15.0
LEAST_BANDWIDTH = 0.95
LEAST_TIMES_GLOO = 5.0
UNDER_TORCH = "raw Allreduce under torch's all_reduce"


def median_s(call: Callable[[], object], calls: int, meet: Callable[[], object]) -> float:
    """Median seconds of a call. All ranks begin together."""
    meet()
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def under_torch_s(raw: Callable[[], object], tensor: Any, calls: int, meet: Callable[[], object]) -> float:
    """``median_s`` of torch's own all_reduce with nothing in it but the raw call: what any backend adds at least."""
    import torch.distributed as dist

    world: Any = dist.group.WORLD
    world.allreduce = lambda tensors, opts: raw()
    try:
        return median_s(lambda: dist.all_reduce(tensor), calls, meet)
    finally:
        del world.allreduce  # what its class has is found again


def reductions(rounds: int, gloo: Any) -> dict[str, Any]:
    """All-reduce over sizes: raw blocking, the same under torch's own function, raw non-blocking, ours and Gloo's."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    # Each on a core of its own: two that spin on one core take turns of milliseconds, whatever is measured.
    free = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(free)[comm.rank % len(free)]})
    told = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        memory = [MPI.buffer.fromaddress(tensor.data_ptr(), size), size // 4, MPI.FLOAT]
        calls: dict[str, Callable[[], object]] = {
            "raw Allreduce": lambda memory=memory: comm.Allreduce(MPI.IN_PLACE, memory),
            "raw Iallreduce": lambda memory=memory: comm.Iallreduce(MPI.IN_PLACE, memory).Wait(),
            "ours": lambda tensor=tensor: dist.all_reduce(tensor),
            "gloo": lambda tensor=tensor: dist.all_reduce(tensor, group=gloo),
        }
        subjects = {
            name: (lambda call=call, size=size: median_s(call, CALLS[size], comm.Barrier))
            for name, call in calls.items()
        }
        subjects[UNDER_TORCH] = lambda raw=calls["raw Allreduce"], tensor=tensor, size=size: under_torch_s(
            raw, tensor, CALLS[size], comm.Barrier
        )
        for call in calls.values():
            call()
        told[str(size)] = ratios(alternately(subjects, rounds))
    os.sched_setaffinity(0, free)
    return told


def steps(rounds: int, gloo: Any) -> dict[str, Any]:
    """A DistributedDataParallel step of a model of 45 MB over both backends."""
    import torch
    import torch.distributed as dist

    def step_over(group: Any) -> Callable[[], object]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1700), torch.nn.Linear(1700, 64)
        )
        replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        images = torch.randn(32, 1024)

        def step() -> None:
            optimizer.zero_grad()
            replica(images).square().mean().backward()
            optimizer.step()

        return step

    subjects = {}
    for name, group in (("gloo", gloo), ("ours", dist.group.WORLD)):
        step = step_over(group)
        step()
        subjects[name] = lambda step=step: median_s(step, STEPS, dist.barrier)
    return ratios(alternately(subjects, rounds))


def rank_main(rounds: int) -> None:
    """One rank of two; rank 0 prints what was found."""
    import torch
    import torch.distributed as dist

    import seatrial.mpi

    torch.set_num_threads(1)
    dist.init_process_group(seatrial.mpi.BACKEND, init_method="mpi://")
    gloo = dist.new_group(backend="gloo")
    told = {"all_reduce seconds by bytes": reductions(rounds, gloo), "ddp step seconds, 45 MB": steps(rounds, gloo)}
    if dist.get_rank() == 0:
        from mpi4py import MPI

        library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
        print(json.dumps({"library": library, "rounds": rounds, **told}), flush=True)
    dist.destroy_process_group()


def targets(told: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, what came of it, and whether it holds."""
    by_size = told["all_reduce seconds by bytes"]

    def median(size: int, name: str) -> float:
        return float(by_size[str(size)][name]["median"])

    added_us = (median(8, "ours") - median(8, "raw Iallreduce")) * 1e6
    times = median(8, "gloo") / median(8, "ours")
    found = {
        f"8 B: ours - raw Iallreduce, us, at most {MOST_ADDED_US:g}": (added_us, added_us <= MOST_ADDED_US),
        f"8 B: gloo / ours, at least {LEAST_TIMES_GLOO:g}": (times, times >= LEAST_TIMES_GLOO),
    }
    for size in SIZES[1:]:
        share = median(size, "raw Allreduce") / median(size, "ours")
        name = f"{size >> 20} MiB: bandwidth of ours / raw Allreduce, at least {LEAST_BANDWIDTH:g}"
        found[name] = (share, share >= LEAST_BANDWIDTH)
    step = told["ddp step seconds, 45 MB"]["ours"]["ratio"]
    found["45 MB DDP step: ours / gloo, at most 1"] = (step, step <= 1)
    return {name: {"found": round(value, 3), "holds": holds} for name, (value, holds) in found.items()}


def most_bandwidth(told: dict[str, Any]) -> dict[str, float]:
    """Of raw Allreduce's bandwidth, what a backend can have at most under torch's all_reduce, by bytes."""
    by_size = told["all_reduce seconds by bytes"]
    return {
        str(size): round(by_size[str(size)]["raw Allreduce"]["median"] / by_size[str(size)][UNDER_TORCH]["median"], 3)
        for size in SIZES[1:]
    }


def main() -> None:
    """Start two ranks and write down what rank 0 found."""
    if sys.argv[1] == "--rank":
        rank_main(int(sys.argv[2]))
        return
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    command = [*shlex.split(sys.argv[1]), "-np", "2", sys.executable, str(Path(__file__)), "--rank", str(rounds)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    told = json.loads(done.stdout)
    measurements = {"targets": targets(told), "most bandwidth under torch, by bytes": most_bandwidth(told), **told}
    print(json.dumps({name: measurements[name] for name in list(measurements)[:2]}, indent=2))
    write_result("mpi", 'python bench/mpi.py "mpirun --bind-to none"', measurements)


if __name__ == "__main__":
    main()
