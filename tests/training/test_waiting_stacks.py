"""A rank that waits for a slower one shows it by its stack, wherever it waits: else it would be named in its place."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from by_day import by_day
from training.rank_processes import run_ranks

from seatrial.conductor.rank_status import is_inside
from seatrial.protocol.rank_stacks import STEP_LOOP
from seatrial.training.recipe import Recipe
from seatrial.training.trainer import train

_LATE_S = 0.5
_SAMPLE_S = 0.05
_QUIET_SAMPLES = 5
"""Samples one after the other in which the thread sleeps in the same place without CPU time."""
_WORLD_SIZE = 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", by_day(["ddp", "fsdp", "pipeline", "tensor"]))
def test_a_rank_that_waits_in_training_is_inside_an_operation(strategy: str) -> None:
    _, quiet = run_ranks(_WORLD_SIZE, _train, strategy)
    outside = {f"{label}: {stack}" for label, stack in quiet if not is_inside(stack)}
    assert not outside, "\n".join(outside)
    # The first forward after a step has DDP agree upon its buckets, and backward reduces them.
    assert len(quiet) >= 5, quiet
    if strategy == "ddp":
        assert {"step 1 forward", "step 1 backward", "evaluate"} <= {label for label, _ in quiet}


def _train(rank: int, strategy: str) -> list[tuple[str, str]]:
    """Train three steps; rank 0 enters each phase late. Returns where rank 1 sleeps meanwhile: its phase, its stack."""
    labels = ["begin"]

    def phase(label: str) -> None:
        labels.append(label)
        if rank == 0:
            time.sleep(_LATE_S)

    quiet: set[tuple[str, str]] = set()
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(threading.main_thread(), labels, over, quiet))
    watch.start()
    recipe = Recipe(workload="digits", model="mlp", max_steps=3, global_batch_size=64, lr=0.1, strategy=strategy)
    assert dist.group.WORLD is not None
    train(recipe, recipe.data(), device=torch.device("cpu"), group=dist.group.WORLD, phase=phase)
    over.set()
    watch.join()
    return sorted(quiet)


def _watch(thread: threading.Thread, labels: list[str], over: threading.Event, quiet: set[tuple[str, str]]) -> None:
    before: list[tuple[str, str, str]] = []
    while not over.wait(_SAMPLE_S):
        state, *rest = Path(f"/proc/{os.getpid()}/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
        seen = (" ".join(rest[10:12]), labels[-1], _stack(thread))
        before = [*before[1 - _QUIET_SAMPLES :], seen] if state == "S" else []
        if before == [seen] * _QUIET_SAMPLES:
            quiet.add(seen[1:])


def _stack(thread: threading.Thread) -> str:
    """As faulthandler writes it, innermost frame first, of a process whose outermost frame is the loop of a worker."""
    assert thread.ident is not None
    frames = traceback.extract_stack(sys._current_frames()[thread.ident])
    lines = [f'  File "{frame.filename}", line {frame.lineno} in {frame.name}' for frame in reversed(frames)]
    return "\n".join([*lines, f'  File "{STEP_LOOP}", line 1 in main'])
