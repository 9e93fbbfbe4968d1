"""The limits of the compute check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from seatrial.checks.check import Rule, exact_rule, user_rule
from seatrial.checks.compute.params import EXACT_UP_TO, Params
from seatrial.checks.shared.speed import BEYOND_KNOWN, CPU_SHARE, ceiling_rule, fleet_speed_rules
from seatrial.devices.specs import find, highest_peak, specs
from seatrial.evidence.findings import Limit

ATTAINABLE_FROM = 8192
"""Least size of matrices with which a GPU reaches its attainable speed; no device limit applies to smaller ones."""
DATASHEET = Rule(
    measurement="tflops",
    comparison="at least",
    value=0.4,
    share_of="peak",
    unit="TFLOP/s",
    origin="device specs, datasheet (devices/specs.json)",
    severity="warn",
)
"""The rule for a device model with a datasheet and no measurement. Healthy devices reached 51 to 87 % of theirs."""
_ABOVE_PEAK = 1.25
"""Datasheets are for a clock that devices may exceed: an H100 SXM runs at up to 1,980 MHz, its datasheet at 1,830."""


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules for wrong elements and speeds."""
    users = () if params.min_tflops is None else (user_speed_rule(params),)
    return (
        exact_rule("wrong_elements"),
        *users,
        *_device_rules(params),
        *fleet_speed_rules("tflops"),
        CPU_SHARE,
        ceiling_rule("tflops", f"at most {_ABOVE_PEAK:g} x peak, {BEYOND_KNOWN} x the highest of an unknown device"),
    )


def ceiling(device: str) -> Limit:
    """Return the speed that a device reaches in no dtype: fp32 may be computed as TF32, which is slower than bf16."""
    spec = find(device)
    if spec is None:
        peak = max(highest_peak(dtype) for dtype in EXACT_UP_TO)
        origin = f"{BEYOND_KNOWN} x the fastest device known, devices/specs.json"
        return Limit(value=BEYOND_KNOWN * peak, unit="TFLOP/s", origin=origin)
    peak = max(spec.peak_tflops.values())
    return Limit(value=_ABOVE_PEAK * peak, unit="TFLOP/s", origin=f"datasheet of {spec.model} x {_ABOVE_PEAK:g}")


def user_speed_rule(params: Params) -> Rule:
    """Return the user's limit for the first dtype of each type of device."""
    return user_rule(
        "tflops",
        "at least",
        params.min_tflops,
        "TFLOP/s",
        key="compute.min_tflops",
        condition=f"{params.cpu_dtypes[0]} (CPU), {params.gpu_dtypes[0]} (GPU)",
    )


def attainable_rule(params: Params) -> Rule:
    """Return the rule for a device model whose attainable speed was measured on a healthy device."""
    return Rule(
        measurement="tflops",
        comparison="at least",
        value=params.fraction,
        share_of="attainable",
        unit="TFLOP/s",
        origin="device specs, measured (devices/specs.json)",
    )


def _device_rules(params: Params) -> Iterator[Rule]:
    if params.gpu_size < ATTAINABLE_FROM:
        return
    measured = {dtype for spec in specs() for dtype in spec.attainable_tflops}
    on_datasheets = {dtype for spec in specs() if not spec.attainable_tflops for dtype in spec.peak_tflops}
    for device, known_dtypes, rule in (
        ("known device", measured, attainable_rule(params)),
        ("other known device", on_datasheets, DATASHEET),
    ):
        dtypes = " ".join(dtype for dtype in params.gpu_dtypes if dtype in known_dtypes)
        if dtypes:
            yield replace(rule, condition=f"{device}, {dtypes}")
