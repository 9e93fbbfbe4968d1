"""The judge of the inventory check. Pure: no torch, no host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.checks.inventory.device_counts import shared_devices, unexpected_counts
from seatrial.checks.inventory.differences import Difference, merge_differences, unlike_others, unlike_requested
from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.properties import PROPERTIES
from seatrial.checks.shared.facts import drop_malformed, has_fields, unreadable
from seatrial.checks.shared.host_inventory import facts_named, fleet_of, machines
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling

_MOST_DEVICES = 128
"""A host has at most 16 devices, and each at most 8 parts that a rank sees as devices."""
_TEXT, _WHOLE = (str, type(None)), (int, type(None))
_TEXTS = ("visibility", "driver", "toolkit", "nccl", "torch", "python", "kernel", "cpu", "boot_id", "machine")
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "inventory": lambda value: (
        has_fields(
            value,
            device=str,
            device_id=_TEXT,
            index=_WHOLE,
            memory_bytes=_WHOLE,
            visible=_WHOLE,
            cores=_WHOLE,
            **dict.fromkeys(_TEXTS, _TEXT),
        )
        and 0 <= (value.get("visible") or 0) <= _MOST_DEVICES
    )
}


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Find devices that ranks share, missing devices, and values unlike the other nodes' or the requested ones."""
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    reports = facts_named(evidence, "inventory")
    absent = [*damaged, *(f"inventory of rank {rank}" for rank in evidence.asked if rank not in reports)]
    if not evidence.asked:
        absent.append("any rank that finished")
    fleet = fleet_of(machines(evidence, reports))
    findings = [
        *shared_devices(evidence, reports, fleet),
        *unexpected_counts(evidence, params, reports, fleet),
    ]
    differences: list[Difference] = []
    for about in PROPERTIES:
        if about.name == "cpu" and evidence.device_type == "cpu":
            continue  # there the device is the CPU
        values = {rank: value for rank, facts in reports.items() if (value := about.value(facts)) is not None}
        if getattr(params, about.key) is not None:
            findings += unlike_requested(evidence, params, about, values, fleet)
            absent += [f"{about.label} of rank {rank}" for rank in reports if rank not in values]
        elif about.name not in params.allow_mixed:
            differences += unlike_others(about, reports, values, fleet)
    findings += merge_differences(evidence, differences, fleet)
    is_single = len(evidence.ranks) == 1
    unjudged = ["inventory not compared (1 rank)"] if is_single else []
    if (
        evidence.device_type != "cpu"
        and not is_single
        and any(not facts.get("device_id") for facts in reports.values())
    ):
        unjudged.append("inventory without device IDs: this torch does not report them")
    return Ruling(findings=tuple(findings), absent=tuple(absent), unjudged=tuple(unjudged))
