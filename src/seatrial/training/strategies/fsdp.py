"""fully_shard: parameters, gradients and optimizer state are spread over the ranks, and gathered where they are
used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

from seatrial.errors import RequestError
from seatrial.training.digest import digest_state
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.parts import Part, load_parts, sharded_parts, whole_optimizer_state, whole_state
from seatrial.training.strategies.strategy import OptimizerState


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> Sharded:
    """Shard each child of the model that has parameters, so that one is gathered while another computes."""
    fully_shard = find_fully_shard(recipe, device)
    mesh = DeviceMesh.from_group(group, device.type)

    def shard(module: nn.Module) -> None:
        for child in module.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh)
        fully_shard(module, mesh=mesh)

    parts = sharded_parts(copy.deepcopy(model), shard, lambda _: group)
    shard(model)
    return Sharded(model, parts, device, clock, data_rank=group.rank(), data_size=group.size())


def find_fully_shard(recipe: Recipe, device: torch.device) -> Callable[..., Any]:
    """Return the function ``fully_shard`` of this torch. Raises RequestError for a recipe that it cannot shard."""
    name = recipe.strategy
    if recipe.channels_last:
        raise RequestError(f"strategy {name}: parameters in channels_last cannot be sharded; leave channels_last off.")
    if recipe.compile:
        raise RequestError(f"strategy {name}: torch.compile was not verified with it; leave it off, or use ddp.")
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch 2.4 and 2.5
        if device.type == "cpu":
            raise RequestError(
                f"strategy {name} on CPUs does not work with torch {torch.__version__}; it was verified with 2.13; "
                "use ddp, or a newer torch."
            ) from None
        from torch.distributed._composable.fsdp import fully_shard
    function: Callable[..., Any] = fully_shard
    return function


class Sharded:
    """A strategy; its methods are those of ``strategy.Strategy``. Communication is part of forward and backward and
    timed with them."""

    def __init__(
        self,
        model: nn.Module,
        parts: dict[str, Part],
        device: torch.device,
        clock: StepClock,
        *,
        data_rank: int,
        data_size: int,
        counts_loss: bool = True,
    ) -> None:
        self.model = model
        self._named = list(model.named_parameters())
        self.data_rank, self.data_size = data_rank, data_size
        self._parts, self._device, self._clock = parts, device, clock
        self._counts = counts_loss
        self._scaled_loss: Tensor | None = None

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        loss_sum = cross_entropy(self.model(images), labels, reduction="sum")
        self._scaled_loss = loss_sum * scale
        return loss_sum.detach() if self._counts else torch.zeros_like(loss_sum)

    def backward(self) -> None:
        if self._scaled_loss is None:
            raise RuntimeError("backward without forward")
        self._scaled_loss.backward()  # type: ignore[no-untyped-call]
        self._scaled_loss = None
        self._clock.mark("ready")

    def scores(self, images: Tensor) -> Tensor | None:
        # In inference mode torch would multiply the cut tensors in another way, with more communication.
        with torch.inference_mode(False), torch.no_grad():
            scores: Tensor = self.model(images).clone()  # the copy waits for scores that are still being communicated
        return scores if self._counts else None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self._named)

    def full_state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], OptimizerState]:
        own = dict(self._named)
        parts = {name: self._parts[name] for name in own}
        return self._whole(), whole_optimizer_state(optimizer, own, parts, self._device)

    def load(self, optimizer: torch.optim.Optimizer, model: Mapping[str, Tensor], state: OptimizerState) -> None:
        load_parts(optimizer, self.model.state_dict(keep_vars=True), self._parts, model, state)

    def digest(self) -> str:
        return digest_state(self._whole())

    def _whole(self) -> dict[str, Tensor]:
        return whole_state(self.model.state_dict(keep_vars=True), self._parts, self._device)
