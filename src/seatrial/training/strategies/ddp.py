"""DistributedDataParallel: each rank holds the whole model and computes on its own share of the batch."""

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
from seatrial.training.clock import StepClock, note_ready
from seatrial.training.digest import digest
from seatrial.training.recipe import Recipe
from seatrial.training.strategies.base import OptimizerState, load_optimizer_state, optimizer_state

__all__ = ["Replica", "build", "wrap"]


def build(
    model: nn.Module, recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, clock: StepClock
) -> Replica:
    """Wrap the model, then compile the wrapper: so the graph is cut where buckets end, and communication overlaps."""
    wrapped = wrap(model, device, group, clock)
    return Replica(model, _compiled(wrapped) if recipe.compile else wrapped, group)


def wrap(model: nn.Module, device: torch.device, group: dist.ProcessGroup, clock: StepClock) -> DistributedDataParallel:
    """The model in DDP, which tells the clock when the rank's own gradients are ready."""
    # torch 2.13 renamed broadcast_buffers and warns of the old name. Off: rank 0's statistics are not copied to all
    # before each forward; the trainer averages those of all ranks when they are needed.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False}
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        **options,
    )
    note_ready(wrapped, clock)
    return wrapped


def _compiled(wrapped: nn.Module) -> Any:
    try:
        return torch.compile(wrapped)
    except RuntimeError as error:  # a Python that is newer than this torch knows
        raise RequestError(f"torch {torch.__version__} cannot compile here ({error}); leave compile off.") from error


class Replica:
    """The strategy, also of others that keep the whole model on each rank; methods as in ``base.Strategy``."""

    def __init__(self, model: nn.Module, wrapped: Any, group: dist.ProcessGroup) -> None:
        self.model = model
        self.data_rank, self.data_size = group.rank(), group.size()
        self._wrapped = wrapped
        self._loss: tuple[Tensor, float] | None = None

    def forward(self, images: Tensor, labels: Tensor, scale: float) -> Tensor:
        # A sum and not a mean: shares may differ in size. DDP takes the mean over ranks of what each puts in.
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
        # The model itself: what the wrapper adds is for gradients.
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
