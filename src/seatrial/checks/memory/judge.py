"""The judge of the memory check. Pure: no torch, no device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.checks.memory.params import COPIES, Params
from seatrial.checks.memory.patterns import PATTERNS
from seatrial.checks.memory.rules import DATASHEET, DATASHEET_FROM_BYTES, user_copy_rule
from seatrial.checks.shared.culprits import device_culprit
from seatrial.checks.shared.exact import ExactFields, ExactWords, is_wrong, judge_exact
from seatrial.checks.shared.facts import drop_malformed, has_fields, latest, unreadable
from seatrial.checks.shared.speed import SpeedWords, copy_ceiling, cpu_shares, hosts_of, judge_speeds, slowest_first
from seatrial.devices.specs import find
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Finding, Ruling
from seatrial.evidence.fleets import compare_rates
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.rates import FleetRates

_MUCH_IN_USE = 0.2
"""Share of a device's memory: a context and the libraries take less, even of a small device."""
_WRONG = ExactFields(variants=PATTERNS, variant_key="pattern", count_key="words")
_PLACES = {"round": int, "words": int, "first_byte": int, "last_byte": int, "tested_bytes": int}
_REFUSED = ("patterns", *(f"copies ({kind})" for kind in COPIES["cuda"]))
"""Uses of memory that a rank may report as refused."""
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "wrong_words": lambda value: (
        has_fields(value, **_PLACES)
        and is_wrong(value, _WRONG)
        and _is_word(value.get("expected"))
        and _is_word(value.get("found"))
    ),
    "refused": lambda value: (
        has_fields(value, what=str, refused_bytes=int, taken_bytes=int, free_bytes=int, reason=str)
        and value["what"] in _REFUSED
    ),
    "tested": lambda value: has_fields(
        value, wanted_bytes=int, tested_bytes=int, free_bytes=int, device_bytes=int, gpu=bool
    ),
    "no_room": lambda value: has_fields(value, copy=str, needed_bytes=int, room_bytes=int),
}


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("0x[0-9a-f]{1,16}", value) is not None


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """Return the ranks that missed a limit, and with them one typical rank of their model to compare with."""
    return slowest_first(rates for _, _, rates in _groups(drop_malformed(evidence, _FORMS), params))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail any wrong word, and memory that is free and refused; judge speeds as ``compute`` does."""
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    evidence = replace(evidence, measurements=latest(evidence.measurements))
    parts = [
        Ruling(absent=(*damaged, *_absent(evidence, params))),
        judge_exact(evidence, "wrong_words", "wrong_words", _WRONG, _exact_words(evidence)),
        _judge_refused(evidence),
        _judge_tested(evidence),
    ]
    shares, named = cpu_shares(evidence), short_names(evidence.ranks)
    for device, kind, rates in _groups(evidence, params):
        if not rates.limits:
            key = "memory.min_copy_gbps" if kind == "device" else "memory.min_host_copy_gbps"
            parts.append(Ruling(unlimited=(key,)))
        if kind == "device":
            parts.append(_judge_datasheet(evidence, params, device, rates))
        parts += judge_speeds(rates, _speed_words(evidence, kind, named), shares[kind])
    return Ruling.merge(parts)


def _absent(evidence: Evidence, params: Params) -> Iterator[str]:
    measured = {
        (measurement.rank, measurement.name, measurement.variant)
        for measurement in evidence.measurements
        if measurement.stage == "measure" and (measurement.name != "copy_gbps" or 0 < measurement.value < math.inf)
    }
    tested = {
        measurement.rank: measurement.value
        for measurement in evidence.measurements
        if measurement.name == "tested_bytes"
    }
    no_room = {(fact.rank, fact.value["copy"]): fact.value for fact in evidence.facts if fact.name == "no_room"}
    if not evidence.asked:
        yield "any rank that finished"
    for rank in evidence.asked:
        for kind in COPIES.get(evidence.device_type, ()):
            if (rank, "copy_gbps", kind) not in measured:
                lack = no_room.get((rank, kind))
                why = "" if lack is None else f": {_size(lack['room_bytes'])} free of {_size(lack['needed_bytes'])}"
                yield f"copy_gbps {kind} of rank {rank}{why}"
        if rank not in tested:
            yield f"tested_bytes of rank {rank}"
        elif tested[rank] <= 0:
            yield f"any memory that rank {rank} could test"
        else:
            for pattern in params.patterns:
                if (rank, "wrong_words", pattern) not in measured:
                    yield f"wrong_words {pattern} of rank {rank}"


def _exact_words(evidence: Evidence) -> ExactWords:
    return ExactWords(
        check="memory",
        elements="wrong words",
        what=lambda rank, patterns: (
            f"rank {rank} reads back data different from what it wrote (memory corruption; patterns "
            f"{', '.join(patterns)})"
        ),
        line=_wrong_words_line,
        action=(
            "take the node out of service and have its memory tested; none of its results can be trusted."
            if evidence.device_type == "cpu"
            else "take the device out of service, its results cannot be trusted; look at its errors (nvidia-smi -q -d"
            " ECC,ROW_REMAPPER or amd-smi metric --ecc) and have its memory tested."
        ),
    )


def _wrong_words_line(fact: Fact) -> str:
    wrong = fact.value
    expected, found = wrong["expected"], wrong["found"]
    second = (
        "and a second reading was right: the fault lies on the way, not in the cell"
        if found == expected
        else f"found {found}, so the bits {int(expected, 16) ^ int(found, 16):#x} differ"
    )
    return (
        f"pattern {wrong['pattern']}, round {wrong['round']}: {wrong['words']} wrong words of 8 bytes, in bytes "
        f"{wrong['first_byte']} to {wrong['last_byte']} of the {wrong['tested_bytes']} tested; "
        f"in the first, expected {expected}, {second}"
    )


def _judge_refused(evidence: Evidence) -> Ruling:
    """Fail a rank that cannot allocate memory that its driver reports as free."""
    refused = {
        (fact.rank, fact.value["what"]): fact.value  # the last round's
        for fact in evidence.facts
        # Twice as much: free memory need not be free in one piece, and other processes may be taking some.
        if fact.name == "refused" and fact.rank is not None
        if fact.value["free_bytes"] >= 2 * fact.value["refused_bytes"]
    }
    findings = tuple(
        Finding(
            severity="fail",
            check="memory",
            what=(
                f"rank {rank} could allocate only {_size(refusal['taken_bytes'])} for {refusal['what']}: "
                f"{_size(refusal['refused_bytes'])} more were refused although {_size(refusal['free_bytes'])} are "
                "reported free"
            ),
            culprit=device_culprit(evidence, rank),
            measured=f"{_size(refusal['taken_bytes'])} allocated",
            evidence=(refusal["reason"],),
            action=(
                "look at the limits of the process (ulimit -v, -l) and at vm.overcommit_memory on that node."
                if evidence.device_type == "cpu" or "host" in refusal["what"]
                else "look at the kernel log for messages of its driver (XID), and reset the device."
            ),
        )
        for (rank, _), refusal in sorted(refused.items())
    )
    return Ruling(findings=findings)


def _judge_tested(evidence: Evidence) -> Ruling:
    """Make a PASS partial where a rank tested less memory than the plan asks for."""
    partial = {fact.rank: why for fact in evidence.facts if fact.name == "tested" and (why := _why_partial(fact))}
    reasons = list(partial.values())
    more = f" and of {len(reasons) - 1} other ranks" if len(reasons) > 1 else ""
    return Ruling(unjudged=(f"memory: {reasons[0]}{more}",) if reasons else ())


def _why_partial(fact: Fact) -> str:
    """Return why a rank tested less than the plan asks for; empty when it tested all of it."""
    tested, wanted = fact.value["tested_bytes"], fact.value["wanted_bytes"]
    if tested < wanted - wanted % 8:
        return f"only {_size(tested)} of {_size(wanted)} tested of rank {fact.rank}, as no more was available"
    in_use = fact.value["device_bytes"] - fact.value["free_bytes"]
    if fact.value["gpu"] and in_use > _MUCH_IN_USE * fact.value["device_bytes"]:
        return f"{_size(in_use)} in use by others not tested of rank {fact.rank}"
    return ""


def _speed_words(evidence: Evidence, kind: str, named: Callable[[int], str]) -> SpeedWords:
    if kind == "device":
        copies = "copies inside its memory"
        action_alone = "look at its memory clock, ECC counters and remapped rows; then have the device tested."
        if evidence.device_type == "cpu":
            action_alone = "look for missing or slower memory modules and for the NUMA node that it runs on."
    else:
        copies = f"copies from {kind.replace('_', ' ')}"
        action_alone = "look at the width and speed of its PCIe link, and at the NUMA node that its process runs on."
    return SpeedWords(
        check="memory",
        measurement=f"copy_gbps {kind}",
        speed=f"the speed of {copies}",
        slow_in=f"slow in {copies}",
        action_alone=action_alone,
        action_together="look at what the ranks of a node share: memory bandwidth, PCIe switches, power, cooling.",
        subject=lambda rank: f"rank {rank}",
        other=named,
        culprit=lambda rank: device_culprit(evidence, rank),
    )


def _judge_datasheet(evidence: Evidence, params: Params, device: str, rates: FleetRates) -> Ruling:
    """Warn of a speed far below the datasheet."""
    spec = find(device)
    if spec is None or params.copy_bytes(evidence.device_type, "device") < DATASHEET_FROM_BYTES:
        return Ruling()
    rule = DATASHEET.scaled(spec.memory_peak_gbps, origin=f"datasheet of {spec.model} x {DATASHEET.value}")
    findings = tuple(
        Finding(
            severity=rule.severity,
            check="memory",
            what=f"rank {rank} is far below its datasheet in copies inside its memory",
            culprit=device_culprit(evidence, rank),
            measured=f"{measurement.value:.3g} {measurement.unit}",
            limit=rule.limit(),
            action="compare it with another device of its model; a datasheet alone fails no device.",
        )
        for rank in rates.ranks
        if not rule.passes((measurement := rates.first[rank]).value)
    )
    return Ruling(findings=findings)


def _groups(evidence: Evidence, params: Params) -> Iterator[tuple[str, str, FleetRates]]:
    """Yield the speeds that can be compared, one kind of copy on one device model: ``(device, kind, rates)``."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    # A rank may report any number of others.
    kinds = COPIES.get(evidence.device_type, ())
    for measurement in evidence.measurements:
        is_speed = measurement.name == "copy_gbps" and measurement.variant in kinds
        if is_speed and measurement.rank is not None and measurement.rank in evidence.ranks:
            groups.setdefault((evidence.ranks[measurement.rank].device, measurement.variant), []).append(measurement)
    hosts, nodes = evidence.hosts(), evidence.node_numbers()
    all_hosts = {hosts[measurement.rank or 0] for group in groups.values() for measurement in group}
    for (device, kind), measurements in sorted(groups.items()):
        rule = user_copy_rule(params, kind)
        own = () if rule.value is None else (rule.limit(),)
        for rates in compare_rates(
            measurements,
            limits=own,
            device_type=evidence.device_type,
            copies=True,
            ceiling=copy_ceiling(),
            **hosts_of((entry.rank or 0 for entry in measurements), hosts, all_hosts),
            nodes=nodes,
            share_cores=evidence.device_type == "cpu",
        ):
            yield device, kind, rates


def _size(size_bytes: float) -> str:
    """Return a number of bytes as a person reads it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
