"""Running statistics of BatchNorm: each rank collects its own, and they are averaged where one model is needed.

DistributedDataParallel would copy those of rank 0 to all ranks before each forward: one broadcast per step, and the
samples of all other ranks are forgotten. Here nothing is sent while training. For evaluation, for a checkpoint and at
the end, all ranks use the mean over ranks. When training continues, each rank continues with its own statistics, so
neither evaluation nor saving changes a single bit of what is trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seatrial.training.step_clock import synchronize


def gather_buffers(model: nn.Module, group: dist.ProcessGroup) -> Tensor:
    """Return all buffers of all ranks, float64 of shape (ranks, numbers), on the model's device.

    A model without buffers gives shape (ranks, 0), without a collective.
    """
    buffers = list(model.buffers())
    if not buffers:
        return torch.zeros(group.size(), 0)
    # float64 represents every float32, and integers up to 2**53, exactly.
    own = torch.cat([buffer.detach().double().flatten() for buffer in buffers])
    rows = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(rows, own, group=group)
    synchronize(own.device)
    return torch.stack(rows)


def load_buffers(model: nn.Module, row: Tensor) -> None:
    """Copy one row of ``gather_buffers``, shape (numbers,), into the model."""
    begin = 0
    for buffer in model.buffers():
        values = row[begin : begin + buffer.numel()]
        buffer.copy_(values.view(buffer.shape))
        begin += buffer.numel()


def take_average(model: nn.Module, rows: Tensor) -> None:
    """Set each float buffer to the mean over ranks, and each integer buffer (num_batches_tracked) to the maximum.

    ``rows``: the result of ``gather_buffers``.
    """
    begin = 0
    for buffer in model.buffers():
        part = rows[:, begin : begin + buffer.numel()]
        value = part.mean(dim=0) if buffer.is_floating_point() else part.amax(dim=0)
        buffer.copy_(value.view(buffer.shape))
        begin += buffer.numel()


@contextlib.contextmanager
def averaged(model: nn.Module, group: dist.ProcessGroup) -> Iterator[Tensor]:
    """Within this context all ranks have the averaged buffers; afterwards each rank has its own again.

    Yields the result of ``gather_buffers``.
    """
    rows = gather_buffers(model, group)
    if not rows.shape[1]:
        yield rows
        return
    own = [buffer.detach().clone() for buffer in model.buffers()]
    with torch.no_grad():
        take_average(model, rows)
    try:
        yield rows
    finally:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), own, strict=True):
                buffer.copy_(value)


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return the BatchNorm layers. A share of fewer than 2 samples has no statistics, so it is normalized by the
    running ones."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]
