"""AMD's devices through ``amd-smi ... --json``.

Old versions print a bare list of devices, new ones (ROCm 7) an object with ``gpu_data``; each value may be ``"N/A"``,
or an object of value and unit. The second partition of a divided device has fewer values (ROCm/amdsmi#134).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.devices import amd_sysfs
from seatrial.devices.amd_values import ABSENT, PCIE_GENERATIONS, at, document, missing, number, size_bytes, text, whole
from seatrial.devices.readers import Reader, UnreadableError, short_bus
from seatrial.devices.state import DeviceState
from seatrial.environment.library_settings import library_settings
from seatrial.util.tool import find_tool, run_tool

_THROTTLE: Mapping[str, str] = {
    "ppt": "power_cap",
    "prochot": "hw_thermal",
    "socket_thermal": "hw_thermal",
    "vr_thermal": "hw_thermal",
    "hbm_thermal": "hw_thermal",
    "low_utilization": "low_utilization",
}
"""Beginning of ``..._violation_status`` and ``..._accumulated`` -> name of ``THROTTLE``."""
_NO_UNIT = "amd-smi counts it in ticks without a unit"
_XGMI_ERRORS: Mapping[str, int] = {"NO_ERRORS": 0, "ERROR": 1, "MULTIPLE_ERRORS": 2}
"""End of amdsmi_xgmi_status_t -> the least number of errors; a number is that of the enumeration, which is the same."""


def open_reader(sysfs: Path = Path("/sys")) -> Reader:
    """Return the reader, which takes its samples from the files of the driver. Raises UnreadableError."""
    tool = find_tool("amd-smi")
    if tool is None:
        raise UnreadableError("amd-smi is not installed")
    # Values that never change, read once.
    static, listed = _answer(tool, "static"), _answer(tool, "list")

    def read() -> tuple[DeviceState, ...]:
        return parse(_answer(tool, "metric"), static, listed)

    devices = read()
    if not devices:
        raise UnreadableError("amd-smi shows no device")
    source = f"amd-smi, driver {devices[0].driver}" if devices[0].driver else "amd-smi"
    samples = amd_sysfs.open_samples(devices, sysfs)
    return Reader(source=source, states=read, samples=samples, topology=dict)


def _answer(tool: str, what: str) -> str:
    code, answer = run_tool([tool, what, "--json"], environ={**os.environ, **library_settings(os.environ)})
    if code is None:
        raise UnreadableError("amd-smi did not answer in time")
    if code:
        first = next((line.strip() for line in answer.splitlines() if line.strip()), "no output")
        raise UnreadableError(f"amd-smi {what}: exit code {code}: {first[:200]}")
    return answer


def parse(metric: str, static: str = "[]", listed: str = "[]") -> tuple[DeviceState, ...]:
    """Return the devices of the answers to ``metric``, ``static`` and ``list``. Raises UnreadableError."""
    fixed, names = (_rows(answer, "amd-smi") for answer in (static, listed))
    return tuple(
        _device(index, row, fixed.get(index, {}), names.get(index, {}))
        for index, row in sorted(_rows(metric, "amd-smi metric").items())
    )


def _rows(answer: str, tool: str) -> dict[int, Mapping[str, Any]]:
    """Return the rows of an answer by the number of the device."""
    found = document(answer, tool)
    rows = at(found, "gpu_data") if isinstance(found, Mapping) else found
    if not isinstance(rows, list):
        raise UnreadableError(f"{tool}: no list of devices")
    return {index: row for row in rows if isinstance(row, Mapping) and (index := whole(row.get("gpu"))) is not None}


def _device(index: int, row: Mapping[str, Any], fixed: Mapping[str, Any], names: Mapping[str, Any]) -> DeviceState:
    bus = short_bus(text(names.get("bdf")) or text(at(fixed, "bus", "bdf")))
    serial = text(at(fixed, "asic", "asic_serial"))
    hotspot, edge = (number(at(row, "temperature", name)) for name in ("hotspot", "edge"))
    slowdown = number(at(fixed, "limit", "slowdown_hotspot_temperature"))
    values: dict[str, Any] = {
        "temperature_c": hotspot if hotspot is not None else edge,
        "memory_temperature_c": number(at(row, "temperature", "mem")),
        "slowdown_c": slowdown,
        "margin_k": slowdown - hotspot if slowdown is not None and hotspot is not None else None,
        "utilization_percent": number(at(row, "usage", "gfx_activity")),
        "sm_mhz": number(at(row, "clock", "gfx_0", "clk")),
        "sm_max_mhz": number(at(row, "clock", "gfx_0", "max_clk")) or None,
        "memory_mhz": number(at(row, "clock", "mem_0", "clk")),
        "power_w": _first(row, ("power", "socket_power"), ("power", "current_socket_power")),
        "power_limit_w": _first(fixed, ("limit", "socket_power"), ("limit", "ppt0", "socket_power_limit")),
        "power_default_limit_w": _first(fixed, ("limit", "max_power"), ("limit", "ppt0", "max_power_limit")),
        "memory_used_bytes": size_bytes(at(row, "mem_usage", "used_vram")),
        "memory_total_bytes": size_bytes(at(row, "mem_usage", "total_vram")),
        "pcie_generation": PCIE_GENERATIONS.get(number(at(row, "pcie", "speed")) or 0),
        "pcie_generation_max": PCIE_GENERATIONS.get(number(at(fixed, "bus", "max_pcie_speed")) or 0),
        "pcie_width": whole(at(row, "pcie", "width")),
        "pcie_width_max": whole(at(fixed, "bus", "max_pcie_width")),
        "throttle_reasons": _throttled(row.get("throttle")),
    }
    counters = {
        "ecc_corrected": whole(at(row, "ecc", "total_correctable_count")),
        "ecc_uncorrected": whole(at(row, "ecc", "total_uncorrectable_count")),
        "ecc_deferred": whole(at(row, "ecc", "total_deferred_count")),
        "pcie_replays": whole(at(row, "pcie", "replay_count")),
        "pcie_recoveries": whole(at(row, "pcie", "l0_to_recovery_count")),
        "xgmi_errors": _xgmi_errors(row.get("xgmi_err")),
    }
    ticks = whole(at(row, "throttle", "accumulation_counter"))
    throttled = _throttled_ticks(row.get("throttle")) if ticks is not None else {}
    mode = text(at(fixed, "partition", "compute_partition") or at(fixed, "partition", "accelerator_partition"))
    return DeviceState(
        vendor="amd",
        index=index,
        uuid=text(names.get("uuid")) or serial or bus or f"device {index}",
        bus=bus,
        model=text(at(fixed, "asic", "market_name")),
        serial=text(at(fixed, "board", "product_serial")) or serial,
        driver=text(at(fixed, "driver", "version")),
        vbios=text(at(fixed, "vbios", "version") or at(fixed, "ifwi", "version")),
        numa_node=whole(at(fixed, "numa", "node")),
        counters={name: count for name, count in counters.items() if count is not None},
        mig=mode.upper() != "SPX" if mode else None,
        ticks=ticks,
        throttled_ticks=throttled,
        unavailable={**missing({**values, **counters}), "throttled_ns": _NO_UNIT if throttled else ABSENT},
        **values,
    )


def _first(row: Mapping[str, Any], *paths: tuple[str, ...]) -> float | None:
    return next((found for path in paths if (found := number(at(row, *path))) is not None), None)


def _throttled_ticks(value: Any) -> dict[str, int]:
    """Return ``DeviceState.throttled_ticks``: of several reasons of one name the one that held longest."""
    found = dict[str, int]()
    for name, ours in _THROTTLE.items():
        count = whole(at(value, f"{name}_accumulated"))
        if count is not None:
            found[ours] = max(found.get(ours, 0), count)
    return found


def _xgmi_errors(value: Any) -> int | None:
    """Return the least number of errors of XGMI links that the state says."""
    said = text(value).upper()
    return whole(value) if said.isdecimal() else _XGMI_ERRORS.get(said.rpartition("STATUS_")[2])


def _throttled(value: Any) -> tuple[str, ...] | None:
    """Return the reasons that hold now; None where the device says nothing of any (before MI300)."""
    states = {name: text(at(value, f"{name}_violation_status")).upper() for name in _THROTTLE}
    if not any(states.values()):
        return None
    return tuple(sorted({_THROTTLE[name] for name, state in states.items() if state == "ACTIVE"}))
