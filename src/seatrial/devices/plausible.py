"""Which answers of a driver can be true: a value outside is none, with its reason, and never a finding.

Drivers fill a value that they do not have with 0, or with all bits set, and still say success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from seatrial.devices.state import DeviceSample, DeviceState

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature_c": (-40, 150),
    "memory_temperature_c": (-40, 150),
    "slowdown_c": (50, 150),
    "margin_k": (-100, 200),
    "utilization_percent": (0, 100),
    "sm_mhz": (0, 20_000),
    "sm_max_mhz": (1, 20_000),
    "memory_mhz": (0, 50_000),
    "power_w": (0, 10_000),
    "power_limit_w": (1, 10_000),
    "power_default_limit_w": (1, 10_000),
    "memory_used_bytes": (0, 1 << 50),
    "memory_total_bytes": (1, 1 << 50),
    "pcie_generation": (1, 9),
    "pcie_generation_max": (1, 9),
    "pcie_width": (1, 32),
    "pcie_width_max": (1, 32),
}
"""Field -> lowest and highest value that a device can have: far beyond every product, so that none is hidden."""
NOT_READ = -1
"""In place of a count that a link did not say."""
_NO_COUNTS = (2**32 - 1, 2**31 - 1)
_MOST = 2**62


def is_count(number: float) -> bool:
    """Return whether a counter can stand there: 32 bits that are all set are a value that is not there."""
    return math.isfinite(number) and 0 <= number < _MOST and number not in _NO_COUNTS


def implausible(number: float) -> str:
    """Return the reason for a value that is left out."""
    return f"implausible: {number:.12g}"


def believable(state: DeviceState) -> DeviceState:
    """Return the state without what cannot be true; ``unavailable`` says what that was."""
    wrong = {name: implausible(value) for name, value in _outside(state).items()}
    wrong |= {name: implausible(value) for name, value in state.counters.items() if not is_count(value)}
    wrong |= {name: implausible(value) for name, value in state.throttled_ns.items() if not 0 <= value < _MOST}
    if any(not 0 <= value < _MOST for value in state.nvlink_fec_history):
        wrong["nvlink_fec_history"] = "implausible"
    links = {
        name: tuple(count if is_count(count) else NOT_READ for count in counts)
        for name, counts in state.link_counters.items()
    }
    if not wrong and links == state.link_counters:
        return state
    return replace(
        state,
        counters={name: value for name, value in state.counters.items() if name not in wrong},
        throttled_ns={name: value for name, value in state.throttled_ns.items() if name not in wrong},
        link_counters=links,
        nvlink_fec_history=() if "nvlink_fec_history" in wrong else state.nvlink_fec_history,
        unavailable={**state.unavailable, **wrong},
        **dict.fromkeys(wrong.keys() & _RANGES.keys()),  # type: ignore[arg-type]
    )


def believable_sample(sample: DeviceSample) -> DeviceSample:
    """Return the sample without what cannot be true."""
    return replace(sample, **dict.fromkeys(_outside(sample)))  # type: ignore[arg-type]


def _outside(values: DeviceState | DeviceSample) -> dict[str, float]:
    known = {name: getattr(values, name, None) for name in _RANGES}
    return {
        name: value
        for name, value in known.items()
        if value is not None and not _RANGES[name][0] <= value <= _RANGES[name][1]
    }
