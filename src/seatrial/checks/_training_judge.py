"""What the training check makes of its figures. Pure: no torch, no group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seatrial.checks._beside import beside
from seatrial.checks._one_batch_judge import doubtful, judge_one_batch
from seatrial.checks._training_held import held_up, is_counted, judge_held_up
from seatrial.checks.base import STARVED, holds, last_told, sound
from seatrial.training.references import find_reference
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import judge_fleet, minority

if TYPE_CHECKING:
    from seatrial.checks.training import Params

__all__ = ["LOSS_WINDOW", "accuracy_limit", "judge", "suspects"]

LOSS_WINDOW = 10
"""The loss falls when its mean over so many last points is below that over so many first ones."""
_NEEDED = ("compute_s", "accuracy", "evaluated", "runs", "digest", "one_batch")
_SHOWN = 16
_NOBODY = Culprit(kind="none", name="nobody can be named")
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "recipe": lambda value: holds(value, key=str, workload=str, num_test=int),
    "nonfinite": lambda value: holds(value, step=int, seed=int, ranks=list),
    "digest": lambda value: holds(value, runs=int, digest=str),
    "one_batch": lambda value: holds(value, scores=str, gradients=str, alike=str),
    "contention": is_counted,
}


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """The ranks that compute wrongly or slowly, and with the slow ones one typical rank of their model to compare with.

    That rank comes first and then the worst, because only so many are measured again, and nobody without the first.
    """
    evidence = sound(evidence, _FORMS)
    fleets = [fleet for fleet in _fleets(evidence) if fleet.outliers]
    slow = [(-fleet.first[rank].value / fleet.limit.value, rank) for fleet in fleets for rank in fleet.outliers]
    slowest = [*(fleet.reference for fleet in fleets), *(rank for _, rank in sorted(slow))]
    return tuple(dict.fromkeys([*doubtful(evidence), *slowest]))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """It learns, the replicas are equal bit for bit, every test sample is counted, and no rank is wrong or slow."""
    evidence = sound(evidence, _FORMS)
    evidence = replace(evidence, figures=last_told(evidence.figures))
    parts = [_judge_nonfinite(evidence)]
    if not parts[0].findings:
        parts = [
            _judge_presence(evidence),
            _judge_loss(evidence),
            _judge_accuracy(evidence, params),
            _judge_digests(evidence),
            *(_judge_fleet(evidence, fleet) for fleet in _fleets(evidence)),
            judge_held_up(evidence),
        ]
    # Also where the training was given up: a wrong rank may be why.
    parts.append(judge_one_batch(evidence))
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=tuple(name for part in parts for name in part.absent),
        unjudged=tuple(name for part in parts for name in part.unjudged),
    )


def _judge_nonfinite(evidence: Evidence) -> Ruling:
    """What is left to say of a training that all ranks stopped together."""
    told = next((fact.value for fact in evidence.facts if fact.name == "nonfinite"), None)
    if told is None:
        return Ruling()
    ranks, num_ranks = tuple(rank for rank in evidence.ranks if rank in told["ranks"]), len(evidence.ranks)
    # Some: those brought it in. All: what they were given was wrong already. None: only the sum over ranks was.
    apart = 0 < len(ranks) < num_ranks
    action = "run compute on it for longer." if apart else "lower training.lr; if that does not help, test the links."
    in_loss = told.get("what", "loss") == "loss"
    what = "the loss is not finite at step" if in_loss else "parameters are not finite after step"
    finding = Finding(
        severity="fail",
        check="training",
        what=f"{what} {told['step']} (seed {told['seed']})",
        culprit=_culprit(evidence, ranks) if apart else _NOBODY,
        measured=f"not finite on {len(ranks)} of {num_ranks} ranks",
        limit=Limit(value=0, unit="ranks", origin="exact"),
        evidence=("all ranks stopped before the step was applied",) if in_loss else (),
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
    if len(points) < 2 * LOSS_WINDOW:
        return Ruling(absent=(f"the loss of {2 * LOSS_WINDOW} steps: {len(points)} cannot show whether it falls",))
    losses = [point.value for point in points]
    first, last = sum(losses[:LOSS_WINDOW]) / LOSS_WINDOW, sum(losses[-LOSS_WINDOW:]) / LOSS_WINDOW
    limit = Limit(value=first, unit="1", origin=f"its own first {LOSS_WINDOW} points")
    judged = (Judged(figure=points[-1], limit=limit, passed=last < first),)
    if last < first:
        return Ruling(judged=judged)
    finding = Finding(
        severity="fail",
        check="training",
        what="the loss does not fall",
        culprit=_NOBODY,
        measured=f"{last:.4g}, the mean of the last {LOSS_WINDOW} points",
        limit=limit,
        action="look at the findings of compute and collectives first; then at training.lr.",
    )
    return Ruling(findings=(finding,), judged=judged)


def _judge_accuracy(evidence: Evidence, params: Params) -> Ruling:
    """Counted exactly, the same on all ranks, and as high as it should be. Nobody can be named: it belongs to all."""
    recipe: dict[str, Any] = next((fact.value for fact in evidence.facts if fact.name == "recipe"), {})
    accuracy, evaluated, runs = (_by_rank(evidence, name) for name in ("accuracy", "evaluated", "runs"))
    findings, judged = [], []
    # What a rank told that did not finish may be of other runs than what the others told.
    finished = sorted(set(evidence.asked) & accuracy.keys())
    for rank in sorted(set(evidence.asked) & evaluated.keys() & runs.keys() if recipe else ()):
        limit = Limit(value=recipe["num_test"] * runs[rank].value, unit="samples", origin="exact")
        judged.append(Judged(figure=evaluated[rank], limit=limit, passed=evaluated[rank].value == limit.value))
    wrong = [entry for entry in judged if not entry.passed]
    apart = len({accuracy[rank].value for rank in finished}) > 1
    if wrong or apart:
        counts = ", ".join(f"rank {rank}: {accuracy[rank].value:.4f}" for rank in finished[:_SHOWN])
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
    bound = accuracy_limit(params, recipe.get("key", ""), max((figure.value for figure in runs.values()), default=1))
    if not accuracy or not recipe:
        return Ruling(findings=tuple(findings), judged=tuple(judged))
    lowest = min(figure.value for figure in accuracy.values())
    if bound is None:
        finding = Finding(
            severity="warn",
            check="training",
            what=f"accuracy {lowest:.4f} was only measured: there is no reference for this recipe",
            culprit=_NOBODY,
            measured=f"{lowest:.4f}",
            action="set training.min_accuracy.",
        )
        return Ruling(findings=(*findings, finding), judged=tuple(judged), unjudged=("accuracy not judged",))
    judged += [Judged(figure=figure, limit=bound, passed=figure.value >= bound.value) for figure in accuracy.values()]
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


def accuracy_limit(params: Params, key: str, num_runs: float) -> Limit | None:
    if params.min_accuracy is not None:
        return Limit(value=params.min_accuracy, unit="1", origin="user training.min_accuracy")
    reference = find_reference(key)
    if reference is None:
        return None
    origin = f"reference {key}, {reference.num_seeds} seeds" + (f", {num_runs:.0f} runs" if num_runs > 1 else "")
    return Limit(value=reference.limit(int(min(max(num_runs, 1), 1e9))), unit="1", origin=origin)


def _judge_digests(evidence: Evidence) -> Ruling:
    """Every replica applies the same reduced gradients, so equal kinds must end with equal bits."""
    told: dict[int, dict[int, str]] = {}
    for fact in evidence.facts:
        if fact.name == "digest" and fact.rank is not None:
            told.setdefault(fact.value["runs"], {})[fact.rank] = fact.value["digest"]
    rulings = [ruling for _, held in sorted(told.items()) if (ruling := _judge_replicas(evidence, held)).findings]
    # Once apart, they stay apart: the first to fail is the nearest to the cause.
    failed = (ruling for ruling in rulings if any(finding.severity == "fail" for finding in ruling.findings))
    return next(failed, rulings[0] if rulings else Ruling())


def _judge_replicas(evidence: Evidence, held: Mapping[int, str]) -> Ruling:
    """``held``: rank -> digest of the same runs."""
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
    """A slow rank makes the others wait, so only computing is compared; then again, each rank alone.

    On a GPU it is only warned of: a small model says more of the host that launches it.
    """
    findings, absent, unjudged = [], [], []
    shares, on_gpu = _by_rank(evidence, "cpu_share", stage="repeat"), evidence.device_type == "cuda"
    judged = [
        Judged(figure=figure, limit=fleet.limit, passed=True)
        for rank, figure in sorted(fleet.first.items())
        if rank not in fleet.outliers
    ]
    known = held_up(evidence, "throttled_s")
    for rank in fleet.outliers:
        if rank in known:
            continue
        if rank not in fleet.again or fleet.reference not in fleet.again:
            if on_gpu:
                findings.append(_not_repeated(evidence, fleet, rank))
            else:
                absent.append(f"compute_s of rank {rank} measured again, alone; it was slow in the group")
            continue
        before, after = fleet.first[fleet.reference], fleet.again[fleet.reference]
        # Alone on a quiet machine everybody is faster: the limit moves as the reference rank did.
        limit = Limit(value=fleet.limit.value * after.value / before.value, unit="s", origin=fleet.limit.origin)
        slow = fleet.again[rank].value > limit.value
        share = min((shares[other].value for other in (rank, fleet.reference) if other in shares), default=1.0)
        starved = slow and share < STARVED
        blamed = slow and not starved and not on_gpu
        lines = [
            f"in the group: {fleet.first[rank].value * 1e3:.3g} ms, limit {fleet.limit.value * 1e3:.3g} ms",
            f"rank {fleet.reference} beside it: {before.value * 1e3:.3g} ms, alone {after.value * 1e3:.3g} ms",
        ]
        lines += beside(evidence, rank, fleet.reference)
        if blamed or not slow:
            judged.append(Judged(figure=fleet.again[rank], limit=limit, passed=not slow))
        if starved:
            what = f"how fast rank {rank} computes could not be judged: other processes held the CPU"
            unjudged.append(what)
            action = "end what else runs on the node and repeat the trial."
            lines.append(f"alone, it got {share * 100:.0f} % of the CPU time that its threads could use")
        elif slow and not blamed:
            what = f"rank {rank} computes a small model slowly, in the group and alone"
            action = "see what compute says of its device, and look at the CPU of its host, which launches the work."
        elif slow:
            what = f"rank {rank} computes slowly, in the group and alone"
            action = "look at its clocks, power limit, temperature and throttle reasons."
        else:
            what = f"rank {rank} was slow in the group, as fast as its peers when alone"
            action = "look for what the ranks of a node share: power, cooling, memory bandwidth, CPU time."
        finding = Finding(
            severity="fail" if blamed else "warn",
            check="training",
            what=what,
            culprit=_culprit(evidence, (rank,)),
            measured=f"{fleet.again[rank].value * 1e3:.3g} ms for forward and backward, alone",
            limit=limit,
            evidence=tuple(lines),
            action=action,
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent), unjudged=tuple(unjudged))


def _not_repeated(evidence: Evidence, fleet: _Fleet, rank: int) -> Finding:
    return Finding(
        severity="warn",
        check="training",
        what=f"rank {rank} was slow in the group, and was not measured again, alone",
        culprit=_culprit(evidence, (rank,)),
        measured=f"{fleet.first[rank].value * 1e3:.3g} ms for forward and backward",
        limit=fleet.limit,
        action="see what compute says of its device.",
    )


def _by_rank(evidence: Evidence, name: str, *, stage: str = "measure") -> dict[int, Figure]:
    found = {figure.rank: figure for figure in evidence.figures if (figure.name, figure.stage) == (name, stage)}
    # A time that is not above 0 was not measured, and what is not finite is no figure.
    return {
        rank: found[rank]
        for rank in evidence.ranks
        if rank in found and abs(found[rank].value) < math.inf and (found[rank].value > 0 or name != "compute_s")
    }


def _culprit(evidence: Evidence, ranks: tuple[int, ...]) -> Culprit:
    seen = [evidence.ranks[rank] for rank in ranks]
    nodes = tuple(dict.fromkeys(rank.node for rank in seen))
    return Culprit(kind="rank", name=", ".join(rank.label() for rank in seen), ranks=ranks, nodes=nodes)
