"""What a GPU says of itself while it works: clock, why that is not higher, temperature, power limit, who else is on it.

NVIDIA's GPUs are asked by way of NVML, the library that nvidia-smi asks too, and AMD's in sysfs. What cannot be told is
left out.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["IDLE", "REASONS", "Gauges", "nvml_gauges", "open_gauges"]

Gauges = Callable[[], Mapping[str, float]]
"""One reading: ``gpu_mhz``; ``gpu_celsius``; ``gpu_limit_w``, to which its power is limited; ``gpu_processes``, that
compute on it; ``reasons``, the bits of ``REASONS`` that hold right now, ``IDLE`` among them."""

IDLE = 0x1
REASONS = {
    0x2: "gpu_set_clocks",
    0x4: "gpu_power_cap",
    0x8: "gpu_hw_slowdown",
    0x10: "gpu_sync_boost",
    0x20: "gpu_sw_thermal",
    0x40: "gpu_hw_thermal",
    0x80: "gpu_power_brake",
    0x200: "gpu_board_limit",
    0x400: "gpu_reliability",
}
"""NVML's nvmlClocksEventReason*, which older drivers call nvmlClocksThrottleReason*, with the same bits."""

_SM_CLOCK, _CORE_TEMPERATURE = 1, 0
_NO_ROOM = 7
"""Asked without room for a list, NVML tells how long it would be."""
_LIBRARY = "libnvidia-ml.so.1"


def open_gauges(vendor: str, identity: str, bus: str, *, sysfs: Path = Path("/sys")) -> Gauges | None:
    """Of one device; None: it has none that can be read.

    ``identity``: its UUID or its place on the PCI bus. ``bus``: that place, empty where it is not known.
    """
    if vendor == "nvidia":
        with contextlib.suppress(OSError, AttributeError):  # no driver, or one without these functions
            return nvml_gauges(ctypes.CDLL(_LIBRARY), identity)
    if vendor == "amd" and bus:
        folder = next((sysfs / "bus" / "pci" / "devices" / f"{bus}.0" / "hwmon").glob("hwmon*"), None)
        return None if folder is None else lambda: _of_amd(folder)
    return None


def nvml_gauges(library: Any, identity: str) -> Gauges | None:
    """``library`` is NVML. Raises AttributeError if it lacks what every release has."""
    device = ctypes.c_void_p()
    find = library.nvmlDeviceGetHandleByPciBusId_v2 if ":" in identity else library.nvmlDeviceGetHandleByUUID
    name = f"{identity}.0" if ":" in identity else f"GPU-{identity.removeprefix('GPU-')}"
    if library.nvmlInit_v2() or find(name.encode(), ctypes.byref(device)):
        return None
    asked: dict[str, tuple[str, list[Any], list[Any], int]] = {
        "gpu_mhz": ("nvmlDeviceGetClockInfo", [_SM_CLOCK], [], 1),
        "gpu_celsius": ("nvmlDeviceGetTemperature", [_CORE_TEMPERATURE], [], 1),
        "gpu_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", [], [], 1000),
        "gpu_processes": ("nvmlDeviceGetComputeRunningProcesses_v3", [], [None], 1),
        "reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", [], [], 1),
    }

    def read() -> dict[str, float]:
        found = dict[str, float]()
        for gauge, (function, before, after, units) in asked.items():
            # Large enough for all of them; who writes 32 bits writes the low ones.
            value = ctypes.c_ulonglong()
            with contextlib.suppress(AttributeError):
                code = getattr(library, function)(device, *before, ctypes.byref(value), *after)
                if code == 0 or (after and code == _NO_ROOM):
                    found[gauge] = value.value / units
        return found

    return read


def _of_amd(folder: Path) -> dict[str, float]:
    """``folder``: of its sensors. The driver tells hertz, thousandths of a degree and microwatts."""
    found = dict[str, float]()
    for gauge, files, units in (
        ("gpu_mhz", "freq1_input", 1e6),
        ("gpu_celsius", "temp*_input", 1e3),
        ("gpu_limit_w", "power1_cap", 1e6),
    ):
        with contextlib.suppress(OSError, ValueError):
            found[gauge] = max(int(file.read_text()) for file in folder.glob(files)) / units
    return found
