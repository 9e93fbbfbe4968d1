"""DistributedDataParallel: each rank has the whole model and computes its own share of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from seatrial.errors import RequestError
from seatrial.training.digest import digest
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import StepClock, note_ready
from seatrial.training.strategies.checked_group import CheckedGroup
from seatrial.training.strategies.strategy import OptimizerState, load_optimizer_state, optimizer_state


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> Replica:
    """Wrap the model, then compile the wrapper: the graph is then cut where buckets end, and communication overlaps."""
    wrapped = wrap(model, device, group, clock)
    return Replica(model, _compiled(wrapped) if recipe.compile else wrapped, group)


def wrap(model: nn.Module, device: torch.device, group: dist.ProcessGroup, clock: StepClock) -> DistributedDataParallel:
    """Return the model in DDP; it marks ``ready`` on the clock when this rank's gradients are ready."""
    # torch 2.13 renamed broadcast_buffers and warns about the old name. Off: the statistics of rank 0 are not copied to
    # all ranks before each forward; the trainer averages those of all ranks when they are needed.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False}
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=CheckedGroup(group),
        gradient_as_bucket_view=True,
        **options,
    )
    note_ready(wrapped, clock)
    return wrapped


def _compiled(wrapped: nn.Module) -> Any:
    try:
        return torch.compile(wrapped)
    except RuntimeError as error:  # this torch does not support such a new Python
        raise RequestError(f"torch {torch.__version__} cannot compile here ({error}); leave compile off.") from error


class Replica:
    """A strategy that keeps the whole model on each rank; its methods are those of ``strategy.Strategy``."""

    def __init__(self, model: nn.Module, wrapped: Any, group: dist.ProcessGroup) -> None:
        self.model = model
        self.data_rank, self.data_size = group.rank(), group.size()
        self._wrapped = wrapped
        self._loss: tuple[Tensor, float] | None = None

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        # A sum and not a mean: shares may differ in size. DDP averages over ranks what each contributes.
        loss_sum = cross_entropy(self._wrapped(images).float(), labels, reduction="sum")
        self._loss = (loss_sum, scale)
        return loss_sum.detach()

    def backward(self) -> None:
        if self._loss is None:
            raise RuntimeError("backward without forward")
        loss_sum, scale = self._loss
        loss_sum.backward(torch.full_like(loss_sum, scale))  # type: ignore[no-untyped-call]
        self._loss = None

    def scores(self, images: Tensor) -> Tensor | None:
        # Without the wrapper, which only adds gradient reduction.
        scores: Tensor = self.model(images)
        return scores

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.model.named_parameters())

    def full_state(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], OptimizerState]:
        model = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
        return model, optimizer_state(optimizer, self.named_parameters())

    def load(self, optimizer: torch.optim.Optimizer, model: Mapping[str, Tensor], state: OptimizerState) -> None:
        self.model.load_state_dict(model)
        load_optimizer_state(optimizer, self.named_parameters(), state)

    def digest(self) -> str:
        return digest(self.model)
