"""Measure the accuracy that each level's training reaches where nothing is wrong.

    python bench/reference_runs.py

One process trains every level's recipe on 20 seeds: the digits of up to 32 ranks, and the synthetic workload of a world
of 33 ranks. That a world of another size ends alike is measured too: digits in 2 and 4 processes, and the synthetic
workload with the batch of 128 ranks. Only the rows with the use "reference" make the reference; for the synthetic
workload those of both batches do, so that the limit holds for both.

Writes bench/results/training_references.json (every row) and src/seatrial/training/references.json (what ships).
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from seatrial.checks.training.params import Params, recipe_for
from seatrial.training.trainer import train

__all__ = ["main"]

_ROOT = Path(__file__).parents[1]
_LEVELS = _ROOT / "src/seatrial/plan/levels"
_SHIPPED = _ROOT / "src/seatrial/training/references.json"
_RESULTS = _ROOT / "bench/results/training_references.json"
_SEEDS = range(1, 21)
_FEW_SEEDS = range(1, 4)
_NO_TIMEOUT_S = 1e6


def main() -> None:
    """Run everything and write both files."""
    rows: list[dict[str, Any]] = []
    for params in _distinct_params():
        for ranks, processes, seeds, use in (
            (1, 1, _SEEDS, "reference"),
            (2, 2, _FEW_SEEDS, "same in 2 processes"),
            (4, 4, _FEW_SEEDS, "same in 4 processes"),
            (33, 1, _SEEDS, "reference"),
            (128, 1, _FEW_SEEDS, "reference"),
        ):
            found = _run(params, ranks, processes, seeds)
            rows += [{"use": use, "sized_for_ranks": ranks, "processes": processes, **row} for row in found]
            print(
                f"{found[0]['key']} as for {ranks} ranks in {processes} processes: "
                f"{[row['accuracy'] for row in found]}",
                flush=True,
            )
    references = {}
    for key in dict.fromkeys(row["key"] for row in rows):
        same = [row for row in rows if row["key"] == key and row["use"] == "reference"]
        accuracies = [row["accuracy"] for row in same]
        references[key] = {
            "mean": round(mean(accuracies), 6),
            "sigma": round(stdev(accuracies), 6),
            "seeds": len({row["seed"] for row in same}),
            "num_test": same[0]["num_test"],
        }
    _SHIPPED.write_text(json.dumps(references, indent=1) + "\n", encoding="utf-8")
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads_per_process": 1,
        },
        "references": references,
    }
    head = json.dumps(document, indent=1)[:-2]
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    _RESULTS.write_text(f'{head},\n "rows": [\n{body}\n ]\n}}\n', encoding="utf-8")


def _distinct_params() -> list[Params]:
    """The training of each level, once where levels share one."""
    found: dict[str, Params] = {}
    for path in sorted(_LEVELS.glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))["training"]
        # Each training once and to its end; how long a level may take does not matter here.
        params = Params(**{**table, "duration_s": 0.0, "timeout_s": _NO_TIMEOUT_S})
        found.setdefault(recipe_for(params, 1)[1], params)
    return list(found.values())


def _run(params: Params, ranks: int, processes: int, seeds: range) -> list[dict[str, Any]]:
    """Train the recipe of so many ranks in so many processes, once a seed."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    workers = [
        context.Process(target=_work, args=(rank, processes, store.port, params, ranks, list(seeds), queue))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    rows = [queue.get() for _ in seeds]
    for worker in workers:
        worker.join()
    return rows


def _work(rank: int, processes: int, port: int, params: Params, ranks: int, seeds: list[int], queue: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("no group was formed")
    for seed in seeds:
        recipe, key = recipe_for(replace(params, seed=seed), ranks)
        started = time.perf_counter()
        outcome = train(recipe, recipe.data(), device=torch.device("cpu"), group=group, phase=lambda label: None)
        row = {
            "key": key,
            "seed": seed,
            "accuracy": round(outcome.counts.accuracy, 6),
            "num_test": outcome.counts.num_evaluated,
            "last_loss": round(outcome.losses[-1], 6),
            "seconds": round(time.perf_counter() - started, 2),
        }
        if rank == 0:
            queue.put(row)
    dist.destroy_process_group()


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if os.path.exists("/proc/cpuinfo") else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
