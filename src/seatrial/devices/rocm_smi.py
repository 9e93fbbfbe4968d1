"""AMD's devices through ``rocm-smi ... --json``, which the releases before amd-smi (ROCm 6) have."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seatrial.devices import amd_sysfs
from seatrial.devices.amd_values import document, missing, number, text, whole
from seatrial.devices.readers import Reader, UnreadableError, short_bus
from seatrial.devices.state import DeviceState
from seatrial.environment.library_settings import library_settings
from seatrial.util.tool import find_tool, run_tool

_ARGUMENTS = (
    *("--showproductname", "--showuniqueid", "--showserial", "--showbus", "--showvbios", "--showdriverversion"),
    *("--showtemp", "--showuse", "--showpower", "--showmaxpower", "--showclocks", "--showreplaycount"),
    *("--showmeminfo", "vram", "--json"),
)
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "temperature_c": ("Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
    "memory_temperature_c": ("Temperature (Sensor memory) (C)",),
    "utilization_percent": ("GPU use (%)",),
    "sm_mhz": ("sclk clock speed:",),
    "memory_mhz": ("mclk clock speed:",),
    "power_w": ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"),
    "power_limit_w": ("Max Graphics Package Power (W)",),
}
"""Field -> the names under which it was printed; those of MI300 first."""
_ERRORS = "rocm-smi prints it as a table only"


def open_reader(sysfs: Path = Path("/sys")) -> Reader:
    """Return the reader, which takes its samples from the files of the driver. Raises UnreadableError."""
    tool = find_tool("rocm-smi")
    if tool is None:
        raise UnreadableError("rocm-smi is not installed")

    def answer() -> tuple[DeviceState, ...]:
        code, said = run_tool([tool, *_ARGUMENTS], environ={**os.environ, **library_settings(os.environ)})
        if code is None:
            raise UnreadableError("rocm-smi did not answer in time")
        # Its exit code is not 0 where a device lacks one of the values.
        return parse(said)

    devices = answer()
    if not devices:
        raise UnreadableError("rocm-smi shows no device")
    return Reader(source="rocm-smi", states=answer, samples=amd_sysfs.open_samples(devices, sysfs), topology=dict)


def parse(said: str) -> tuple[DeviceState, ...]:
    """Return the devices of an answer, in the order of their numbers. Raises UnreadableError."""
    found = document(said, "rocm-smi")
    if not isinstance(found, Mapping):
        raise UnreadableError("rocm-smi: no list of devices")
    driver = text(found.get("system", {}).get("Driver version")) if isinstance(found.get("system"), Mapping) else ""
    rows = {int(match[1]): row for name, row in found.items() if (match := re.fullmatch(r"card(\d{1,4})", name))}
    return tuple(_device(index, row, driver) for index, row in sorted(rows.items()) if isinstance(row, Mapping))


def _device(index: int, row: Mapping[str, Any], driver: str) -> DeviceState:
    values: dict[str, Any] = {
        field: next((found for name in names if (found := number(row.get(name))) is not None), None)
        for field, names in _NUMBERS.items()
    }
    values["memory_used_bytes"] = whole(row.get("VRAM Total Used Memory (B)"))
    values["memory_total_bytes"] = whole(row.get("VRAM Total Memory (B)"))
    replays, bus = whole(row.get("PCIe Replay Count")), short_bus(text(row.get("PCI Bus")))
    unavailable = {**missing(values), "ecc_corrected": _ERRORS, "ecc_uncorrected": _ERRORS}
    return DeviceState(
        vendor="amd",
        index=index,
        uuid=text(row.get("Unique ID")) or bus or f"device {index}",
        bus=bus,
        model=text(row.get("Card Series") or row.get("Card series")),
        serial=text(row.get("Serial Number")),
        driver=driver,
        vbios=text(row.get("VBIOS version")),
        numa_node=whole(row.get("(Topology) Numa Node")),
        counters={} if replays is None else {"pcie_replays": replays},
        unavailable=unavailable if replays is not None else {**unavailable, "pcie_replays": "not supported"},
        **values,
    )
