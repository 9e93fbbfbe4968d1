"""The limits of the memory check."""

from __future__ import annotations

from seatrial.checks.check import Rule, exact_rule, user_rule
from seatrial.checks.memory.params import Params
from seatrial.checks.shared.speed import BEYOND_KNOWN, CPU_SHARE, ceiling_rule, fleet_speed_rules

DATASHEET = Rule(
    measurement="copy_gbps",
    comparison="at least",
    value=0.5,
    share_of="memory peak",
    unit="GB/s",
    origin="device specs, datasheet (devices/specs.json)",
    condition="known device, device",
    severity="warn",
)
"""The rule for a device model with a datasheet. The memory bandwidths below which NVIDIA's DCGM fails a device
(nvvs/diag-skus.yaml.in) are 51 to 67 % of the datasheets of T4, L4, V100, A100, H100 and B200."""
DATASHEET_FROM_BYTES = 2**28
"""Least size of a copy to which the datasheet applies: smaller ones take hardly longer than starting them."""


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules for wrong words, tested memory and speeds."""
    tested = Rule(
        measurement="tested_bytes",
        text=f"{params.gpu_share:g} of what is free (GPU), {params.cpu_bytes} B a rank (CPU), else PASS is partial",
        origin="memory.gpu_share, memory.cpu_bytes",
    )
    users = (user_copy_rule(params, kind) for kind in ("device", "host"))
    return (
        exact_rule("wrong_words"),
        tested,
        *(rule for rule in users if rule.value is not None),
        DATASHEET,
        *fleet_speed_rules("copy_gbps", copies=True),
        CPU_SHARE,
        ceiling_rule("copy_gbps", f"at most {BEYOND_KNOWN} x the fastest memory known"),
    )


def user_copy_rule(params: Params, kind: str) -> Rule:
    """Return the user's limit for copies of a kind: ``device``, or any other between host and device."""
    if kind == "device":
        value, key, condition = params.min_copy_gbps, "memory.min_copy_gbps", kind
    else:
        value, key, condition = params.min_host_copy_gbps, "memory.min_host_copy_gbps", "host_to_device, device_to_host"
    return user_rule("copy_gbps", "at least", value, "GB/s", key=key, condition=condition)
