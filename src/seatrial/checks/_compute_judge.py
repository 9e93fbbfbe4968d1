"""What the compute check makes of its figures. Pure: no torch, no device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from seatrial.checks._beside import beside
from seatrial.checks._speed_judge import Words, cpu_share, device_culprit, judge_speeds, slowest_first
from seatrial.checks.base import holds, in_words, last_told, sound
from seatrial.plan.specs import find
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import Rates, compare_rates

if TYPE_CHECKING:
    from seatrial.checks.compute import Params

__all__ = ["ATTAINABLE_FROM", "CONVOLUTION", "DATASHEET_SHARE", "judge", "suspects"]

ATTAINABLE_FROM = 8192
"""Attainable figures are the best of large matrices; smaller ones are not held against them."""
CONVOLUTION = "convolution"
"""Beside the dtypes, what elements are counted of."""
DATASHEET_SHARE = 0.4
"""Healthy devices were measured at 51 to 87 % of their datasheet."""


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """The ranks that missed a limit, and with them one typical rank of their model to compare with."""
    return slowest_first(rates for _, _, rates in _groups(evidence, params))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Any wrong element fails; a speed fails when it misses its limit again, alone and with the CPU to itself."""
    evidence = sound(evidence, {"wrong_values": lambda value: holds(value, dtype=str, count=int)})
    evidence = replace(evidence, figures=last_told(evidence.figures))
    parts = [_judge_values(evidence)]
    for device, dtype, rates in _groups(evidence, params):
        parts.append(_judge_datasheet(evidence, params, device, dtype, rates))
        parts += judge_speeds(rates, _words(evidence, dtype, rates.reference), cpu_share(evidence, dtype))
    told = {
        (figure.rank, figure.name, figure.variant)
        for figure in evidence.figures
        if figure.stage == "measure" and (figure.name != "tflops" or 0 < figure.value < math.inf)
    }
    absent = [] if evidence.asked else ["any rank that finished"]
    needed = [(name, dtype) for dtype in params.dtypes(evidence.device_type) for name in ("wrong_elements", "tflops")]
    needed.append(("wrong_elements", CONVOLUTION))
    absent += [
        f"{name} {variant} of rank {rank}"
        for rank in evidence.asked
        for name, variant in needed
        if (rank, name, variant) not in told
    ]
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=(*absent, *(name for part in parts for name in part.absent)),
        unjudged=tuple(what for part in parts for what in part.unjudged),
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
            culprit=device_culprit(evidence, rank),
            measured=f"{'' if rank in evidence.asked else 'at least '}{sum(counts.values()):.0f} wrong elements",
            limit=exact,
            evidence=tuple(
                in_words(fact.value) for fact in evidence.facts if fact.name == "wrong_values" and fact.rank == rank
            ),
            action="take the device out of service and have it tested; its results cannot be trusted.",
        )
        for rank, counts in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)


def _words(evidence: Evidence, dtype: str, reference: int | None) -> Words:
    return Words(
        check="compute",
        figure=f"tflops {dtype}",
        speed=f"the {dtype} speed",
        slow_in=f"slow in {dtype} matrix products",
        alone="look at its clocks, power limit, temperature and throttle reasons; then have the device tested.",
        together="look for what the ranks of a node share: power, cooling, memory bandwidth, CPU time.",
        who=lambda rank: f"rank {rank}",
        culprit=lambda rank: device_culprit(evidence, rank),
        beside=lambda rank: beside(evidence, rank, reference),
    )


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
            culprit=device_culprit(evidence, rank),
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
