"""Lower precision in forward and backward: autocast, and the loss scale that keeps float16 gradients from vanishing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import synchronize

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ORDINARY = 1000.0
"""The largest absolute value of a parameter that is no sign of divergence."""


def autocast(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which matrix products and convolutions compute in the recipe's type. The loss stays
    float32."""
    if recipe.amp == "off":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[recipe.amp])


class LossScale:
    """The factor by which the loss is multiplied before backward, so that small gradients do not round to 0 in float16.

    As in torch.amp.GradScaler, it is halved when a gradient overflows, and that step is left out; it is doubled after
    2,000 good steps. Unlike there, all ranks agree on whether a gradient overflowed, even where each has only a part of
    the gradients: a step that some ranks apply and others leave out would make the replicas differ forever. For bf16
    and float32, which have the range of float32, the factor stays 1 and nothing is checked here.
    """

    _GOOD_STEPS = 2_000
    _LOWEST = 2.0**-14

    def __init__(self, recipe: Recipe) -> None:
        self._is_on = recipe.amp == "fp16"
        self.factor = 65_536.0 if self._is_on else 1.0
        self._good_steps = 0

    def unscale(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> bool:
        """Divide the gradients by the factor. Return False, on all ranks alike, when the step must be left out."""
        if not self._is_on:
            return True
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flags = [local(gradient).isfinite().all() for gradient in gradients]
        # The number of ranks with an overflow: int64, a type that every backend can sum.
        bad = torch.stack([~torch.stack(flags).all()]).long()
        dist.all_reduce(bad, group=group)
        synchronize(bad.device)
        if int(bad.item()):
            self.factor /= 2
            self._good_steps = 0
            return False
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
        self._good_steps += 1
        if self._good_steps == self._GOOD_STEPS:
            self.factor *= 2
            self._good_steps = 0
        return True

    @property
    def is_exhausted(self) -> bool:
        """Whether gradients overflow, on all ranks alike, even with the lowest factor: further steps would be left out.

        Any rank can bring that about, since each adds to the number of overflows, so it is no failure of this one.
        """
        return self.factor < self._LOWEST

    def state(self) -> dict[str, float | int]:
        """Return the values for a checkpoint; empty where nothing is scaled."""
        return {"factor": self.factor, "good_steps": self._good_steps} if self._is_on else {}

    def load(self, state: dict[str, float | int]) -> None:
        """Set the values that ``state`` returned; the state of a training without a scale is ignored."""
        if self._is_on and state:
            self.factor, self._good_steps = float(state["factor"]), int(state["good_steps"])


def are_ordinary(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Return whether all values are finite and far from an overflow in forward: a bool on the device, not waited for.

    What trains well stays below 100. What diverges, or gets huge gradients from another rank, passes the limit before
    it overflows.
    """
    values = [part for parameter in parameters if (part := local(parameter)).numel()]
    # One by one that costs a CPU less, and all at once a GPU.
    if values and values[0].is_cuda:
        largest = list(torch._foreach_norm(values, math.inf))
    else:
        largest = [torch.linalg.vector_norm(value, math.inf) for value in values]
    return torch.stack(largest).le(_ORDINARY).all() if largest else torch.tensor(True)


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor that may be spread over ranks, sharing its memory."""
    values = tensor.detach()
    part: torch.Tensor = values.to_local() if hasattr(values, "to_local") else values
    return part
