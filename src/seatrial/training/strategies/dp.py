"""DataParallel: one process drives all devices that it sees. For old scripts; ddp is faster on every machine.

Each forward copies the model to all devices, and one Python process feeds them all.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from seatrial.errors import RequestError
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.ddp import Replica


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> _Parallel:
    """Wrap the model. Raises RequestError for more than one rank, and for settings that it does not support."""
    if group.size() != 1:
        raise RequestError(
            f"strategy dp is one process for all devices and there are {group.size()} ranks; start one, or use ddp."
        )
    if recipe.compile:
        raise RequestError("strategy dp cannot be compiled: it copies the model at each step; use ddp.")
    # Without a GPU, nn.DataParallel calls the model directly.
    return _Parallel(model, nn.DataParallel(model), group, clock)


class _Parallel(Replica):
    """One replica, as the trainer sees it. DataParallel adds up the gradients of its devices within backward."""

    def __init__(self, model: nn.Module, wrapped: nn.Module, group: dist.ProcessGroup, clock: StepClock) -> None:
        super().__init__(model, wrapped, group)
        self._clock = clock

    def backward(self) -> None:
        super().backward()
        self._clock.mark("ready")
