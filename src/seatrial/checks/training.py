"""Real training with DistributedDataParallel: does it learn, do the replicas stay equal, and is no rank slow or wrong.

Up to 32 ranks train on the digits that ship with the package, with a fixed global batch and number of steps, so that
the target does not depend on the number of ranks. Above, a synthetic workload grows with the world and has references
of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seatrial.checks._convolution import count_wrong_convolution
from seatrial.checks._training_judge import LOSS_WINDOW, accuracy_limit, judge, suspects
from seatrial.checks.base import STARVED, TELL_EVERY_S, Check, Held
from seatrial.errors import RequestError
from seatrial.probe.arithmetic import arithmetic
from seatrial.probe.contention import Contention
from seatrial.training.data import find_workload
from seatrial.training.models import find_model
from seatrial.training.recipe import MAX_DIGITS_RANKS, Recipe, fit_to_world
from seatrial.verdict.statistics import fleet_rules, median

if TYPE_CHECKING:
    from seatrial.training.runs import Runs
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params", "recipe_for"]

_LOSS_POINTS = 200
_REPEAT_STEPS = 30
_REPEATS = 3
_LARGEST_BYTES = 2**30
"""Each rank holds all images of its workload."""
_STOP, _AGAIN, _TELL_AND_AGAIN = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What to train, how long, and the limits."""

    workload: str = "digits"
    model: str = "convnet"
    max_steps: int = 300
    epochs: int | None = None
    """Decides the number of steps in place of ``max_steps``; None: ``max_steps`` does."""
    global_batch_size: int = 64
    """Samples a step over all ranks, however many there are."""
    batch_size: int | None = None
    """Samples a step of each rank, in place of ``global_batch_size``."""
    num_samples: int = 32_768
    """Training samples of a synthetic workload."""
    lr: float = 0.1
    seed: int = 1
    duration_s: float = 0.0
    """Train again with the next seed until this has passed; 0: once."""
    min_accuracy: float | None = None
    """The user's own limit, a share from 0 to 1; None: the stored reference of the recipe, if there is one."""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError or RequestError with a sentence for a value that cannot be meant."""
        workload = find_workload(self.workload, num_samples=self.num_samples)
        find_model(self.model)
        for key in ("max_steps", "epochs", "global_batch_size", "batch_size", "num_samples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} is {value}; it must be at least 1")
        if workload.size_bytes() > _LARGEST_BYTES:
            raise ValueError(
                f"workload is {self.workload} with num_samples {workload.num_train}: {workload.size_bytes()} bytes of "
                f"images on each rank, and at most {_LARGEST_BYTES} are allowed; make the images or num_samples smaller"
            )
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr is {self.lr}; it must be above 0")
        if self.min_accuracy is not None and not 0 < self.min_accuracy <= 1:
            raise ValueError(f"min_accuracy is {self.min_accuracy}; it must be above 0 and at most 1")
        if not 0 <= self.duration_s < self.timeout_s:
            raise ValueError(f"duration_s is {self.duration_s:g}; it must fit into timeout_s, {self.timeout_s:g} s")


def recipe_for(params: Params, world_size: int) -> tuple[Recipe, str]:
    """What so many ranks train, and the key of its reference. Raises RequestError when that cannot be trained."""
    asked = Recipe(
        workload=params.workload,
        model=params.model,
        max_steps=params.max_steps,
        global_batch_size=params.global_batch_size,
        lr=params.lr,
        num_samples=params.num_samples,
        seed=params.seed,
    )
    return fit_to_world(asked, world_size, batch_size=params.batch_size, epochs=params.epochs)


def limits(params: Params) -> tuple[Held, ...]:
    """What learning, equality and speed are held against."""
    window = f"below that of the first {LOSS_WINDOW}"
    return (
        Held(what="loss", limit="finite at every step", origin="exact"),
        Held(what=f"loss, mean of the last {LOSS_WINDOW} points", limit=window, origin="its own first points"),
        *_accuracy_limits(params),
        Held(what="accuracy", limit="equal on all ranks", origin="exact"),
        Held(what="evaluated", limit="every test sample, once a run", origin="exact"),
        Held(what="digest", limit="equal on ranks of one kind", origin="exact"),
        Held(what="one_batch", limit="equal on ranks that compute alike, each time", origin="vote of these ranks"),
        Held(what="wrong_elements, measured again", limit="0", origin="exact"),
        *(
            Held(what=f"compute_s, {num_ranks} ranks", limit=rule, origin="fleet of one device model, again alone")
            for num_ranks, rule in fleet_rules()
        ),
        Held(
            what="cpu_share, slow alone",
            limit=f"below {STARVED:g} its speed only warns",
            origin="CPU time that its threads could use",
        ),
        Held(what="CPU time kept by a quota", limit="20 % more than most others", origin="fleet, kernel's counters"),
        Held(what="CPU time kept by others", limit="30 % more, only warns", origin="fleet, kernel's counters"),
        Held(what="compute_s, on a GPU", limit="only warns", origin="a small model says little of a GPU"),
    )


def _accuracy_limits(params: Params) -> Iterator[Held]:
    """One row for all numbers of ranks that are held against the same; above ``MAX_DIGITS_RANKS`` all are alike."""
    world_sizes = range(1, MAX_DIGITS_RANKS + 2)
    for (limit, origin), alike in itertools.groupby(world_sizes, key=lambda world_size: _due(params, world_size)):
        first, *others = alike
        last = others[-1] if others else first
        if last > MAX_DIGITS_RANKS:
            ranks = "" if first == 1 else f", {first} or more ranks"
        else:
            ranks = f", {first} to {last} ranks" if others else f", {first} rank{'s' if first > 1 else ''}"
        yield Held(what=f"accuracy{ranks}", limit=limit, origin=origin)


def _due(params: Params, world_size: int) -> tuple[str, str]:
    """The accuracy that so many ranks have to reach in one run, and the origin of it."""
    try:
        _, key = recipe_for(params, world_size)
    except RequestError:  # every other parameter is known to be right by now
        return "cannot be trained", "the global batch is larger than the data"
    bound = accuracy_limit(params, key, 1)
    if bound is None:
        return "none: only measured", "no reference for this recipe"
    lower = "" if bound.origin.startswith("user") or not params.duration_s else "; lower for the lowest of several runs"
    return f"at least {bound.value:.4f}", f"{bound.origin}{lower}"


def measure(context: Context, params: Params) -> None:
    """Train once, or again and again for ``duration_s``, and before and after it compute the one batch that all ranks
    compute; in a repeat only compute, alone."""
    from seatrial.training.alone import compute_alone
    from seatrial.training.runs import Runs
    from seatrial.training.trainer import train

    recipe, key = recipe_for(params, context.world_size)
    device, full_count = context.device.torch, -(-recipe.global_batch_size // context.world_size)
    if context.stage == "repeat":
        context.phase("compute alone")
        with Contention(context.device.gauges()) as contention:
            tries = compute_alone(
                recipe, device=device, local_count=full_count, num_steps=_REPEAT_STEPS, repeats=_REPEATS
            )
        # A lasting fault is slow each time; a disturbance from outside is not.
        best = min(tries, key=lambda each: median(each.seconds))
        context.figure("compute_s", median(best.seconds), "s", "low")
        context.fact("contention", contention.so_far())
        if context.device.type == "cpu":
            context.figure("cpu_share", best.cpu_share, "1")
        for turn in range(_REPEATS):
            _tell_one_batch(context, recipe, full_count)
            wrong, places = count_wrong_convolution(context.device, turn)
            context.figure("wrong_elements", wrong, "1", "low", variant="convolution", step=turn)
            if wrong:
                context.fact("wrong_values", {"count": wrong, "first": places})
        return
    if context.group is None:
        raise RequestError("training needs the group that bootstrap forms; add bootstrap to checks.")
    first = context.group_rank == 0
    if first:
        context.fact("recipe", {"key": key, "workload": recipe.workload, "num_test": recipe.data().num_test})
    asked = recipe
    _tell_one_batch(context, asked, full_count)
    runs, began, contention = Runs(full_count=full_count), time.monotonic(), Contention(context.device.gauges())
    told_at = began
    while True:
        started = time.monotonic()
        with contention:
            outcome = train(recipe, device=device, group=context.group, phase=context.phase)
        if first and not runs.accuracies:
            _tell_losses(context, outcome.losses)
        if outcome.nonfinite is not None:
            ranks = [context.ranks[group_rank] for group_rank in outcome.nonfinite.group_ranks]
            nonfinite = outcome.nonfinite
            told = {"what": nonfinite.what, "step": nonfinite.step, "seed": recipe.seed, "ranks": ranks}
            context.fact("nonfinite", told)
            return
        runs.add(outcome)
        wanted = _wait_for_others_to_agree(context, params, began, started, told_at) if params.duration_s else _STOP
        if wanted != _AGAIN:
            _tell(context, runs)
            context.fact("contention", contention.so_far())  # what is told last counts
            _tell_one_batch(context, asked, full_count)
            told_at = time.monotonic()
        if wanted == _STOP:
            return
        recipe = replace(recipe, seed=recipe.seed + 1)


def _tell(context: Context, runs: Runs) -> None:
    """All runs so far. What is told last counts."""
    for name, seconds_each in runs.times().items():
        context.figure(name, seconds_each, "s", "low")
    if context.group_rank == 0 and runs.samples_per_s:
        context.figure("samples_per_s", median(runs.samples_per_s), "samples/s", "high")
    context.figure("accuracy", min(runs.accuracies), "1", "high")
    context.figure("evaluated", runs.num_evaluated, "samples")
    context.figure("runs", len(runs.accuracies), "1")
    # Digests of other numbers of runs are never equal: each says which it is of.
    context.fact("digest", {"runs": len(runs.accuracies), "digest": runs.digest()})


def _tell_one_batch(context: Context, recipe: Recipe, local_count: int) -> None:
    from seatrial.training.one_batch import compute_one_batch

    context.phase("one batch")
    found = compute_one_batch(recipe, device=context.device.torch, local_count=local_count)
    alike = arithmetic(context.device.units)
    context.fact("one_batch", {"scores": found.scores, "gradients": found.gradients, "alike": alike})


def _tell_losses(context: Context, losses: tuple[float, ...]) -> None:
    stride = -(-len(losses) // _LOSS_POINTS) or 1
    for step in sorted({*range(0, len(losses), stride), len(losses) - 1} if losses else ()):
        context.figure("loss", losses[step], "1", "low", step=step)


def _wait_for_others_to_agree(context: Context, params: Params, began: float, started: float, told_at: float) -> int:
    """Whether there is time for one more run and what was seen is to be told: rank 0 decides for all.

    Clocks differ, and what is told of different numbers of runs cannot be compared.
    """
    import torch
    import torch.distributed as dist

    now = time.monotonic()
    # A run that is under way at the deadline would be taken for a hang.
    fits = now - began + 2 * (now - started) < 0.9 * context.timeout_s
    wanted = _STOP
    if context.group_rank == 0 and now - began < params.duration_s and fits:
        wanted = _TELL_AND_AGAIN if now - told_at >= TELL_EVERY_S else _AGAIN
    agreed = torch.tensor([wanted], device=context.device.torch)
    context.phase("agree on another run")
    dist.all_reduce(agreed, group=context.group)
    return int(agreed.item())


CHECK = Check(
    name="training",
    scope="world",
    params=Params,
    measure=measure,
    judge=judge,
    suspects=suspects,
    limits=limits,
)
