"""Real training with DistributedDataParallel: does it learn, do the replicas stay equal, and is no rank slow.

Up to 32 ranks train on the digits that ship with the package, with a fixed global batch and number of steps, so that
the target does not depend on the number of ranks. Above, a synthetic workload grows with the world and has references
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seatrial.checks.base import Check
from seatrial.errors import RequestError
from seatrial.training.data import find_workload
from seatrial.training.models import find_model
from seatrial.training.recipe import Recipe, fit_to_world
from seatrial.training.references import find_reference
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import judge_fleet, median, minority

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params", "recipe_for"]

_LOSS_POINTS = 200
_LOSS_WINDOW = 10
_REPEAT_STEPS = 30
_NEEDED = ("compute_s", "accuracy", "evaluated", "runs", "digest")
_SHOWN = 16
_NOBODY = Culprit(kind="none", name="nobody can be named")


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
        find_workload(self.workload, self.num_samples)
        find_model(self.model)
        for key in ("max_steps", "epochs", "global_batch_size", "batch_size", "num_samples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} is {value}; it must be at least 1")
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


def measure(context: Context, params: Params) -> None:
    """Train once, or again and again for ``duration_s``; in a repeat only compute, alone."""
    from seatrial.training.runs import Runs
    from seatrial.training.trainer import compute_alone, train

    recipe, key = recipe_for(params, context.world_size)
    device, full_count = context.device.torch, -(-recipe.global_batch_size // context.world_size)
    if context.stage == "repeat":
        context.phase("compute alone")
        seconds = compute_alone(recipe, device=device, local_count=full_count, num_steps=_REPEAT_STEPS)
        context.figure("compute_s", median(seconds), "s", "low")
        return
    if context.group is None:
        raise RequestError("training needs the group that bootstrap forms; add bootstrap to checks.")
    first = context.group_rank == 0
    if first:
        context.fact("recipe", {"key": key, "workload": recipe.workload, "num_test": recipe.data().num_test})
    runs, began = Runs(full_count=full_count), time.monotonic()
    while True:
        started = time.monotonic()
        outcome = train(recipe, device=device, group=context.group, phase=context.phase)
        if first and not runs.accuracies:
            _tell_losses(context, outcome.losses)
        if outcome.nonfinite is not None:
            ranks = [context.ranks[group_rank] for group_rank in outcome.nonfinite.group_ranks]
            context.fact("nonfinite", {"step": outcome.nonfinite.step, "seed": recipe.seed, "ranks": ranks})
            return
        runs.add(outcome)
        if not params.duration_s or not _again(context, params, began, started):
            break
        recipe = replace(recipe, seed=recipe.seed + 1)
    for name, seconds_each in runs.times().items():
        context.figure(name, seconds_each, "s", "low")
    if first and runs.samples_per_s:
        context.figure("samples_per_s", median(runs.samples_per_s), "samples/s", "high")
    context.figure("accuracy", min(runs.accuracies), "1", "high")
    context.figure("evaluated", runs.num_evaluated, "samples")
    context.figure("runs", len(runs.accuracies), "1")
    context.fact("digest", runs.digest())


def _tell_losses(context: Context, losses: tuple[float, ...]) -> None:
    stride = -(-len(losses) // _LOSS_POINTS) or 1
    for step in sorted({*range(0, len(losses), stride), len(losses) - 1} if losses else ()):
        context.figure("loss", losses[step], "1", "low", step=step)


def _again(context: Context, params: Params, began: float, started: float) -> bool:
    """Whether there is time for one more run: rank 0 decides for all, since clocks differ."""
    import torch
    import torch.distributed as dist

    now = time.monotonic()
    # A run that is under way at the deadline would be taken for a hang.
    fits = now - began + 2 * (now - started) < 0.9 * context.timeout_s
    wanted = int(context.group_rank == 0 and now - began < params.duration_s and fits)
    agreed = torch.tensor([wanted], device=context.device.torch)
    context.phase("agree on another run")
    dist.all_reduce(agreed, group=context.group)
    return bool(agreed.item())


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """The ranks that compute slowly, and with them one typical rank of their model to compare with."""
    fleets = [fleet for fleet in _fleets(evidence) if fleet.outliers]
    return tuple(sorted({rank for fleet in fleets for rank in (*fleet.outliers, fleet.reference)}))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """It learns, the replicas are equal bit for bit, every test sample is counted, and no rank is slow when alone."""
    parts = [_judge_nonfinite(evidence)]
    if not parts[0].findings:
        parts = [
            _judge_presence(evidence),
            _judge_loss(evidence),
            _judge_accuracy(evidence, params),
            _judge_digests(evidence),
            *(_judge_fleet(evidence, fleet) for fleet in _fleets(evidence)),
        ]
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=tuple(name for part in parts for name in part.absent),
    )


def _judge_nonfinite(evidence: Evidence) -> Ruling:
    """What is left to say of a training that all ranks stopped together."""
    told = next((fact.value for fact in evidence.facts if fact.name == "nonfinite"), None)
    if told is None:
        return Ruling()
    ranks, num_ranks = tuple(told["ranks"]), len(evidence.ranks)
    # Some: those brought it in. All: what they were given was wrong already. None: only the sum over ranks was.
    apart = 0 < len(ranks) < num_ranks
    action = "run compute on it for longer." if apart else "lower training.lr; if that does not help, test the links."
    finding = Finding(
        severity="fail",
        check="training",
        what=f"the loss is not finite at step {told['step']} (seed {told['seed']})",
        culprit=_culprit(evidence, ranks) if apart else _NOBODY,
        measured=f"not finite on {len(ranks)} of {num_ranks} ranks",
        limit=Limit(value=0, unit="ranks", origin="exact"),
        evidence=("all ranks stopped before the step was applied",),
        action=action if ranks else "the sum over all ranks went wrong: look at the findings of collectives.",
    )
    return Ruling(findings=(finding,))


def _judge_presence(evidence: Evidence) -> Ruling:
    told = {(rank, name) for name in _NEEDED for rank in _by_rank(evidence, name)}
    told |= {(fact.rank, fact.name) for fact in evidence.facts if fact.rank is not None}
    absent = [] if evidence.asked else ["any rank that finished"]
    absent += [f"{name} of rank {rank}" for rank in evidence.asked for name in _NEEDED if (rank, name) not in told]
    absent += [] if any(fact.name == "recipe" for fact in evidence.facts) else ["the recipe that was trained"]
    return Ruling(absent=tuple(absent))


def _judge_loss(evidence: Evidence) -> Ruling:
    points = sorted((figure for figure in evidence.figures if figure.name == "loss"), key=lambda point: point.step or 0)
    if len(points) < 2 * _LOSS_WINDOW:
        return Ruling(absent=(f"the loss of {2 * _LOSS_WINDOW} steps: {len(points)} cannot show whether it falls",))
    losses = [point.value for point in points]
    first, last = sum(losses[:_LOSS_WINDOW]) / _LOSS_WINDOW, sum(losses[-_LOSS_WINDOW:]) / _LOSS_WINDOW
    limit = Limit(value=first, unit="1", origin=f"its own first {_LOSS_WINDOW} points")
    judged = (Judged(figure=points[-1], limit=limit, passed=last < first),)
    if last < first:
        return Ruling(judged=judged)
    finding = Finding(
        severity="fail",
        check="training",
        what="the loss does not fall",
        culprit=_NOBODY,
        measured=f"{last:.4g}, the mean of the last {_LOSS_WINDOW} points",
        limit=limit,
        action="look at the findings of compute and collectives first; then at training.lr.",
    )
    return Ruling(findings=(finding,), judged=judged)


def _judge_accuracy(evidence: Evidence, params: Params) -> Ruling:
    """Counted exactly, the same on all ranks, and as high as it should be. Nobody can be named: it belongs to all."""
    recipe: dict[str, Any] = next((fact.value for fact in evidence.facts if fact.name == "recipe"), {})
    accuracy, evaluated, runs = (_by_rank(evidence, name) for name in ("accuracy", "evaluated", "runs"))
    findings, judged = [], []
    for rank in sorted(evaluated.keys() & runs.keys() if recipe else ()):
        limit = Limit(value=recipe["num_test"] * runs[rank].value, unit="samples", origin="exact")
        judged.append(Judged(figure=evaluated[rank], limit=limit, passed=evaluated[rank].value == limit.value))
    wrong = [entry for entry in judged if not entry.passed]
    apart = len({figure.value for figure in accuracy.values()}) > 1
    if wrong or apart:
        counts = ", ".join(f"rank {rank}: {accuracy[rank].value:.4f}" for rank in sorted(accuracy)[:_SHOWN])
        finding = Finding(
            severity="fail",
            check="training",
            what="the counts of test samples, summed over all ranks, are wrong",
            culprit=_NOBODY,
            measured=f"{wrong[0].figure.value:.0f} samples" if wrong else "not the same sum on all ranks",
            limit=wrong[0].limit if wrong else None,
            evidence=(f"accuracy: {counts}",),
            action="an all_reduce of two integers went wrong: look at the findings of collectives.",
        )
        findings.append(finding)
    bound = _accuracy_limit(params, recipe.get("key", ""), max((figure.value for figure in runs.values()), default=1))
    if bound is None or not accuracy:
        return Ruling(findings=tuple(findings), judged=tuple(judged))
    judged += [Judged(figure=figure, limit=bound, passed=figure.value >= bound.value) for figure in accuracy.values()]
    lowest = min(figure.value for figure in accuracy.values())
    if lowest < bound.value:
        finding = Finding(
            severity="fail",
            check="training",
            what=f"{recipe.get('workload', params.workload)} is learned to less than the accuracy that is due",
            culprit=_NOBODY,
            measured=f"{lowest:.4f}",
            limit=bound,
            action="look at the findings of compute and collectives; if there are none, repeat with another seed.",
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged))


def _accuracy_limit(params: Params, key: str, num_runs: float) -> Limit | None:
    if params.min_accuracy is not None:
        return Limit(value=params.min_accuracy, unit="1", origin="user training.min_accuracy")
    reference = find_reference(key)
    if reference is None:
        return None
    origin = f"reference {key}, {reference.num_seeds} seeds" + (f", {num_runs:.0f} runs" if num_runs > 1 else "")
    return Limit(value=reference.limit(int(num_runs)), unit="1", origin=origin)


def _judge_digests(evidence: Evidence) -> Ruling:
    """Every replica applies the same reduced gradients, so equal kinds must end with equal bits."""
    held = {fact.rank: fact.value for fact in evidence.facts if fact.name == "digest" and fact.rank is not None}
    kinds: dict[str, dict[int, str]] = {}
    for rank, value in held.items():
        kinds.setdefault(evidence.ranks[rank].kind, {})[rank] = value
    findings = []
    for values in (values for _, values in sorted(kinds.items()) if len(set(values.values())) > 1):
        vote = minority(values)
        named = vote.odd or tuple(sorted(values))
        finding = Finding(
            severity="fail",
            check="training",
            what="the replicas are no longer equal: DDP left parameters that differ between ranks",
            culprit=_culprit(evidence, named)
            if vote.odd
            else Culprit(kind="none", name=f"one of ranks {named}, not separable", ranks=named),
            measured=f"{len(set(values.values()))} digests on {len(values)} ranks of one kind",
            evidence=tuple(f"rank {rank}: {values[rank][:16]}" for rank in sorted(values)[:_SHOWN]),
            action="run compute and memory on the named ranks for longer, then links between them.",
        )
        findings.append(finding)
    if not findings and len(set(held.values())) > 1:
        finding = Finding(
            severity="warn",
            check="training",
            what="ranks of different kinds hold different parameters: whether rounding or a fault, this cannot tell",
            culprit=_NOBODY,
            measured=f"{len(set(held.values()))} digests on {len(kinds)} kinds",
            evidence=tuple(f"{kind}: {next(iter(values.values()))[:16]}" for kind, values in sorted(kinds.items())),
            action="train with equal devices and libraries where replicas must agree bit for bit.",
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """The computing times that may be compared: those of one device model."""

    first: Mapping[int, Figure]
    again: Mapping[int, Figure]
    """From the stage ``repeat``: alone, with everybody else idle."""
    limit: Limit
    outliers: tuple[int, ...]
    reference: int
    """The rank nearest to what the outliers were held against."""


def _fleets(evidence: Evidence) -> Iterable[_Fleet]:
    first, again = _by_rank(evidence, "compute_s"), _by_rank(evidence, "compute_s", stage="repeat")
    for device in sorted({evidence.ranks[rank].device for rank in first}):
        mine = {rank: figure for rank, figure in first.items() if evidence.ranks[rank].device == device}
        values = {rank: figure.value for rank, figure in mine.items()}
        ruling = judge_fleet(values, better="low", device_type=evidence.device_type)
        if ruling.limit is not None:
            limit = Limit(value=ruling.limit, unit="s", origin=f"fleet, {ruling.method}")
            reference = min(sorted(values), key=lambda rank: abs(values[rank] - ruling.reference))
            yield _Fleet(first=mine, again=again, limit=limit, outliers=ruling.outliers, reference=reference)


def _judge_fleet(evidence: Evidence, fleet: _Fleet) -> Ruling:
    """A slow rank makes the others wait, so only computing is compared; then again, each rank alone."""
    findings, absent = [], []
    judged = [
        Judged(figure=figure, limit=fleet.limit, passed=True)
        for rank, figure in sorted(fleet.first.items())
        if rank not in fleet.outliers
    ]
    for rank in fleet.outliers:
        if rank not in fleet.again or fleet.reference not in fleet.again:
            absent.append(f"compute_s of rank {rank} measured again, alone; it was slow in the group")
            continue
        before, beside = fleet.first[fleet.reference], fleet.again[fleet.reference]
        # Alone on a quiet machine everybody is faster: the limit moves as the reference rank did.
        limit = Limit(value=fleet.limit.value * beside.value / before.value, unit="s", origin=fleet.limit.origin)
        slow = fleet.again[rank].value > limit.value
        judged.append(Judged(figure=fleet.again[rank], limit=limit, passed=not slow))
        if slow:
            what = f"rank {rank} computes slowly, in the group and alone"
            action = "look at its clocks, power limit, temperature and throttle reasons."
        else:
            what = f"rank {rank} was slow in the group, as fast as its peers when alone"
            action = "look for what the ranks of a node share: power, cooling, memory bandwidth, CPU time."
        finding = Finding(
            severity="fail" if slow else "warn",
            check="training",
            what=what,
            culprit=_culprit(evidence, (rank,)),
            measured=f"{fleet.again[rank].value * 1e3:.3g} ms for forward and backward, alone",
            limit=limit,
            evidence=(
                f"in the group: {fleet.first[rank].value * 1e3:.3g} ms, limit {fleet.limit.value * 1e3:.3g} ms",
                f"rank {fleet.reference} beside it: {before.value * 1e3:.3g} ms, alone {beside.value * 1e3:.3g} ms",
            ),
            action=action,
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent))


def _by_rank(evidence: Evidence, name: str, *, stage: str = "measure") -> dict[int, Figure]:
    found = {figure.rank: figure for figure in evidence.figures if (figure.name, figure.stage) == (name, stage)}
    # A time that is not above 0 was not measured.
    return {
        rank: found[rank] for rank in evidence.ranks if rank in found and (found[rank].value > 0 or name != "compute_s")
    }


def _culprit(evidence: Evidence, ranks: tuple[int, ...]) -> Culprit:
    seen = [evidence.ranks[rank] for rank in ranks]
    nodes = tuple(dict.fromkeys(rank.node for rank in seen))
    return Culprit(kind="rank", name=", ".join(rank.label() for rank in seen), ranks=ranks, nodes=nodes)


CHECK = Check(name="training", scope="world", params=Params, measure=measure, judge=judge, suspects=suspects)
