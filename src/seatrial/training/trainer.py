"""The trainer: one recipe, real DistributedDataParallel, every step timed. To be read from top to bottom."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from seatrial.training.clock import StepClock, StepTimes, timed_mean
from seatrial.training.data import Data, Workload
from seatrial.training.digest import digest
from seatrial.training.models import find_model
from seatrial.training.recipe import Recipe
from seatrial.training.sampling import shard

__all__ = ["WARMUP_STEPS", "Alone", "NonFinite", "Outcome", "compute_alone", "train"]

WARMUP_STEPS = 5
"""Steps that are trained as all others and left out of every timing."""
_EVALUATION_BATCH = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A training that was stopped because a loss was infinite or no number."""

    step: int
    group_ranks: tuple[int, ...]
    """Those whose own loss was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one rank knows when its training is over."""

    losses: tuple[float, ...]
    """Mean loss of each global batch, the same on all ranks."""
    times: tuple[StepTimes, ...]
    """One a step."""
    local_counts: tuple[int, ...]
    """Samples of this rank at each step."""
    samples_per_s: float | None
    """Of all ranks together, without the warm-up; None when there was nothing after it."""
    model: nn.Module
    digest: str
    nonfinite: NonFinite | None = None
    num_correct: int = 0
    """Over all ranks, of ``num_evaluated`` test samples."""
    num_evaluated: int = 0


def train(recipe: Recipe, *, device: torch.device, group: dist.ProcessGroup, phase: Callable[[str], None]) -> Outcome:
    """Train and evaluate one recipe on all ranks of ``group``; every rank calls this with the same recipe.

    ``phase`` is told what comes next before each part that waits for other ranks. All ranks pass the same phases, also
    one whose share of a batch is empty.
    """
    rank, world_size = group.rank(), group.size()
    workload = recipe.data()
    data = _to_device(workload.load(), device)
    clock = StepClock(device)

    phase("wrap model")
    model = _build(recipe, workload, device)
    replica = _wrap(model, device, group)
    replica.register_comm_hook(None, timed_mean(clock, group))
    optimizer = _optimizer(recipe, model)

    losses: list[float] = []
    local_counts: list[int] = []
    num_timed = 0
    timed_since = 0.0
    for step in range(recipe.max_steps):
        if step == WARMUP_STEPS:
            _synchronize(device)
            timed_since = time.perf_counter()

        # Own part of the global batch
        clock.mark("begin")
        part = shard(
            num_samples=workload.num_train,
            global_batch_size=recipe.global_batch_size,
            seed=recipe.seed,
            step=step,
            rank=rank,
            world_size=world_size,
        )
        images, labels = _batch(data.train_images, data.train_labels, part.indices.to(device), workload)
        clock.mark("data")

        # The hook takes the mean over ranks of what each puts in, so a rank puts in its sum times world_size / count:
        # that mean is the mean over the samples, however unevenly they are spread.
        phase(f"step {step} forward")
        loss_sum = cross_entropy(replica(images), labels, reduction="sum")
        total = loss_sum.detach().double()
        work = dist.all_reduce(total, group=group, async_op=True)
        phase(f"step {step} backward")
        (loss_sum * (world_size / part.global_count)).backward()  # type: ignore[no-untyped-call]
        loss = _wait_for_others(work, total) / part.global_count
        clock.mark("reduced")

        # The sum over ranks is finite only if every rank's own loss is: all ranks stop here, before it is applied.
        phase(f"step {step} optimizer")
        if not math.isfinite(loss):
            return Outcome(
                losses=tuple(losses),
                times=tuple(clock.times()),
                local_counts=tuple(local_counts),
                samples_per_s=None,
                model=model,
                digest=digest(model),
                nonfinite=NonFinite(step=step, group_ranks=_nonfinite_ranks(loss_sum, group)),
            )
        for settings in optimizer.param_groups:
            settings["lr"] = recipe.lr_at(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # the gradients are views of the buckets that are reduced
        clock.mark("end")
        losses.append(loss)
        local_counts.append(len(part.indices))
        num_timed += part.global_count if step >= WARMUP_STEPS else 0

    _synchronize(device)
    timed_s = time.perf_counter() - timed_since
    phase("evaluate")
    num_correct, num_evaluated = _evaluate(model, data, workload, group)
    return Outcome(
        losses=tuple(losses),
        times=tuple(clock.times()),
        local_counts=tuple(local_counts),
        samples_per_s=num_timed / timed_s if num_timed else None,
        model=model,
        digest=digest(model),
        num_correct=num_correct,
        num_evaluated=num_evaluated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What computing takes when nobody is waited for."""

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
    workload = recipe.data()
    data = _to_device(workload.load(), device)
    model = _build(recipe, workload, device)
    indices = torch.arange(local_count, device=device)
    images, labels = _batch(data.train_images, data.train_labels, indices, workload)
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
        _synchronize(device)
        used, wall = time.process_time() - used, time.perf_counter() - began
        share = used / (wall * torch.get_num_threads())
        told.append(Alone(seconds=tuple(times.compute_s for times in clock.times()), cpu_share=share))
    return told[1:]


def _build(recipe: Recipe, workload: Workload, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return find_model(recipe.model)(workload.shape, workload.num_classes).to(device)


def _wrap(model: nn.Module, device: torch.device, group: dist.ProcessGroup) -> DistributedDataParallel:
    # torch 2.13 renamed broadcast_buffers and warns of the old name; there are no buffers that change in training.
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False}
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        **options,
    )


def _optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=True
    )


def _to_device(data: Data, device: torch.device) -> Data:
    return Data(
        train_images=data.train_images.to(device),
        train_labels=data.train_labels.to(device),
        test_images=data.test_images.to(device),
        test_labels=data.test_labels.to(device),
    )


def _batch(images: Tensor, labels: Tensor, indices: Tensor, workload: Workload) -> tuple[Tensor, Tensor]:
    return (images[indices].float() - workload.mean) / workload.std, labels[indices]


def _wait_for_others(work: Any, total: Tensor) -> float:
    """The conductor knows by the name of this function that a rank whose stack ends here is waiting for the others."""
    work.wait()
    return float(total)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _nonfinite_ranks(loss_sum: Tensor, group: dist.ProcessGroup) -> tuple[int, ...]:
    flags = torch.zeros(group.size(), dtype=torch.int64, device=loss_sum.device)
    flags[group.rank()] = int(not math.isfinite(float(loss_sum.detach())))
    dist.all_reduce(flags, group=group)
    return tuple(index for index, flag in enumerate(flags.tolist()) if flag)


def _evaluate(model: nn.Module, data: Data, workload: Workload, group: dist.ProcessGroup) -> tuple[int, int]:
    """Correct and evaluated test samples over all ranks: integers, each sample seen by exactly one rank."""
    indices = torch.arange(group.rank(), workload.num_test, group.size(), device=data.test_labels.device)
    counts = torch.zeros(2, dtype=torch.int64, device=indices.device)
    with torch.inference_mode():
        for part in torch.split(indices, _EVALUATION_BATCH):
            images, labels = _batch(data.test_images, data.test_labels, part, workload)
            counts[0] += (model(images).argmax(dim=1) == labels).sum()
            counts[1] += len(part)
    dist.all_reduce(counts, group=group)
    num_correct, num_evaluated = counts.tolist()
    return num_correct, num_evaluated
