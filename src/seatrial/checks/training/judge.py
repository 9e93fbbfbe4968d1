"""The judge of the training check. Pure: no torch, no group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.checks.shared.asked_rounds import is_rounds, judge_rounds
from seatrial.checks.shared.culprits import rank_culprit, ranks_or_links
from seatrial.checks.shared.facts import drop_malformed, has_fields, latest, unreadable
from seatrial.checks.training.judge_data import is_data, judge_compared, judge_data
from seatrial.checks.training.judge_held_up import judge_held_up
from seatrial.checks.training.judge_one_batch import judge_one_batch, one_batch_suspects
from seatrial.checks.training.judge_recipe import trained
from seatrial.checks.training.judge_shares import (
    absent_shares,
    compare_shares,
    falls_on,
    is_own_counts,
    is_own_loss,
)
from seatrial.checks.training.judge_speed import judge_compute, slow_suspects
from seatrial.checks.training.params import Params
from seatrial.checks.training.readings import by_rank
from seatrial.checks.training.rules import LOSS_WINDOW, accuracy_rule
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.evidence.statistics import VOTING_HOSTS, minority, shared_votes
from seatrial.util.text import as_name, named_ranks

_NEEDED = ("compute_s", "accuracy", "evaluated", "runs", "digest", "one_batch")
_SHOWN = 16
_NOBODY = Culprit(kind="none", name="nobody can be named")
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "recipe": lambda value: has_fields(value, key=str, workload=str, num_test=int),
    "nonfinite": lambda value: has_fields(value, step=int, seed=int, ranks=list),
    "data": is_data,
    "data_compared": lambda value: has_fields(value, same=bool),
    "rounds": is_rounds,
    "digest": lambda value: has_fields(value, runs=int, digest=str),
    "one_batch": lambda value: has_fields(value, scores=str, gradients=str, alike=str),
    "own_counts": is_own_counts,
    "own_loss": is_own_loss,
}


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """Return the ranks that compute wrongly or slowly, and with the slow ones one typical rank of their model."""
    evidence = drop_malformed(evidence, _FORMS)
    return tuple(dict.fromkeys([*one_batch_suspects(evidence), *slow_suspects(evidence)]))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Pass a training that learns, with replicas equal bit for bit, every test sample counted, and no rank at fault."""
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    evidence = replace(evidence, measurements=latest(evidence.measurements))
    data = judge_data(evidence)
    if data.findings:
        return data  # nobody has trained
    compared = judge_compared(evidence)
    if compared.findings and not evidence.measurements:
        return compared
    parts = [_judge_nonfinite(evidence)]
    if not parts[0].findings:
        parts += [
            Ruling(absent=damaged),
            _judge_presence(evidence),
            judge_rounds(evidence, rounds=1, seconds=params.duration_s),
            _judge_loss(evidence),
            _judge_accuracy(evidence, params),
            _judge_digests(evidence),
            *judge_compute(evidence),
            judge_held_up(evidence),
        ]
    # Also after a training that stopped early: a wrong rank may be the cause.
    parts += [compared, judge_one_batch(evidence)]
    return Ruling.merge(parts)


def _judge_nonfinite(evidence: Evidence) -> Ruling:
    """Fail a training that all ranks stopped together because a value was not finite."""
    reports = {fact.rank: fact.value for fact in evidence.facts if fact.name == "nonfinite" and fact.rank is not None}
    if not reports:
        return Ruling()
    # All ranks stop at one step and report that. A report of few ranks, or of few hosts, is made up.
    places = Counter((value["step"], value["seed"]) for value in reports.values())
    place, num_reports = places.most_common(1)[0]
    reporters = set(evidence.asked or evidence.ranks)
    hosts = evidence.hosts()
    saying = {hosts.get(rank) for rank, value in reports.items() if (value["step"], value["seed"]) == place}
    tellers = {rank for rank, value in reports.items() if (value["step"], value["seed"]) == place}
    if 2 * num_reports <= len(reporters) or 2 * len(saying) <= len({hosts.get(rank) for rank in reporters}):
        missing = sorted(reporters - tellers)
        absent = (f"the step at which training stopped, of rank {rank}" for rank in missing)
        return Ruling(
            absent=(f"training that stopped on most hosts: only {named_ranks(sorted(tellers))} said so", *absent)
        )
    nonfinite = next(value for value in reports.values() if (value["step"], value["seed"]) == place)
    # Of each rank its own report only.
    own = {rank: reports[rank] for rank in sorted(tellers)}
    ranks = [rank for rank, value in own.items() if rank in value["ranks"]]
    in_loss = nonfinite.get("what", "loss") == "loss"
    # A loss that is not finite mostly follows from what the rank received: the sum of all gradients.
    arose = [rank for rank in ranks if in_loss and own[rank].get("ordinary") is True]
    spoiled = [rank for rank, value in own.items() if (value.get("ordinary") is False if in_loss else rank in ranks)]
    # Of one sample normalized by running statistics nobody can say where its loss arose.
    unknown = [
        rank for rank in ranks if in_loss and own[rank].get("samples") == 1 and own[rank].get("ordinary") is None
    ]
    culprit, action = _NOBODY, "lower training.lr; if that does not help, test the links."
    odd = minority({rank: rank not in spoiled for rank in own}, hosts)
    able = [rank for rank, value in own.items() if value.get("samples") != 0 and value.get("ordinary") is not None]
    if _are_few(evidence, arose, able):
        culprit, action = rank_culprit(evidence, arose), "run compute on the named ranks for longer."
    elif odd.majority and odd.odd:
        culprit = ranks_or_links(evidence, odd.odd)
        action = "test the links that lead there, and run compute and memory on the named ranks for longer."
    elif unknown:
        action = f"give each rank two samples a step or more (training.batch_size), or {action}"
    elif not ranks:
        action = "the sum over all ranks went wrong: look at the findings of collectives."
    lines = [f"computed from ordinary parameters, by their own reports: {named_ranks(arose)}"] if arose else []
    lines += (
        [f"parameters not finite, or huge, before that step: {named_ranks(spoiled)}"] if in_loss and spoiled else []
    )
    lines += [f"normalized one sample by running statistics: {named_ranks(unknown)}"] if unknown else []
    what = "the loss is not finite at step" if in_loss else "parameters are not finite after step"
    finding = Finding(
        severity="fail",
        check="training",
        what=f"{what} {nonfinite['step']} (seed {nonfinite['seed']})",
        culprit=culprit,
        measured=f"not finite on {len(ranks)} of {len(evidence.ranks)} ranks",
        limit=Limit(value=0, unit="ranks", origin="exact"),
        evidence=tuple(lines),
        action=action,
    )
    return Ruling(findings=(finding,))


def _are_few(evidence: Evidence, accused: list[int], witnesses: list[int]) -> bool:
    """Return whether ranks that accuse themselves are an exception: what is common comes from what they share.

    ``witnesses``: ranks that had samples, and parameters that tell where a loss arose, so that they would know.
    """
    hosts = evidence.hosts()
    at_fault, in_all = len({hosts[rank] for rank in accused}), len({hosts[rank] for rank in witnesses})
    if in_all >= VOTING_HOSTS:
        return 0 < 2 * at_fault < in_all
    return 0 < len(accused) < len(witnesses)


def _judge_presence(evidence: Evidence) -> Ruling:
    reported = {(rank, name) for name in _NEEDED for rank in by_rank(evidence, name)}
    reported |= {(fact.rank, fact.name) for fact in evidence.facts if fact.rank is not None}
    absent = [] if evidence.asked else ["any rank that finished"]
    absent += [f"{name} of rank {rank}" for rank in evidence.asked for name in _NEEDED if (rank, name) not in reported]
    return Ruling(absent=(*absent, *absent_shares(evidence)))


def _judge_loss(evidence: Evidence) -> Ruling:
    first_rank = min(evidence.ranks, default=0)
    points = sorted(
        (point for point in evidence.measurements if point.name == "loss" and point.rank == first_rank),
        key=lambda point: point.step or 0,
    )
    if len(points) < 2 * LOSS_WINDOW:
        return Ruling(absent=(f"the loss of {2 * LOSS_WINDOW} steps: {len(points)} cannot show whether it falls",))
    losses = [point.value for point in points]
    first, last = sum(losses[:LOSS_WINDOW]) / LOSS_WINDOW, sum(losses[-LOSS_WINDOW:]) / LOSS_WINDOW
    limit = Limit(value=first, unit="1", origin=f"its own first {LOSS_WINDOW} points")
    judged = (Judged(measurement=points[-1], limit=limit, passed=last < first),)
    if last < first:
        # One rank can change the sum of all, and its own share: most hosts must see the same.
        falling, num_hosts = falls_on(evidence) or (1, 1)
        words = f"a loss that falls on most hosts, each by its own samples: it does on {falling} of {num_hosts}"
        return Ruling(judged=judged, absent=() if 2 * falling > num_hosts else (words,))
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
    """Judge the counts of test samples, and the accuracy. No rank can be named: both are sums over all ranks.

    Any rank can change a sum, so the accuracy is also no more than what each rank counted in its own share.
    """
    recipe = trained(evidence, params)
    accuracy, evaluated, runs = (by_rank(evidence, name) for name in ("accuracy", "evaluated", "runs"))
    findings, judged = [], []
    # A rank that did not finish may have reported other runs than the others.
    finished = sorted(set(evidence.asked) & accuracy.keys())
    for rank in sorted(set(evidence.asked) & evaluated.keys() & runs.keys()):
        limit = Limit(value=recipe.num_test * runs[rank].value, unit="samples", origin="exact")
        judged.append(Judged(measurement=evaluated[rank], limit=limit, passed=evaluated[rank].value == limit.value))
    wrong = [entry for entry in judged if not entry.passed]
    shares = compare_shares(evidence, recipe.num_test, accuracy, runs)
    differs = len({accuracy[rank].value for rank in finished}) > 1
    odd = minority({rank: accuracy[rank].value for rank in finished}, evidence.hosts()).odd
    shown = [*dict.fromkeys((*odd, *finished))][:_SHOWN]
    counts = ", ".join(f"rank {rank}: {accuracy[rank].value:.4f}" for rank in shown)
    tellers = (f"another accuracy than most hosts is reported by {named_ranks(odd)}",) if odd else ()
    if wrong or differs or shares.lines:
        measured = "not the same sum on all ranks" if differs else "not the sum of what each rank counted"
        measured = f"{wrong[0].measurement.value:.0f} samples" if wrong else measured
        finding = Finding(
            severity="fail",
            check="training",
            what="the counts of test samples, summed over all ranks, are wrong",
            culprit=_NOBODY,
            measured=measured,
            limit=wrong[0].limit if wrong else None,
            evidence=(f"accuracy: {counts}", *tellers, *_tellers(wrong), *shares.lines),
            action="an all_reduce of two integers went wrong: look at the findings of collectives.",
        )
        findings.append(finding)
    # More runs loosen the limit: one rank that claims more of them would do that for all.
    runs_by_rank = {rank: runs[rank].value for rank in finished if rank in runs}
    usual, least = minority(runs_by_rank, evidence.hosts()).majority, min(runs_by_rank.values(), default=1)
    count = next((number for number in runs_by_rank.values() if number == usual), least)
    others = (rank for rank in runs_by_rank if runs_by_rank[rank] != count)
    absent = (*recipe.absent, *(f"runs of rank {rank} as of most hosts" for rank in others))
    rule = accuracy_rule(params, recipe.key, count)
    if not accuracy:
        return Ruling(findings=tuple(findings), judged=tuple(judged), absent=absent)
    lowest = min(shares.accuracy, *(measurement.value for measurement in accuracy.values()))
    if rule.value is None:
        finding = Finding(
            severity="warn",
            check="training",
            what=f"accuracy {lowest:.4f} was only measured: there is no reference for this recipe",
            culprit=_NOBODY,
            measured=f"{lowest:.4f}",
            action="set training.min_accuracy.",
        )
        unjudged = ("accuracy not judged",)
        return Ruling(findings=(*findings, finding), judged=tuple(judged), absent=absent, unjudged=unjudged)
    judged += [rule.judge(measurement) for measurement in accuracy.values()]
    if not rule.passes(lowest):
        finding = Finding(
            severity="fail",
            check="training",
            what=f"{recipe.workload}: accuracy {lowest:.4f} is below the required {rule.limit().value:.4f}",
            culprit=_NOBODY,
            measured=f"{lowest:.4f}",
            limit=rule.limit(),
            evidence=tellers,
            action="look at the findings of compute and collectives; if there are none, repeat with another seed.",
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=absent)


def _tellers(wrong: list[Judged]) -> tuple[str, ...]:
    """Return who says that a sum is wrong: a sum that is wrong is wrong on all ranks, unless one lies."""
    ranks = [entry.measurement.rank for entry in wrong if entry.measurement.rank is not None]
    return (f"a wrong number of samples is reported by {named_ranks(ranks)}",) if ranks else ()


def _judge_digests(evidence: Evidence) -> Ruling:
    """Compare digests of replicas: all apply the same reduced gradients, so ranks of one kind must have equal bits.

    All ranks report after the same numbers of runs. Only those that most hosts report are judged: another one may be
    made up.
    """
    by_runs: dict[int, dict[int, str]] = {}
    numbers: dict[int, set[int]] = {}
    for fact in evidence.facts:
        if fact.name == "digest" and fact.rank is not None:
            by_runs.setdefault(fact.value["runs"], {})[fact.rank] = fact.value["digest"]
            numbers.setdefault(fact.rank, set()).add(fact.value["runs"])
    votes = shared_votes(numbers, evidence.hosts())
    total = sum(votes.values())
    most = {number for number, of in by_runs.items() if 2 * sum(votes[rank] for rank in of) > total}
    others = sorted(rank for rank in numbers.keys() & set(evidence.asked) if numbers[rank] != most)
    absent = tuple(f"digests of rank {rank} of as many runs as those of most hosts" for rank in others)
    rulings = [ruling for number in sorted(most) if (ruling := _judge_replicas(evidence, by_runs[number])).findings]
    # Replicas that differ once differ from then on: the first failure is the nearest to the cause.
    failed = (ruling for ruling in rulings if any(finding.severity == "fail" for finding in ruling.findings))
    ruling = next(failed, rulings[0] if rulings else Ruling())
    return replace(ruling, absent=(*ruling.absent, *absent))


def _judge_replicas(evidence: Evidence, digests: Mapping[int, str]) -> Ruling:
    """Compare digests of the same runs, by rank."""
    kinds: dict[str, dict[int, str]] = {}
    hosts = evidence.hosts()
    for rank, value in digests.items():
        kinds.setdefault(evidence.ranks[rank].kind, {})[rank] = value
    findings = []
    for values in (values for _, values in sorted(kinds.items()) if len(set(values.values())) > 1):
        vote = minority(values, hosts)
        named = vote.odd or tuple(sorted(values))
        finding = Finding(
            severity="fail",
            check="training",
            what="the replicas are no longer equal: DDP left parameters that differ between ranks",
            # It may also have received another sum than the others: the last hop of a ring reaches one rank only.
            culprit=ranks_or_links(evidence, named)
            if vote.odd
            else Culprit(
                kind="none", name=f"one of {named_ranks(named)} or the links between them, not separable", ranks=named
            ),
            measured=f"{len(set(values.values()))} digests on {len(values)} ranks of one kind",
            evidence=tuple(f"rank {rank}: {as_name(values[rank][:16])}" for rank in sorted(values)[:_SHOWN]),
            action="run compute and memory on the named ranks for longer, and links.",
        )
        findings.append(finding)
    if not findings and len(set(digests.values())) > 1:
        finding = Finding(
            severity="warn",
            check="training",
            what="ranks of different kinds have different parameters: the cause is rounding or a fault, not separable",
            culprit=_NOBODY,
            measured=f"{len(set(digests.values()))} digests on {len(kinds)} kinds",
            evidence=tuple(
                f"{kind}: {as_name(next(iter(values.values()))[:16])}" for kind, values in sorted(kinds.items())
            ),
            action="train with equal devices and libraries where replicas must agree bit for bit.",
        )
        question = f"{finding.what}; only one host says that it is of another kind"
        return Ruling(findings=(finding,), absent=(question,) if _is_one_word(evidence, kinds) else ())
    return Ruling(findings=tuple(findings))


def _is_one_word(evidence: Evidence, kinds: Mapping[str, Mapping[int, str]]) -> bool:
    """Return whether ranks are of several kinds only by the word of one of several hosts, which may lie."""
    hosts = evidence.hosts()
    of_kinds = [{hosts[rank] for rank in values} for values in kinds.values()]
    every = set[str]().union(*of_kinds)
    return len(every) > 1 and any(sum(some != {host} for some in of_kinds) < 2 for host in every)
