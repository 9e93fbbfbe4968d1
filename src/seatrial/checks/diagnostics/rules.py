"""The rules of the diagnostics: which counters fail a device when they rise, which states do, and what only warns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seatrial.checks.check import Rule
from seatrial.checks.diagnostics.params import Params

FAIL_COUNTERS: Mapping[str, str] = {
    "ecc_uncorrected": "reset the GPU; replace it if it comes again",
    **dict.fromkeys(
        (
            "nvlink_replays",
            "nvlink_recoveries",
            "nvlink_failed_recoveries",
            "nvlink_malformed_packets",
            "nvlink_receive_errors",
            "nvlink_buffer_overruns",
            "nvlink_integrity_errors",
            "nvlink_effective_errors",
        ),
        "reset the GPU and check the NVLink and what it leads to",
    ),
}
"""Counter that fails a device when it rises during the trial -> what to do. NVLink: those for each of which the health
watch of DCGM fails a device (DCGM_FR_NVLINK_ERROR_CRITICAL: "a field that should always be 0")."""
WARN_COUNTERS = (
    "ecc_deferred",
    "rows_remapped_uncorrected",
    "pages_retired",
    "nvlink_symbol_errors",
    "nvlink_discards",
    "xgmi_errors",
)
"""Counters that are a warning when they rise. Corrected ECC errors and the rows remapped for them are none."""
CRC_ERRORS_PER_SECOND = 100.0
"""CRC errors of NVLinks from which a device fails; below there is a warning. DCGM_LIMIT_MAX_NVLINK_CRC_ERROR of DCGM's
dcgm_gpu_hardware_limits.h: by NVIDIA's driver only such rates matter."""
REPLAYS_PER_MINUTE = 8.0
"""PCIe replays of a step above which there is a warning: that of DCGM's health watch. A healthy bus replays too."""
FAIL_STATES: Mapping[str, str] = {
    "row_remap_failure": "replace the GPU",
    "row_remap_pending": "reset the GPU, so that the row is replaced",
    "channel_repair_pending": "reset the GPU, so that the channel is repaired",
    "tpc_repair_pending": "reset the GPU, so that the TPC is repaired",
    "sram_threshold": "replace the GPU",
    "bad_pages_threshold": "replace the GPU",
    "fabric_degraded_bandwidth": "check the NVLinks and the fabric manager",
    "fabric_route_unhealthy": "check the NVLinks and the fabric manager",
    "fabric_access_timeout": "check the NVLinks and the fabric manager",
    "fabric_configuration": "correct the configuration of the fabric manager or of the partition",
}
"""States that their vendor documents as broken -> what to do. ``BROKEN`` has the others, which are warnings."""
PROBLEM_ACTIONS: Mapping[str, str] = {
    "reset required": "reset the GPU",
    "a power cable is missing": "connect the power cables of the GPU",
    "an interrupt is lost": "restart the machine; look at its kernel log and its firmware settings",
}
"""``DeviceState.problem`` of a device that was not lost -> what to do."""
FAIL_ACTIONS: Mapping[str, str] = {
    "reset": "reset the GPU",
    "bus reset": "reset the bus of the GPU",
    "reboot": "restart the machine",
    "drain p2p": "stop what uses the GPU, then reset it",
    "drain and reset": "stop what uses the GPU, then reset it",
}
"""Action that the driver asks for -> what to do. To recover an IMEX domain is none of them: drivers ask for it on idle
racks that work (NVIDIA/aicr issue 2641)."""
THROTTLES = ("power_brake", "hw_thermal", "hw_slowdown", "sw_thermal", "thermal", "reliability", "board_limit")
"""Reasons for a lower clock that are a warning; the power limit is where every busy GPU is."""


def rules(params: Params) -> Iterable[Rule]:
    """Return the limits."""
    yield Rule(measurement="counters of errors", text="no uncorrectable error, no NVLink replay", origin="exact")
    yield Rule(measurement="state of a device", text="not broken", origin="NVIDIA and AMD document it as broken")
    yield Rule(measurement="XID, SXID", text="none that asks for more than a new program", origin="NVIDIA XID catalog")
    yield Rule(
        measurement="distance to the slowdown temperature",
        comparison="at least",
        value=params.warn_below_slowdown_k,
        unit="K",
        origin="the threshold of the device",
        severity="warn",
    )
    yield Rule(
        measurement="temperature",
        condition="no own threshold",
        comparison="at most",
        value=params.max_temperature_c,
        unit="degrees Celsius",
        origin="diagnostics.max_temperature_c",
        severity="warn",
    )
    yield Rule(
        measurement="utilization in training",
        comparison="at least",
        value=params.min_utilization_share,
        share_of="fleet median",
        origin="fleet",
        severity="warn",
    )
    yield Rule(
        measurement="PCIe replays",
        comparison="at most",
        value=REPLAYS_PER_MINUTE,
        unit="1/min",
        origin="DCGM's health watch",
        severity="warn",
    )
    yield Rule(
        measurement="NVLink CRC errors",
        comparison="below",
        value=CRC_ERRORS_PER_SECOND,
        unit="1/s",
        origin="DCGM's health watch",
    )
    yield Rule(
        measurement="hardware slowdown",
        comparison="below",
        value=params.min_throttled_share,
        share_of="the step",
        origin="diagnostics.min_throttled_share",
        severity="warn",
    )
