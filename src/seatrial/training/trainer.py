"""The trainer: one recipe on all ranks of a group.

``train`` is to be read from top to bottom; docs/training.md says why each part is as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seatrial.training.batches import Batches, layout
from seatrial.training.buffers import batch_norms, gather_buffers, take_average
from seatrial.training.clock import WARMUP_STEPS, Lap, StepClock, StepTimes, Stopwatch, synchronize, typical
from seatrial.training.evaluation import evaluate
from seatrial.training.meetings import Meetings
from seatrial.training.models import build_model
from seatrial.training.optimizers import make_optimizer
from seatrial.training.outcome import NonFinite, Outcome
from seatrial.training.precision import LossScale, autocast, local
from seatrial.training.randomness import seed_step
from seatrial.training.recipe import Recipe
from seatrial.training.resume import Position, Training, compare, find_state, load_state, save_state
from seatrial.training.strategies import find_strategy
from seatrial.training.watch import CheckpointStore, EpochStats, Start, Watch

__all__ = ["train"]


def train(
    recipe: Recipe,
    *,
    device: torch.device,
    group: dist.ProcessGroup,
    phase: Callable[[str], None],
    data_dir: Path | None = None,
    store: CheckpointStore | None = None,
    save_every: int = 0,
    resume: str = "auto",
    restarted: bool = False,
    watch: Watch | None = None,
    target_accuracy: float | None = None,
) -> Outcome:
    """Train and evaluate one recipe on all ranks of ``group``; every rank calls this with the same arguments.

    ``phase`` is told what comes next before each part that waits for other ranks. All ranks pass the same phases, also
    one whose share of a batch is empty. ``data_dir`` is where the files of the workload are.

    All ranks give a ``store`` or none does; only that of rank 0 is used. Saved is after every ``save_every`` epochs (0:
    not in between), at the end, and when ``watch`` asks to stop. ``resume`` is ``auto`` (from the newest checkpoint of
    the store, if there is one), ``never`` or the path of a checkpoint. ``restarted``: this training has begun with the
    same arguments before, so a later checkpoint in the store is its own and is taken up in each case. With a ``watch``
    or a ``target_accuracy``, all ranks evaluate after each epoch; training ends after the first epoch that reaches the
    target.

    Raises RequestError for a recipe that cannot be trained so, or a checkpoint of another training; SeatrialError when
    a checkpoint cannot be read or written. Torch's global random numbers are left seeded anew.
    """
    # The data, whole, on the device
    batches = Batches(recipe, device, data_dir)
    workload = batches.workload
    num_steps, steps_per_epoch = recipe.num_steps(workload.num_train), recipe.steps_per_epoch(workload.num_train)

    # The seed alone decides the parameters, so all ranks begin with the same
    phase("wrap model")
    clock = StepClock(device)
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed).to(device)
    model = model.to(memory_format=layout(recipe, device))  # type: ignore[call-overload]
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

    # From a checkpoint, if there is one
    found, notes = None, tuple[str, ...]()
    if store is not None:
        phase("look for a checkpoint")
        found = find_state(store, resume, group, device, restarted=restarted)
    if found is not None:
        phase("resume")
        state = found[1]
        notes = compare(state, recipe, num_steps, group.size(), device)
        if 0 < state["step"] < num_steps:
            # DDP lays out its buckets anew after the first backward, and sums in another order from then on. So there
            # has to be a first one before the state is loaded; nothing of it is kept.
            images, labels, _ = own_batch(state["step"])
            forward(images, labels, 1.0)
            strategy.backward()
            optimizer.zero_grad()
        load_state(training, state)
    if watch is not None:
        start = Start(
            step=position.step,
            num_steps=num_steps,
            steps_per_epoch=steps_per_epoch,
            resumed_from=found[0] if found else None,
            notes=notes,
        )
        watch.on_start(start)

    first_step = position.step
    losses: list[float] = []
    global_counts: list[int] = []
    local_counts: list[int] = []
    counts: tuple[int, int] | None = None
    checkpoint: Path | None = None
    nonfinite: NonFinite | None = None
    interrupted = False
    # fp16 has to know at each step whether a gradient overflowed, and a loss that did so says it more clearly.
    meetings = Meetings(group, device, each_step=recipe.amp == "fp16")
    stopwatch = Stopwatch(device)
    stopwatch.go()
    warm = epoch_began = Lap(seconds=0.0, steps=0, samples=position.samples_seen)
    for step in range(first_step, num_steps):
        if step - first_step == WARMUP_STEPS:
            warm = Lap(seconds=stopwatch.lap(), steps=WARMUP_STEPS, samples=position.samples_seen)

        # Own part of the global batch
        clock.mark("begin")
        images, labels, global_count = own_batch(step)
        clock.mark("data")

        # Gradients are averaged over the shares, so each puts in its sum times shares / count: that mean is the mean
        # over all samples, however unevenly they are spread.
        phase(f"step {step} forward")
        seed_step(recipe.seed, step, strategy.data_rank, device)
        loss_sum = forward(images, labels, loss_scale.factor * (strategy.data_size / global_count))
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
        if watch is not None:
            watch.on_step(step)
        done, epoch_over = position.step == num_steps, position.step % steps_per_epoch == 0
        due = meetings.add(loss_sum)
        if not (due or done or epoch_over):
            continue

        # From time to time, and before anything is saved, all ranks learn how the steps went. One whose loss was not
        # finite has spoilt the parameters of all: all ranks stop here.
        phase(f"step {step} losses")
        told = meetings.meet(step, watch is not None and watch.should_stop())
        for loss_sum_of_all in told.loss_sums:
            position.epoch_loss_sum += loss_sum_of_all
            losses.append(loss_sum_of_all / global_counts[len(losses)])
        nonfinite = told.nonfinite
        if nonfinite is not None:
            break
        if watch is not None:
            watch.on_losses(step, losses[-1])
        interrupted = told.stop and not done
        if not (interrupted or done or epoch_over):
            continue

        # Off the clock: what has been learned, on all ranks; then a checkpoint
        trained_s, epoch, reached = stopwatch.stop(), step // steps_per_epoch, False
        if done or (epoch_over and (watch is not None or target_accuracy is not None)):
            phase("evaluate")
            counts = evaluate(strategy, batches, recipe, group)
            reached = target_accuracy is not None and counts[0] / counts[1] >= target_accuracy
            if watch is not None:
                own_times = typical(clock.times()[epoch_began.steps :])
                rank_times, seconds = _of_all_ranks(own_times, trained_s - epoch_began.seconds, group, device)
                stats = EpochStats(
                    epoch=epoch,
                    step=position.step,
                    loss=position.epoch_loss_sum / position.epoch_samples,
                    num_samples=position.epoch_samples,
                    num_correct=counts[0],
                    num_evaluated=counts[1],
                    samples_per_s=(position.samples_seen - epoch_began.samples) / seconds,
                    seconds=seconds,
                    rank_times=rank_times,
                )
                watch.on_epoch(stats)
        if epoch_over:
            position.begin_epoch()
            epoch_began = Lap(seconds=trained_s, steps=len(losses), samples=position.samples_seen)
        save_now = epoch_over and save_every > 0 and (epoch + 1) % save_every == 0
        if interrupted or done or reached or save_now:
            phase(f"look at parameters after step {position.step}")
            ranks = _ranks_with(not _all_finite(parameters), group, device)
            if ranks:
                nonfinite = NonFinite(step=step, group_ranks=ranks, what="parameters")
                break
            if store is not None:
                phase(f"save step {position.step}")
                checkpoint = save_state(training, store)
        if interrupted or reached:
            break
        stopwatch.go()

    # One model on all ranks: from here on nobody trains with statistics of its own
    trained_s = stopwatch.stop()
    if nonfinite is None:
        phase("end")
        take_average(model, gather_buffers(model, group))
        if counts is None and not interrupted:
            counts = evaluate(strategy, batches, recipe, group)
    steady = position.samples_seen - warm.samples if nonfinite is None and len(losses) > WARMUP_STEPS else 0
    return Outcome(
        losses=tuple(losses),
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
        num_correct=counts[0] if counts else 0,
        num_evaluated=counts[1] if counts else 0,
    )


def _ranks_with(flag: bool, group: dist.ProcessGroup, device: torch.device) -> tuple[int, ...]:
    """The ranks that say yes; all ranks are told."""
    flags = torch.zeros(group.size(), dtype=torch.int64, device=device)
    flags[group.rank()] = int(flag)
    dist.all_reduce(flags, group=group)
    synchronize(device)
    return tuple(rank for rank, said in enumerate(flags.tolist()) if said)


def _all_finite(parameters: list[nn.Parameter]) -> bool:
    return all(bool(local(parameter).isfinite().all()) for parameter in parameters)


def _of_all_ranks(
    own: StepTimes, own_s: float, group: dist.ProcessGroup, device: torch.device
) -> tuple[tuple[StepTimes, ...], float]:
    """The times of each rank, and the longest ``own_s`` of all."""
    values = [*astuple(own), own_s]
    rows = torch.zeros(group.size(), len(values), dtype=torch.float64, device=device)
    rows[group.rank()] = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(rows, group=group)
    names = [field.name for field in fields(StepTimes)]
    told = rows.tolist()
    return tuple(StepTimes(**dict(zip(names, row, strict=False))) for row in told), max(row[-1] for row in told)
