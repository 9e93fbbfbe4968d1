"""Running statistics of BatchNorm: each rank gathers its own, and they are averaged where one model is needed.

DistributedDataParallel would copy those of rank 0 to all before each forward: a broadcast a step, and the samples of
all other ranks are forgotten. Here nothing is sent while training. To evaluate, to save and at the end, all ranks take
the mean of all; where training goes on, each then continues with its own, so that neither evaluating nor saving changes
what is trained by a single bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["averaged", "batch_norms", "gather_buffers", "load_buffers", "take_average"]


def gather_buffers(model: nn.Module, group: dist.ProcessGroup) -> Tensor:
    """All buffers of all ranks: float64 of (ranks, numbers) on the model's device; without a collective if (.., 0)."""
    buffers = list(model.buffers())
    if not buffers:
        return torch.zeros(group.size(), 0)
    # float64 holds every float32, and integers up to 2**53, exactly.
    own = torch.cat([buffer.detach().double().flatten() for buffer in buffers])
    rows = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(rows, own, group=group)
    return torch.stack(rows)


def load_buffers(model: nn.Module, row: Tensor) -> None:
    """Write one row of ``gather_buffers`` into the model."""
    begin = 0
    for buffer in model.buffers():
        values = row[begin : begin + buffer.numel()]
        buffer.copy_(values.view(buffer.shape))
        begin += buffer.numel()


def take_average(model: nn.Module, rows: Tensor) -> None:
    """The mean over ranks of each float buffer, the largest of each integer one (num_batches_tracked)."""
    begin = 0
    for buffer in model.buffers():
        part = rows[:, begin : begin + buffer.numel()]
        value = part.mean(dim=0) if buffer.is_floating_point() else part.amax(dim=0)
        buffer.copy_(value.view(buffer.shape))
        begin += buffer.numel()


@contextlib.contextmanager
def averaged(model: nn.Module, group: dist.ProcessGroup) -> Iterator[Tensor]:
    """Within, all ranks hold the average; afterwards each its own again. Gives the rows of ``gather_buffers``."""
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
    """Its layers of BatchNorm. A share of fewer than 2 samples has no statistics: it is to be normalised by theirs."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]
