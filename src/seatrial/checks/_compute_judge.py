"""What the compute check makes of its figures. Pure: no torch, no device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from seatrial.checks.base import STARVED, last_told
from seatrial.plan.specs import find
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import Outcome, Rates, compare_rates

if TYPE_CHECKING:
    from seatrial.checks.compute import Params

__all__ = ["ATTAINABLE_FROM", "DATASHEET_SHARE", "judge", "suspects"]

ATTAINABLE_FROM = 8192
"""Attainable figures are the best of large matrices; smaller ones are not held against them."""
DATASHEET_SHARE = 0.4
"""Healthy devices were measured at 51 to 87 % of their datasheet."""


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """The ranks that missed a limit, and with them one typical rank of their model to compare with.

    That rank comes first and then the worst, because only so many are measured again, and nobody without the first.
    """
    typical: dict[int, None] = {}
    reached: dict[int, float] = {}
    for _, _, rates in _groups(evidence, params):
        for rank in rates.suspects():
            outcome = rates.outcome(rank)
            if rank == rates.reference:
                typical[rank] = None
            elif outcome.limit is not None:
                share = outcome.figure.value / outcome.limit.value
                reached[rank] = min(share, reached.get(rank, share))
    slow = (rank for rank in sorted(reached, key=lambda rank: (reached[rank], rank)) if rank not in typical)
    return (*typical, *slow)


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Any wrong element fails; a speed fails when it misses its limit again, alone and with the CPU to itself."""
    evidence = replace(evidence, figures=last_told(evidence.figures))
    parts = [_judge_values(evidence)]
    for device, dtype, rates in _groups(evidence, params):
        parts.append(_judge_datasheet(evidence, params, device, dtype, rates))
        users = next((limit for limit in rates.own if limit.origin.startswith("user")), None)
        parts += [_judge_speed(evidence, dtype, rates.outcome(rank), users) for rank in sorted(rates.first)]
    told = {
        (figure.rank, figure.name, figure.variant)
        for figure in evidence.figures
        if figure.stage == "measure" and (figure.name != "tflops" or 0 < figure.value < math.inf)
    }
    absent = [] if evidence.asked else ["any rank that finished"]
    absent += [
        f"{name} {dtype} of rank {rank}"
        for rank in evidence.asked
        for dtype in params.dtypes(evidence.device_type)
        for name in ("wrong_elements", "tflops")
        if (rank, name, dtype) not in told
    ]
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=(*absent, *(name for part in parts for name in part.absent)),
    )


def _judge_values(evidence: Evidence) -> Ruling:
    """By the figures, and by the facts: those are told at once, the figures perhaps never."""
    exact = Limit(value=0, unit="1", origin="exact")
    judged = tuple(
        Judged(figure=figure, limit=exact, passed=figure.value == 0)
        for figure in evidence.figures
        if figure.name == "wrong_elements"
    )
    wrong: dict[int, dict[str, float]] = {}
    for entry in judged:
        if not entry.passed and entry.figure.rank is not None:
            wrong.setdefault(entry.figure.rank, {})[entry.figure.variant] = entry.figure.value
    for fact in evidence.facts:
        if fact.name == "wrong_values" and fact.rank is not None:
            counts = wrong.setdefault(fact.rank, {})
            counts[fact.value["dtype"]] = max(fact.value["count"], counts.get(fact.value["dtype"], 0))
    findings = tuple(
        Finding(
            severity="fail",
            check="compute",
            what=f"rank {rank} multiplies wrongly, by itself, in {', '.join(counts)}",
            culprit=_culprit(evidence, rank),
            measured=f"{'' if rank in evidence.asked else 'at least '}{sum(counts.values()):.0f} wrong elements",
            limit=exact,
            evidence=tuple(
                str(fact.value) for fact in evidence.facts if fact.name == "wrong_values" and fact.rank == rank
            ),
            action="take the device out of service and have it tested; its results cannot be trusted.",
        )
        for rank, counts in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)


def _judge_speed(evidence: Evidence, dtype: str, outcome: Outcome, users: Limit | None) -> Ruling:
    """``users``: the user's own limit, which is not the tightest one perhaps, and has to be decided all the same."""
    figure, limit, rank = outcome.figure, outcome.limit, outcome.figure.rank
    if limit is None or rank is None:
        return Ruling()
    if outcome.state == "unrepeated":
        return Ruling(absent=(f"tflops {dtype} of rank {rank} measured again, alone; {outcome.evidence[0]}",))
    entry = Judged(figure=figure, limit=limit, passed=outcome.state != "slow")
    if outcome.state == "passed":
        return Ruling(judged=(entry,))
    own_share = _cpu_share(evidence, rank, dtype)
    share = min([own_share, *(_cpu_share(evidence, other, dtype) for other in outcome.alone)])
    starved = outcome.state == "slow" and share < STARVED
    lines = outcome.evidence
    absent: tuple[str, ...] = ()
    if starved and users is not None and figure.value < users.value:
        if own_share < STARVED:
            absent = (f"tflops {dtype} of rank {rank}: its CPU was held by others, cpu_share {own_share:.2f}",)
        else:
            # The user's limit asks nothing of the rank beside it, which is the one that was starved.
            starved, limit = False, users
            entry = Judged(figure=figure, limit=users, passed=False)
    if starved:
        what = f"the {dtype} speed of rank {rank} could not be judged: other processes held the CPU"
        action = "end what else runs on the node and repeat the trial."
        lines += (f"alone, it got {share * 100:.0f} % of the CPU time that its threads could use",)
    elif outcome.state == "slow":
        what = f"rank {rank} is slow in {dtype} matrix products, alone too"
        action = "look at its clocks, power limit, temperature and throttle reasons; then have the device tested."
    else:
        what = f"rank {rank} was slow in {dtype} matrix products while all ranks worked, but not alone"
        action = "look for what the ranks of a node share: power, cooling, memory bandwidth, CPU time."
    finding = Finding(
        severity="fail" if outcome.state == "slow" and not starved else "warn",
        check="compute",
        what=what,
        culprit=_culprit(evidence, rank),
        measured=f"{figure.value:.3g} {figure.unit}",
        limit=limit,
        evidence=lines,
        action=action,
    )
    return Ruling(findings=(finding,), judged=() if starved else (entry,), absent=absent)


def _judge_datasheet(evidence: Evidence, params: Params, device: str, dtype: str, rates: Rates) -> Ruling:
    """Far below its datasheet is worth a look, where no attainable figure is known."""
    spec = find(device)
    if spec is None or spec.attainable_tflops or dtype not in spec.peak_tflops:
        return Ruling()
    limit = Limit(
        value=DATASHEET_SHARE * spec.peak_tflops[dtype],
        unit="TFLOP/s",
        origin=f"datasheet of {spec.model} x {DATASHEET_SHARE}",
    )
    findings = tuple(
        Finding(
            severity="warn",
            check="compute",
            what=f"rank {rank} is far below its datasheet in {dtype} matrix products",
            culprit=_culprit(evidence, rank),
            measured=f"{figure.value:.3g} {figure.unit}",
            limit=limit,
            action="compare it with another device of its model; a datasheet alone fails nobody.",
        )
        for rank, figure in sorted(rates.first.items())
        if figure.value < limit.value and params.size(evidence.device_type) >= ATTAINABLE_FROM
    )
    return Ruling(findings=findings)


def _groups(evidence: Evidence, params: Params) -> Iterator[tuple[str, str, Rates]]:
    """What may be compared: the speeds of one device model in one dtype."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in evidence.figures:
        if figure.name == "tflops" and figure.rank is not None and figure.rank in evidence.ranks:
            groups.setdefault((evidence.ranks[figure.rank].device, figure.variant), []).append(figure)
    for (device, dtype), figures in sorted(groups.items()):
        own = _own_limits(params, evidence.device_type, device, dtype)
        yield device, dtype, compare_rates(figures, own=own, device_type=evidence.device_type)


def _own_limits(params: Params, device_type: str, device: str, dtype: str) -> tuple[Limit, ...]:
    limits = []
    if params.min_tflops is not None and dtype == params.dtypes(device_type)[0]:
        limits.append(Limit(value=params.min_tflops, unit="TFLOP/s", origin="user compute.min_tflops"))
    spec = find(device)
    if spec is not None and dtype in spec.attainable_tflops and params.size(device_type) >= ATTAINABLE_FROM:
        attainable = spec.attainable_tflops[dtype]
        origin = f"attainable {attainable:g} TFLOP/s of {spec.model} x {params.fraction:g}, {spec.source}"
        limits.append(Limit(value=attainable * params.fraction, unit="TFLOP/s", origin=origin))
    return tuple(limits)


def _cpu_share(evidence: Evidence, rank: int, dtype: str) -> float:
    for figure in evidence.figures:
        if (figure.name, figure.stage, figure.rank, figure.variant) == ("cpu_share", "repeat", rank, dtype):
            return figure.value
    return 1.0


def _culprit(evidence: Evidence, rank: int) -> Culprit:
    seen = evidence.ranks[rank]
    return Culprit(kind="device", name=seen.label(), ranks=(rank,), nodes=(seen.node,))
