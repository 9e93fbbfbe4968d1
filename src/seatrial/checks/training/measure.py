"""The measurements of the training check: trainings in the group, and computing alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from seatrial.checks.shared.convolution import count_wrong_convolution
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.checks.training.params import Params, recipe_for
from seatrial.checks.training.rules import LOSS_WINDOW
from seatrial.errors import RequestError
from seatrial.evidence.statistics import median
from seatrial.probe.arithmetic import arithmetic
from seatrial.probe.contention import Contention
from seatrial.rank.context import Context
from seatrial.training.data.datasets import DATASETS
from seatrial.training.recipe import Recipe

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from seatrial.training.data import Workload
    from seatrial.training.outcome import Outcome

_TRAINED = "training/trained"
"""The recipe and the workload of the first stage, which a repeat uses again."""
_LOSS_POINTS = 200
_REPEAT_STEPS = 30
_REPEATS = 3


def measure(context: Context, params: Params) -> None:
    """Train once, or repeatedly for ``duration_s``; before and after, compute one batch that is the same on all ranks.

    In a repeat only compute, alone. Files of data are read once, before all ranks compare what they have read.
    """
    if context.stage == "repeat":
        if _TRAINED in context.kept:
            _compute_alone(context, *context.kept[_TRAINED])
        return
    from seatrial.checks.training.data_files import compared_data

    if (group := context.group) is None:
        raise RequestError("training needs the group that bootstrap forms; add bootstrap to checks.")
    compared = None
    if params.workload in DATASETS and (compared := compared_data(context, params)) is None:
        return
    recipe, key = recipe_for(params, context.world_size, compared.num_train if compared else None)
    workload = compared or recipe.data()
    context.kept[_TRAINED] = recipe, workload
    if context.group_rank == 0:
        context.fact("recipe", {"key": key, "workload": recipe.workload, "num_test": workload.num_test})
    _train(context, params, recipe, workload, group)


def _train(context: Context, params: Params, recipe: Recipe, workload: Workload, group: ProcessGroup) -> None:
    """Train until ``duration_s`` has passed, or until a value is not finite; report all runs so far."""
    from seatrial.checks.training.runs import Runs
    from seatrial.training.buffers import batch_norms
    from seatrial.training.trainer import train

    full_count = _full_count(context, recipe)
    _report_one_batch(context, recipe, workload, full_count)
    runs, contention = Runs(full_count=full_count), Contention(context.device.gauges())

    def report() -> None:
        for name, seconds in runs.times().items():
            context.measurement(name, seconds, "s", "low")
        if context.group_rank == 0 and runs.samples_per_s:
            context.measurement("samples_per_s", median(runs.samples_per_s), "samples/s", "high")
        context.measurement("accuracy", min(runs.accuracies), "1", "high")
        context.measurement("evaluated", runs.num_evaluated, "samples")
        context.measurement("runs", len(runs.accuracies), "1")
        # Any rank can change a sum over all, such as the accuracy; for its share each one answers alone.
        context.fact("own_counts", {"correct": runs.own_correct, "evaluated": runs.own_evaluated})
        # Digests of different numbers of runs are never equal, so each says its number.
        context.fact("digest", {"runs": len(runs.accuracies), "digest": runs.digest()})
        context.fact("contention", contention.so_far())
        _report_one_batch(context, recipe, workload, full_count)

    # All ranks do the same number of runs: results of different numbers of runs cannot be compared.
    for number in timed_rounds(context, params.duration_s / 60, report=report, together=True):
        seed = recipe.seed + number
        with contention:
            outcome = train(
                replace(recipe, seed=seed),
                workload,
                device=context.device.torch,
                group=group,
                phase=context.phase,
            )
        if number == 0:
            _report_losses(context, outcome)
        if (nonfinite := outcome.nonfinite) is not None:
            ranks = [context.ranks[group_rank] for group_rank in nonfinite.group_ranks]
            said = {"what": nonfinite.what, "step": nonfinite.step, "seed": seed, "ranks": ranks}
            # Of this rank alone; a rank without samples in that step knows nothing of its loss.
            said["samples"] = outcome.local_counts[nonfinite.step - outcome.first_step]
            # Running statistics normalize one sample, and then parameters of ordinary size may overflow as well.
            is_bounded = said["samples"] != 1 or not batch_norms(outcome.model)
            said["ordinary"] = nonfinite.began_ordinary if is_bounded or not nonfinite.began_ordinary else None
            context.fact("nonfinite", said)
            return
        runs.add(outcome)


def _full_count(context: Context, recipe: Recipe) -> int:
    """Return the samples of a full share of a rank."""
    return -(-recipe.global_batch_size // context.world_size)


def _report_losses(context: Context, outcome: Outcome) -> None:
    """Report the loss of all ranks, and what this one's share adds to its beginning and its end."""
    losses = outcome.losses
    stride = -(-len(losses) // _LOSS_POINTS) or 1
    for step in sorted({*range(0, len(losses), stride), len(losses) - 1} if losses and not context.group_rank else ()):
        context.measurement("loss", losses[step], "1", "low", step=step)
    # The steps of the points that the judge compares, and those between them.
    window, end = LOSS_WINDOW * stride, len(losses)
    said: dict[str, float] = {}
    for name, steps in (("first", slice(0, window)), ("last", slice(max(end - window, 0), end))):
        said[f"{name}_sum"] = math.fsum(outcome.own_loss_sums[steps])
        said[f"{name}_samples"] = sum(outcome.local_counts[:end][steps])
    context.fact("own_loss", said)


def _report_one_batch(context: Context, recipe: Recipe, workload: Workload, local_count: int) -> None:
    from seatrial.checks.training.one_batch import compute_one_batch

    context.phase("one batch")
    digests = compute_one_batch(recipe, workload, device=context.device.torch, local_count=local_count)
    alike = arithmetic(context.device.units)
    context.fact("one_batch", {"scores": digests.scores, "gradients": digests.gradients, "alike": alike})


def _compute_alone(context: Context, recipe: Recipe, workload: Workload) -> None:
    """Report the time of computing without a group, one batch several times, and a convolution with a known answer."""
    from seatrial.checks.training.alone import time_alone

    local_count = _full_count(context, recipe)
    context.phase("compute alone")
    with Contention(context.device.gauges()) as contention:
        timings = time_alone(
            recipe,
            workload,
            device=context.device.torch,
            local_count=local_count,
            num_steps=_REPEAT_STEPS,
            repeats=_REPEATS,
        )
    # A lasting fault is slow each time; a disturbance from outside is not.
    best = min(timings, key=lambda timing: median(timing.seconds))
    context.measurement("compute_s", median(best.seconds), "s", "low")
    context.fact("contention", contention.so_far())
    if context.device.type == "cpu":
        context.measurement("cpu_share", best.cpu_share, "1")
    for number in range(_REPEATS):
        _report_one_batch(context, recipe, workload, local_count)
        wrong, places = count_wrong_convolution(context.device, number)
        context.measurement("wrong_elements", wrong, "1", "low", variant="convolution", step=number)
        if wrong:
            context.fact("wrong_values", {"count": wrong, "first": places})
