"""The trainer: one recipe, trained on all ranks of a group.

Read ``train`` from top to bottom; docs/training.md explains why each part is as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.training.batches import Batches, layout
from seatrial.training.buffers import batch_norms, gather_buffers, take_average
from seatrial.training.data import Workload
from seatrial.training.evaluation import Counts, evaluate
from seatrial.training.models import build_model
from seatrial.training.optimizers import make_optimizer
from seatrial.training.outcome import NonFinite, Outcome
from seatrial.training.precision import LossScale, are_ordinary, autocast, local
from seatrial.training.progress import Callbacks, EpochStats, Start
from seatrial.training.randomness import seed_step
from seatrial.training.recipe import Recipe
from seatrial.training.resume import (
    Checkpointing,
    Position,
    Training,
    compare_with_saved,
    find_state,
    form_of,
    load_state,
    require_fields,
    require_shapes,
    save_state,
)
from seatrial.training.step_clock import WARMUP_STEPS, Lap, StepClock, StepTimes, Stopwatch, median_times, synchronize
from seatrial.training.strategies.strategy import find_strategy
from seatrial.training.sync_points import SyncPoints

_LONGEST_S = 1e9
"""No epoch takes 30 years."""


def train(
    recipe: Recipe,
    workload: Workload,
    *,
    device: torch.device,
    group: dist.ProcessGroup,
    phase: Callable[[str], None],
    checkpoints: Checkpointing | None = None,
    callbacks: Callbacks | None = None,
    target_accuracy: float | None = None,
) -> Outcome:
    """Train and evaluate one recipe on all ranks of ``group``; every rank calls this with the same arguments.

    Torch's global random number generators are left with a new seed.

    Args:
        recipe: Model, data, batch size, optimizer and schedule: everything that decides the result.
        workload: The data of the recipe, as ``recipe.data`` returns it.
        device: The device of this rank.
        group: The ranks that train together. NCCL, Gloo or MPI.
        phase: Called with a label before each part that waits for other ranks. All ranks pass the same labels, even a
            rank whose share of a batch is empty.
        checkpoints: Where and how often to save, and what to resume from; None: neither save nor resume.
        callbacks: Called on this rank after steps and epochs. With them, all ranks evaluate after each epoch.
        target_accuracy: Share of the test samples. All ranks evaluate after each epoch, and training ends after the
            first epoch that reaches it.

    Raises:
        RequestError: The recipe cannot be trained on these ranks, or the checkpoint belongs to another training.
        SeatrialError: A checkpoint cannot be read or written.
    """
    # The whole data set, on the device.
    batches = Batches(recipe, workload, device)
    num_steps, steps_per_epoch = recipe.num_steps(workload.num_train), recipe.steps_per_epoch(workload.num_train)

    # The seed alone decides the parameters, so all ranks start with the same ones.
    phase("wrap model")
    clock = StepClock(device)
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed).to(device)
    model = model.to(memory_format=layout(recipe, device))  # type: ignore[call-overload]
    form = form_of(model)
    strategy = find_strategy(recipe.strategy)(model, recipe, device=device, group=group, clock=clock)
    model, norms = strategy.model, batch_norms(strategy.model)
    parameters = [parameter for _, parameter in strategy.named_parameters()]
    optimizer, loss_scale, position = make_optimizer(recipe, parameters, device), LossScale(recipe), Position()
    training = Training(
        recipe=recipe,
        strategy=strategy,
        optimizer=optimizer,
        loss_scale=loss_scale,
        position=position,
        group=group,
        device=device,
    )

    def own_batch(step: int) -> tuple[Tensor, Tensor, int]:
        part = batches.shard(step, strategy.data_rank, strategy.data_size)
        return *batches.train(part.indices, step // steps_per_epoch), part.global_count

    def forward(images: Tensor, labels: Tensor, scale: float) -> Tensor:
        for layer in norms:
            layer.train(len(labels) >= 2)
        with autocast(recipe, device):
            return strategy.forward(images, labels, scale)

    def require_fit(name: str, state: Mapping[str, Any]) -> None:
        require_fields(name, state)
        compare_with_saved(state, recipe, num_steps, group.size(), device)
        require_shapes(name, state, form)

    # Resume from a checkpoint, if there is one.
    resumed_from, notes = None, tuple[str, ...]()
    if checkpoints is not None:
        phase("look for a checkpoint")
        saved = find_state(checkpoints, group, device, require_fit, form.most_bytes(group.size()))
        if saved is not None:
            phase("resume")
            resumed_from, state = saved
            notes = compare_with_saved(state, recipe, num_steps, group.size(), device)
            if 0 < state["step"] < num_steps:
                # DDP rebuilds its buckets after the first backward and sums in another order from then on. So one
                # backward must run before the state is loaded; its gradients are thrown away.
                images, labels, _ = own_batch(state["step"])
                forward(images, labels, 1.0)
                strategy.backward()
                optimizer.zero_grad()
            load_state(training, state)
            del saved, state
    if callbacks is not None:
        start = Start(
            step=position.step,
            num_steps=num_steps,
            steps_per_epoch=steps_per_epoch,
            resumed_from=resumed_from,
            notes=notes,
        )
        callbacks.on_start(start)

    first_step = position.step
    losses: list[float] = []
    own_loss_sums: list[float] = []
    global_counts: list[int] = []
    local_counts: list[int] = []
    counts, own_counts, is_evaluated = Counts(), Counts(), False
    checkpoint: Path | None = None
    nonfinite: NonFinite | None = None
    interrupted = False
    # fp16 must know after each step whether a gradient overflowed, and a loss that is not finite shows it best.
    sync_points = SyncPoints(group, device, each_step=recipe.amp == "fp16")
    stopwatch = Stopwatch(device)
    stopwatch.go()
    warm = epoch_began = Lap(seconds=0.0, steps=0, samples=position.samples_seen)
    for step in range(first_step, num_steps):
        if step - first_step == WARMUP_STEPS:
            warm = Lap(seconds=stopwatch.lap(), steps=WARMUP_STEPS, samples=position.samples_seen)

        # This rank's share of the global batch.
        clock.mark("begin")
        # The copy to the device waits for what it has to do, such as a reduction: a stack is to show that it waits.
        synchronize(device)
        images, labels, global_count = own_batch(step)
        clock.mark("data")

        # Gradients are averaged over the shares, so each share contributes its sum times shares / count. The average is
        # then the mean over all samples, however unevenly they are divided.
        phase(f"step {step} forward")
        seed_step(recipe.seed, step, strategy.data_rank, device)
        loss_sum = forward(images, labels, loss_scale.factor * (strategy.data_size / global_count))
        due = sync_points.add(loss_sum, are_ordinary(parameters))
        phase(f"step {step} backward")
        strategy.backward()
        clock.mark("reduced")

        phase(f"step {step} optimizer")
        lr = recipe.lr_at(step, num_steps)
        for settings in optimizer.param_groups:
            settings["lr"] = lr
        if loss_scale.unscale(parameters, group):
            optimizer.step()
        optimizer.zero_grad()
        clock.mark("end")

        global_counts.append(global_count)
        local_counts.append(len(labels))
        position.advance(global_count)
        if callbacks is not None:
            callbacks.on_step(step)
        if loss_scale.is_exhausted:
            # The sum over all ranks says so, and not the numbers of one.
            nonfinite = NonFinite(step=step, group_ranks=(), what="gradients")
            break
        done, epoch_over = position.step == num_steps, position.step % steps_per_epoch == 0
        if not (due or done or epoch_over):
            continue

        # A few times a second, and before anything is saved, the ranks exchange their losses. A loss that is not finite
        # has already spoiled the parameters of all ranks, so all of them stop here.
        phase(f"step {step} losses")
        result = sync_points.sync(step, callbacks is not None and callbacks.should_stop())
        for global_loss_sum in result.loss_sums:
            position.epoch_loss_sum += global_loss_sum
            losses.append(global_loss_sum / global_counts[len(losses)])
        own_loss_sums += result.own_loss_sums
        nonfinite = result.nonfinite
        if nonfinite is not None:
            break
        if callbacks is not None:
            callbacks.on_losses(step, losses[-1])
        interrupted = result.stop and not done
        if not (interrupted or done or epoch_over):
            continue

        # Off the clock: evaluate on all ranks, then save a checkpoint.
        trained_s, epoch, reached = stopwatch.stop(), step // steps_per_epoch, False
        if done or (epoch_over and (callbacks is not None or target_accuracy is not None)):
            phase("evaluate")
            (counts, own_counts), is_evaluated = evaluate(strategy, batches, recipe, group), True
            reached = target_accuracy is not None and counts.accuracy >= target_accuracy
            if callbacks is not None:
                own_times = median_times(clock.times()[epoch_began.steps :])
                rank_times, seconds = _gather_times(own_times, trained_s - epoch_began.seconds, group, device)
                stats = EpochStats(
                    epoch=epoch,
                    step=position.step,
                    loss=position.epoch_loss_sum / position.epoch_samples,
                    num_samples=position.epoch_samples,
                    counts=counts,
                    samples_per_s=(position.samples_seen - epoch_began.samples) / seconds,
                    seconds=seconds,
                    rank_times=rank_times,
                )
                callbacks.on_epoch(stats)
        if epoch_over:
            position.begin_epoch()
            epoch_began = Lap(seconds=trained_s, steps=len(losses), samples=position.samples_seen)
        if interrupted or done or reached or (epoch_over and checkpoints is not None and checkpoints.is_due(epoch)):
            phase(f"look at parameters after step {position.step}")
            is_wrong = not _all_finite(parameters)
            # Any rank, and any link, can change the answer: this rank stops for what it saw, whatever others say.
            if (ranks := _ranks_with(is_wrong, group, device)) or is_wrong:
                # Any rank can change what the others say; this one is named by itself only.
                ranks = tuple(sorted({*ranks, group.rank()} - (set() if is_wrong else {group.rank()})))
                nonfinite = NonFinite(step=step, group_ranks=ranks, what="parameters")
                break
            if checkpoints is not None:
                phase(f"save step {position.step}")
                checkpoint = save_state(training, checkpoints.store)
        if interrupted or reached:
            break
        stopwatch.go()

    # Training is over, so all ranks take the average of the running statistics: one model everywhere.
    trained_s = stopwatch.stop()
    if nonfinite is None:
        phase("end")
        take_average(model, gather_buffers(model, group))
        if not (is_evaluated or interrupted):
            counts, own_counts = evaluate(strategy, batches, recipe, group)
    steady = position.samples_seen - warm.samples if nonfinite is None and len(losses) > WARMUP_STEPS else 0
    return Outcome(
        losses=tuple(losses),
        own_loss_sums=tuple(own_loss_sums),
        times=tuple(clock.times()),
        local_counts=tuple(local_counts),
        samples_per_s=steady / (trained_s - warm.seconds) if steady else None,
        model=model,
        digest=strategy.digest(),
        step=position.step,
        first_step=first_step,
        notes=notes,
        checkpoint=checkpoint,
        nonfinite=nonfinite,
        interrupted=interrupted,
        counts=counts,
        own_counts=own_counts,
    )


def _ranks_with(flag: bool, group: dist.ProcessGroup, device: torch.device) -> tuple[int, ...]:
    """Return the group ranks whose ``flag`` is true, on every rank."""
    flags = torch.zeros(group.size(), dtype=torch.int64, device=device)
    flags[group.rank()] = int(flag)
    dist.all_reduce(flags, group=group)
    synchronize(device)
    return tuple(rank for rank, is_set in enumerate(flags.tolist()) if is_set)


def _all_finite(parameters: list[nn.Parameter]) -> bool:
    return all(bool(local(parameter).isfinite().all()) for parameter in parameters)


def _gather_times(
    own: StepTimes, own_s: float, group: dist.ProcessGroup, device: torch.device
) -> tuple[tuple[StepTimes, ...], float]:
    """Return the step times of each rank, and the longest ``own_s`` of all ranks in seconds.

    A rank that sends what is no time is left out: a statistic ends no training.
    """
    values = [*astuple(own), own_s]
    table = torch.zeros(group.size(), len(values), dtype=torch.float64, device=device)
    table[group.rank()] = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(table, group=group)
    synchronize(device)
    names = [field.name for field in fields(StepTimes)]
    rows = [row for row in table.tolist() if all(0 <= value <= _LONGEST_S for value in row)]
    return tuple(StepTimes(**dict(zip(names, row, strict=False))) for row in rows), max(
        [own_s, *(row[-1] for row in rows)]
    )
