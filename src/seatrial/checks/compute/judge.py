"""The judge of the compute check. Pure: no torch, no device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from seatrial.checks.compute.params import CONVOLUTION, EXACT_UP_TO, Params
from seatrial.checks.compute.rules import ATTAINABLE_FROM, DATASHEET, attainable_rule, ceiling, user_speed_rule
from seatrial.checks.shared.culprits import device_culprit
from seatrial.checks.shared.exact import ExactFields, ExactWords, is_wrong, judge_exact
from seatrial.checks.shared.facts import describe, drop_malformed, has_fields, latest, unreadable
from seatrial.checks.shared.host_activity import activity_lines
from seatrial.checks.shared.speed import SpeedWords, cpu_shares, hosts_of, judge_speeds, slowest_first
from seatrial.devices.specs import find
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Finding, Limit, Ruling
from seatrial.evidence.fleets import compare_rates
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.rates import FleetRates
from seatrial.util.text import and_list

_WRONG = ExactFields(variants=(*EXACT_UP_TO, CONVOLUTION), variant_key="dtype", count_key="count")
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "wrong_values": lambda value: isinstance(value, dict) and is_wrong(value, _WRONG),
}


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """Return the ranks that missed a limit, and with them one typical rank of their model to compare with."""
    return slowest_first(rates for _, _, rates in _groups(evidence, params))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail any wrong element, and any speed that misses its limit again, alone and with the CPU to itself."""
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    evidence = replace(evidence, measurements=latest(evidence.measurements))
    parts = [
        Ruling(absent=(*damaged, *_absent(evidence, params))),
        judge_exact(evidence, "wrong_elements", "wrong_values", _WRONG, _EXACT_WORDS),
    ]
    shares, named, activity = cpu_shares(evidence), short_names(evidence.ranks), activity_lines(evidence)
    for device, dtype, rates in _groups(evidence, params):
        words = replace(_speed_words(evidence, dtype, named), activity=partial(activity, other=rates.reference))
        # The user's limit is for the first dtype alone.
        if not rates.limits and dtype == params.dtypes(evidence.device_type)[0]:
            parts.append(Ruling(unlimited=("compute.min_tflops",)))
        parts.append(_judge_datasheet(evidence, params, device, dtype, rates))
        parts += judge_speeds(rates, words, shares[dtype])
    return Ruling.merge(parts)


def _absent(evidence: Evidence, params: Params) -> Iterator[str]:
    measured = {
        (measurement.rank, measurement.name, measurement.variant)
        for measurement in evidence.measurements
        if measurement.stage == "measure" and (measurement.name != "tflops" or 0 < measurement.value < math.inf)
    }
    if not evidence.asked:
        yield "any rank that finished"
    needed = [(name, dtype) for dtype in params.dtypes(evidence.device_type) for name in ("wrong_elements", "tflops")]
    needed.append(("wrong_elements", CONVOLUTION))
    for rank in evidence.asked:
        for name, variant in needed:
            if (rank, name, variant) not in measured:
                yield f"{name} {variant} of rank {rank}"


def _wrong_results(rank: int, variants: Sequence[str]) -> str:
    dtypes = [variant for variant in variants if variant != CONVOLUTION]
    operations = [*([f"{and_list(dtypes)} matrix products"] if dtypes else []), *({CONVOLUTION} & {*variants})]
    return f"rank {rank} returns wrong results of {and_list(operations)} even when it runs alone"


def _wrong_line(fact: Fact) -> str:
    """Return ``bf16: 1 wrong in round 0; element [5, 7] is 3, not 4``."""
    value = fact.value
    if not has_fields(value, round=int, first=list):
        return describe(value)
    places = "".join(f"; element {place}" for place in value["first"])
    return f"{value['dtype']}: {value['count']} wrong in round {value['round']}{places}"


_EXACT_WORDS = ExactWords(
    check="compute",
    elements="wrong elements",
    what=_wrong_results,
    line=_wrong_line,
    action="take the device out of service and have it tested; its results cannot be trusted.",
)


def _speed_words(evidence: Evidence, dtype: str, named: Callable[[int], str]) -> SpeedWords:
    advice = (
        "look at its clocks, power limit and temperature"
        if evidence.device_type == "cpu"
        else "see why it is slow (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE or amd-smi metric)"
    )
    return SpeedWords(
        check="compute",
        measurement=f"tflops {dtype}",
        speed=f"the {dtype} speed",
        slow_in=f"slow in {dtype} matrix products",
        action_alone=f"{advice}; then have the device tested.",
        action_together="look at what the ranks of a node share: power, cooling, memory bandwidth, CPU time.",
        subject=lambda rank: f"rank {rank}",
        other=named,
        culprit=lambda rank: device_culprit(evidence, rank),
    )


def _judge_datasheet(evidence: Evidence, params: Params, device: str, dtype: str, rates: FleetRates) -> Ruling:
    """Warn of a speed far below the datasheet, where no attainable speed is known."""
    spec = find(device)
    if spec is None or spec.attainable_tflops or dtype not in spec.peak_tflops:
        return Ruling()
    rule = DATASHEET.scaled(spec.peak_tflops[dtype], origin=f"datasheet of {spec.model} x {DATASHEET.value}")
    findings = tuple(
        Finding(
            severity=rule.severity,
            check="compute",
            what=f"rank {rank} is far below its datasheet in {dtype} matrix products",
            culprit=device_culprit(evidence, rank),
            measured=f"{measurement.value:.3g} {measurement.unit}",
            limit=rule.limit(),
            action="compare it with another device of its model; a datasheet alone fails no device.",
        )
        for rank in rates.ranks
        if not rule.passes((measurement := rates.first[rank]).value)
        and params.size(evidence.device_type) >= ATTAINABLE_FROM
    )
    return Ruling(findings=findings)


def _groups(evidence: Evidence, params: Params) -> Iterator[tuple[str, str, FleetRates]]:
    """Yield the speeds that can be compared, those of one device model in one dtype: ``(device, dtype, rates)``."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    # A rank may report any number of others.
    dtypes = params.dtypes(evidence.device_type)
    for measurement in evidence.measurements:
        is_speed = measurement.name == "tflops" and measurement.variant in dtypes
        if is_speed and measurement.rank is not None and measurement.rank in evidence.ranks:
            groups.setdefault((evidence.ranks[measurement.rank].device, measurement.variant), []).append(measurement)
    hosts, nodes = evidence.hosts(), evidence.node_numbers()
    all_hosts = {hosts[measurement.rank or 0] for group in groups.values() for measurement in group}
    for (device, dtype), measurements in sorted(groups.items()):
        own = tuple(_own_limits(params, evidence.device_type, device, dtype))
        spec = find(device)
        for rates in compare_rates(
            measurements,
            limits=own,
            device_type=evidence.device_type,
            ceiling=ceiling(device),
            best_known=math.inf if spec is None else spec.attainable_tflops.get(dtype, math.inf),
            **hosts_of((entry.rank or 0 for entry in measurements), hosts, all_hosts),
            nodes=nodes,
            share_cores=evidence.device_type == "cpu",
        ):
            yield device, dtype, rates


def _own_limits(params: Params, device_type: str, device: str, dtype: str) -> Iterator[Limit]:
    """Yield the limits besides the one of the fleet."""
    if params.min_tflops is not None and dtype == params.dtypes(device_type)[0]:
        yield user_speed_rule(params).limit()
    spec = find(device)
    if spec is not None and dtype in spec.attainable_tflops and params.size(device_type) >= ATTAINABLE_FROM:
        attainable = spec.attainable_tflops[dtype]
        origin = f"{params.fraction:g} x {attainable:g} TFLOP/s, attainable by {spec.model} ({spec.source})"
        yield attainable_rule(params).scaled(attainable, origin=origin).limit()
