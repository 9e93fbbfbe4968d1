"""The numbers of NVML's field values (NVML_FI_DEV_*), what each of them is here, and the call that reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PLAIN_FIELDS: Mapping[int, str] = {
    82: "memory_temperature_c",
    90: "nvlink_gbps",
    194: "slowdown_limit",
    230: "recovery_action",
}
COUNTER_FIELDS: Mapping[int, str] = {
    3: "ecc_corrected",
    4: "ecc_uncorrected",
    29: "pages_retired",
    30: "pages_retired",
    94: "pcie_replays",
    142: "rows_remapped_corrected",
    143: "rows_remapped_uncorrected",
    169: "pcie_recoveries",
}
"""Counters of a device. Of ECC the volatile ones count here: they count every error since the driver was loaded, and
the aggregate ones may be written late."""
BROKEN_FIELDS: Mapping[int, str] = {144: "row_remap_pending", 145: "row_remap_failure"}
THROTTLE_FIELDS: Mapping[int, str] = {
    74: "power_cap",
    75: "thermal",
    76: "sync_boost",
    77: "board_limit",
    78: "low_utilization",
    79: "reliability",
    269: "sw_thermal",
    270: "hw_thermal",
    271: "power_brake",
}
"""Counters of nanoseconds, exact without any sampling.

Not among them is 80 (NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS): it is no reason, but the time below the application
clocks for any of them. An idle H200 without such clocks counted all its time, and a busy one that of its power limit.
"""
LINK_COUNTER_FIELDS: Mapping[int, str] = {
    161: "nvlink_replays",
    162: "nvlink_recoveries",
    163: "nvlink_crc_errors",
    206: "nvlink_malformed_packets",
    207: "nvlink_buffer_overruns",
    208: "nvlink_receive_errors",
    211: "nvlink_integrity_errors",
    212: "nvlink_discards",
    214: "nvlink_failed_recoveries",
    215: "nvlink_recoveries",
    219: "nvlink_effective_errors",
    221: "nvlink_symbol_errors",
}
"""Counters of one NVLink: 161 to 163 up to its fourth generation, 206 to 221 from the fifth on."""
FEC_HISTORY_FIELDS = tuple(range(235, 251))
"""From NVLink 5 on: how often 0, 1, ... 15 symbols at once were wrong, and corrected."""
RECOVERY_ACTIONS: Mapping[int, str] = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain p2p",
    4: "drain and reset",
    5: "recover imex",
    6: "bus reset",
    7: "reboot",
}
_AT_ONCE = 128
"""Fields in one call."""
_HEALTH: Mapping[str, int] = {
    "fabric_degraded_bandwidth": 0,
    "fabric_route_recovery": 2,
    "fabric_route_unhealthy": 4,
    "fabric_access_timeout": 6,
}
"""Name of ``state.BROKEN`` -> its first bit in the health mask; of two bits, 1 means true and 2 means false."""
_CONFIGURATION_BIT = 8
_CONFIGURED = (0, 1)
"""Values of the four bits of the configuration: not supported, nothing is wrong."""
_WRONG_CONFIGURATIONS = range(2, 8)
"""Wrong system GUID, chassis serial number, partition, number of NVLinks, firmware, location; there may be newer ones.
"""


@dataclass(frozen=True, slots=True)
class FieldValue:
    """The answer for one field."""

    code: int
    number: float


class _Value(ctypes.Union):
    _fields_ = (
        ("double", ctypes.c_double),
        ("unsigned", ctypes.c_uint),
        ("unsigned_long", ctypes.c_ulong),
        ("unsigned_wide", ctypes.c_ulonglong),
        ("wide", ctypes.c_longlong),
        ("signed", ctypes.c_int),
        ("short", ctypes.c_ushort),
    )


class _Field(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency_us", ctypes.c_int64),
        ("type", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", _Value),
    )


_TYPES = ("double", "unsigned", "unsigned_long", "unsigned_wide", "wide", "signed", "short")
"""Member of the value by nvmlValueType_t."""


def read_fields(
    ask: Callable[[Any, int], int], wanted: Sequence[tuple[int, int]]
) -> tuple[int, tuple[FieldValue, ...]]:
    """Return the code of the first call that failed, and the values of (field, scope) pairs.

    ``ask``: calls nvmlDeviceGetFieldValues with an array and its length.
    """
    values = list[FieldValue]()
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        fields = (_Field * len(part))()
        for entry, (field, scope) in zip(fields, part, strict=True):
            entry.field, entry.scope = field, scope
        if code := ask(fields, len(part)):
            return code, ()
        values += [FieldValue(int(entry.code), _number(entry)) for entry in fields]
    return 0, tuple(values)


def _number(entry: Any) -> float:
    member = _TYPES[entry.type] if 0 <= entry.type < len(_TYPES) else "unsigned_wide"
    number: float = getattr(entry.value, member)
    return number


def fabric_problems(mask: int) -> tuple[str, ...]:
    """Return the names of ``state.BROKEN`` that a health mask of the NVLink fabric shows."""
    problems = [name for name, bit in _HEALTH.items() if mask >> bit & 0x3 == 1]
    configuration = mask >> _CONFIGURATION_BIT & 0xF
    if configuration not in _CONFIGURED:
        problems.append("fabric_configuration" if configuration in _WRONG_CONFIGURATIONS else "fabric_unknown")
    return tuple(problems)
