"""What computing takes when nobody is waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from seatrial.training.batches import Batches
from seatrial.training.clock import WARMUP_STEPS, StepClock, synchronize
from seatrial.training.models import build_model
from seatrial.training.recipe import Recipe

__all__ = ["Alone", "compute_alone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Forward and backward of one rank, without a group."""

    seconds: tuple[float, ...]
    """Of each forward and backward."""
    cpu_share: float
    """CPU time used, as a share of what the threads of this process could use meanwhile."""


def compute_alone(
    recipe: Recipe, *, device: torch.device, local_count: int, num_steps: int, repeats: int
) -> list[Alone]:
    """Forward and backward of one rank's share, without a group: so many steps, as often as ``repeats`` says.

    The warm-up is left out.
    """
    batches = Batches(recipe, device, None)
    model = build_model(recipe.model, batches.workload.shape, batches.workload.num_classes, recipe.seed).to(device)
    images, labels = batches.train(torch.arange(local_count), 0)
    told = []
    for repeat in range(-1, repeats):
        clock = StepClock(device)
        began, used = time.perf_counter(), time.process_time()
        for _ in range(num_steps if repeat >= 0 else WARMUP_STEPS):
            clock.mark("begin")
            model.zero_grad(set_to_none=False)
            clock.mark("data")
            cross_entropy(model(images), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
            for moment in ("ready", "reduced", "end"):
                clock.mark(moment)
        synchronize(device)
        used, wall = time.process_time() - used, time.perf_counter() - began
        share = used / (wall * torch.get_num_threads())
        told.append(Alone(seconds=tuple(times.compute_s for times in clock.times()), cpu_share=share))
    return told[1:]
