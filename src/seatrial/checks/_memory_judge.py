"""What the memory check makes of its figures. Pure: no torch, no device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from seatrial.checks._speed_judge import Words, cpu_share, device_culprit, judge_speeds, slowest_first
from seatrial.checks.base import last_told
from seatrial.plan.specs import find
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact, Figure
from seatrial.verdict.findings import Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import Rates, compare_rates

if TYPE_CHECKING:
    from seatrial.checks.memory import Params

__all__ = ["COPIES", "DATASHEET_FROM_BYTES", "DATASHEET_SHARE", "judge", "suspects"]

COPIES = {"cpu": ("device",), "cuda": ("device", "host_to_device", "device_to_host")}
"""Kinds of copies by type of device."""
DATASHEET_SHARE = 0.5
"""The memory bandwidths below which NVIDIA's DCGM fails a device (nvvs/diag-skus.yaml.in) are 51 to 67 % of the
datasheets of T4, L4, V100, A100, H100 and B200."""
DATASHEET_FROM_BYTES = 2**28
"""Smaller copies take hardly longer than starting them, and are not held against a datasheet."""
_MUCH_IN_USE = 0.2
"""Of a device's memory: what a context and the libraries take of a small device is less."""


def suspects(evidence: Evidence, params: Params) -> tuple[int, ...]:
    """The ranks that missed a limit, and with them one typical rank of their model to compare with."""
    return slowest_first(rates for _, _, rates in _groups(evidence, params))


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Any wrong word fails, and so does memory that is free and refused; speeds fail as those of ``compute`` do."""
    evidence = replace(evidence, figures=last_told(evidence.figures))
    parts = [_judge_words(evidence), _judge_taken(evidence)]
    for device, kind, rates in _groups(evidence, params):
        if kind == "device":
            parts.append(_judge_datasheet(evidence, params, device, rates))
        parts += judge_speeds(rates, _words(evidence, kind), cpu_share(evidence, kind))
    return Ruling(
        findings=tuple(finding for part in parts for finding in part.findings),
        judged=tuple(entry for part in parts for entry in part.judged),
        absent=(*_absent(evidence, params), *(name for part in parts for name in part.absent)),
        unjudged=tuple(what for part in parts for what in part.unjudged),
    )


def _absent(evidence: Evidence, params: Params) -> Iterator[str]:
    told = {
        (figure.rank, figure.name, figure.variant)
        for figure in evidence.figures
        if figure.stage == "measure" and (figure.name != "copy_gbps" or 0 < figure.value < math.inf)
    }
    tested = {figure.rank: figure.value for figure in evidence.figures if figure.name == "tested_bytes"}
    no_room = {(fact.rank, fact.value["copy"]): fact.value for fact in evidence.facts if fact.name == "no_room"}
    if not evidence.asked:
        yield "any rank that finished"
    for rank in evidence.asked:
        for kind in COPIES.get(evidence.device_type, ()):
            if (rank, "copy_gbps", kind) not in told:
                lack = no_room.get((rank, kind))
                why = "" if lack is None else f": {_size(lack['room_bytes'])} free of {_size(lack['needed_bytes'])}"
                yield f"copy_gbps {kind} of rank {rank}{why}"
        if rank not in tested:
            yield f"tested_bytes of rank {rank}"
        elif tested[rank] <= 0:
            yield f"any memory that rank {rank} could test"
        else:
            for pattern in params.patterns:
                if (rank, "wrong_words", pattern) not in told:
                    yield f"wrong_words {pattern} of rank {rank}"


def _judge_words(evidence: Evidence) -> Ruling:
    """By the figures, and by the facts: those are told at once, the figures perhaps never."""
    exact = Limit(value=0, unit="1", origin="exact")
    judged = tuple(
        Judged(figure=figure, limit=exact, passed=figure.value == 0)
        for figure in evidence.figures
        if figure.name == "wrong_words"
    )
    wrong: dict[int, dict[str, float]] = {}
    for entry in judged:
        if not entry.passed and entry.figure.rank is not None:
            wrong.setdefault(entry.figure.rank, {})[entry.figure.variant] = entry.figure.value
    facts = [fact for fact in evidence.facts if fact.name == "wrong_words" and fact.rank is not None]
    for fact in facts:
        counts = wrong.setdefault(fact.rank or 0, {})
        pattern = fact.value["pattern"]
        counts[pattern] = max(fact.value["words"], counts.get(pattern, 0))
    findings = tuple(
        Finding(
            severity="fail",
            check="memory",
            what=f"rank {rank} reads back other words than it wrote, by itself, in the patterns {', '.join(counts)}",
            culprit=device_culprit(evidence, rank),
            measured=f"{'' if rank in evidence.asked else 'at least '}{sum(counts.values()):.0f} wrong words",
            limit=exact,
            evidence=tuple(_place(fact) for fact in facts if fact.rank == rank),
            action=(
                "take the node out of service and have its memory tested; nothing that it computes can be trusted."
                if evidence.device_type == "cpu"
                else "take the device out of service and have its memory tested; its results cannot be trusted."
            ),
        )
        for rank, counts in sorted(wrong.items())
    )
    return Ruling(findings=findings, judged=judged)


def _place(fact: Fact) -> str:
    seen = fact.value
    expected, found = seen["expected"], seen["found"]
    second = (
        "and a second reading was right: the fault lies on the way, not in the cell"
        if found == expected
        else f"found {found}, so the bits {int(expected, 16) ^ int(found, 16):#x} differ"
    )
    return (
        f"pattern {seen['pattern']}, round {seen['round']}: {seen['words']} wrong words of 8 bytes, in bytes "
        f"{seen['first_byte']} to {seen['last_byte']} of the {seen['tested_bytes']} tested; "
        f"in the first, expected {expected}, {second}"
    )


def _judge_taken(evidence: Evidence) -> Ruling:
    """Memory that the driver calls free must be there to be had. Where less was tested than asked for, that is said."""
    refused = {
        (fact.rank, fact.value["what"]): fact.value  # the last round's
        for fact in evidence.facts
        # Twice, for what is free need not be free in one piece, and others may be taking some.
        if fact.name == "refused" and fact.rank is not None
        if fact.value["free_bytes"] >= 2 * fact.value["refused_bytes"]
    }
    findings = tuple(
        Finding(
            severity="fail",
            check="memory",
            what=(
                f"rank {rank} could not have {_size(seen['refused_bytes'])} of memory for {seen['what']}, "
                f"although {_size(seen['free_bytes'])} are said to be free"
            ),
            culprit=device_culprit(evidence, rank),
            measured=f"{_size(seen['taken_bytes'])} were to be had",
            evidence=(seen["reason"],),
            action=(
                "look at the limits of the process (ulimit -v, -l) and at vm.overcommit_memory on that node."
                if evidence.device_type == "cpu" or "host" in seen["what"]
                else "look at the kernel log for messages of its driver (XID), and reset the device."
            ),
        )
        for (rank, _), seen in sorted(refused.items())
    )
    partial = {fact.rank: what for fact in evidence.facts if fact.name == "tested" and (what := _little(fact))}
    told = list(partial.values())
    more = f" and of {len(told) - 1} other ranks" if len(told) > 1 else ""
    return Ruling(findings=findings, unjudged=(f"memory: {told[0]}{more}",) if told else ())


def _little(fact: Fact) -> str:
    """Why not all was tested that the plan means; empty when it was."""
    seen = fact.value
    tested, wanted = seen["tested_bytes"], seen["wanted_bytes"]
    if tested < wanted - wanted % 8:
        return f"only {_size(tested)} of {_size(wanted)} tested of rank {fact.rank}, as no more was to be had"
    in_use = seen["device_bytes"] - seen["free_bytes"]
    if seen["gpu"] and in_use > _MUCH_IN_USE * seen["device_bytes"]:
        return f"{_size(in_use)} in use by others not tested of rank {fact.rank}"
    return ""


def _words(evidence: Evidence, kind: str) -> Words:
    if kind == "device":
        copies = "copies inside its memory"
        alone = "look at its memory clock, ECC counters and remapped rows; then have the device tested."
        if evidence.device_type == "cpu":
            alone = "look for missing or slower memory modules and for the NUMA node that it runs on."
    else:
        copies = f"copies from {kind.replace('_', ' ')}"
        alone = "look at the width and speed of its PCIe link, and at the NUMA node that its process runs on."
    return Words(
        check="memory",
        figure=f"copy_gbps {kind}",
        speed=f"the speed of {copies}",
        slow_in=f"slow in {copies}",
        alone=alone,
        together="look for what the ranks of a node share: memory bandwidth, PCIe switches, power, cooling.",
        who=lambda rank: f"rank {rank}",
        culprit=lambda rank: device_culprit(evidence, rank),
    )


def _judge_datasheet(evidence: Evidence, params: Params, device: str, rates: Rates) -> Ruling:
    """Far below its datasheet is worth a look."""
    spec = find(device)
    if spec is None or params.copy_bytes(evidence.device_type, "device") < DATASHEET_FROM_BYTES:
        return Ruling()
    origin = f"datasheet of {spec.model} x {DATASHEET_SHARE}"
    limit = Limit(value=DATASHEET_SHARE * spec.memory_peak_gbps, unit="GB/s", origin=origin)
    findings = tuple(
        Finding(
            severity="warn",
            check="memory",
            what=f"rank {rank} is far below its datasheet in copies inside its memory",
            culprit=device_culprit(evidence, rank),
            measured=f"{figure.value:.3g} {figure.unit}",
            limit=limit,
            action="compare it with another device of its model; a datasheet alone fails nobody.",
        )
        for rank, figure in sorted(rates.first.items())
        if figure.value < limit.value
    )
    return Ruling(findings=findings)


def _groups(evidence: Evidence, params: Params) -> Iterator[tuple[str, str, Rates]]:
    """What may be compared: one kind of copy on one device model."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in evidence.figures:
        if figure.name == "copy_gbps" and figure.rank is not None and figure.rank in evidence.ranks:
            groups.setdefault((evidence.ranks[figure.rank].device, figure.variant), []).append(figure)
    for (device, kind), figures in sorted(groups.items()):
        key = "min_copy_gbps" if kind == "device" else "min_host_copy_gbps"
        value = getattr(params, key)
        own = () if value is None else (Limit(value=value, unit="GB/s", origin=f"user memory.{key}"),)
        yield device, kind, compare_rates(figures, own=own, device_type=evidence.device_type, copies=True)


def _size(size_bytes: float) -> str:
    """Bytes as a person reads them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
