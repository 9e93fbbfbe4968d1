"""The time of computing when a rank waits for no other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from seatrial.probe.contention import CpuTime
from seatrial.training.batches import Batches
from seatrial.training.data import Workload
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import WARMUP_STEPS, StepClock, synchronize


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingAlone:
    """Forward and backward of one rank, without a group."""

    seconds: tuple[float, ...]
    """Seconds of each forward and backward."""
    cpu_share: float
    """The part of the time in which the threads of this process had a core."""


def time_alone(
    recipe: Recipe,
    workload: Workload,
    *,
    device: torch.device,
    local_count: int,
    num_steps: int,
    repeats: int,
) -> list[TimingAlone]:
    """Time forward and backward of one rank's share, without a group, after a warm-up.

    Args:
        recipe: The model and the seed.
        workload: The data.
        device: The device of this rank.
        local_count: Samples of a full share of a rank.
        num_steps: Steps of each repeat.
        repeats: Number of timings returned.
    """
    batches = Batches(recipe, workload, device)
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed).to(device)
    images, labels = batches.train(torch.arange(local_count), 0)
    timings = []
    for steps in (WARMUP_STEPS, *[num_steps] * repeats):
        clock = StepClock(device)
        cpu = CpuTime()
        for _ in range(steps):
            clock.mark("begin")
            model.zero_grad(set_to_none=False)
            clock.mark("data")
            cross_entropy(model(images), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
            for moment in ("ready", "reduced", "end"):
                clock.mark(moment)
        synchronize(device)
        cpu_share = cpu.share(torch.get_num_threads())
        seconds = tuple(times.compute_s for times in clock.times())
        timings.append(TimingAlone(seconds=seconds, cpu_share=cpu_share))
    return timings[1:]
