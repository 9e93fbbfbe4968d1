"""Gauges of a GPU while it works: clock, reasons that limit it, temperature, power limit, and the number of processes.

NVIDIA's GPUs are read through NVML, the library behind nvidia-smi, and AMD's through sysfs. Unreadable values are left
out.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

from seatrial.devices.nvml import IDLE_BIT, LIBRARY, REASON_BITS, Nvml, reason_bits, temperature
from seatrial.devices.readers import UnreadableError

Gauges = Callable[[], Mapping[str, float]]
"""Returns one sample: ``gpu_mhz``; ``gpu_celsius``; ``gpu_limit_w``, the power limit; ``gpu_processes``, those that
compute on it; ``reasons``, the bits of ``REASONS`` that hold right now, ``IDLE`` among them."""

IDLE = IDLE_BIT
REASONS = {bit: f"gpu_{name}" for bit, name in REASON_BITS.items()}

_SM_CLOCK = 1
_INSUFFICIENT_SIZE = 7
"""NVML_ERROR_INSUFFICIENT_SIZE: called without room for a list, NVML returns the length of the list."""


def open_gauges(vendor: str, identity: str, bus: str, *, sysfs: Path = Path("/sys")) -> Gauges | None:
    """Return the gauges of one device; None where it has none that can be read.

    ``identity``: its UUID or PCI address. ``bus``: its PCI address, empty where it is not known.
    """
    if vendor == "nvidia":
        with contextlib.suppress(UnreadableError):
            return nvml_gauges(Nvml(LIBRARY), identity)
    if vendor == "amd" and bus:
        folder = next((sysfs / "bus" / "pci" / "devices" / f"{bus}.0" / "hwmon").glob("hwmon*"), None)
        return None if folder is None else lambda: _read_amd(folder)
    return None


def nvml_gauges(nvml: Nvml, identity: str) -> Gauges | None:
    """Return the gauges of one device; None where the driver does not know it."""
    if ":" in identity:
        code, device = nvml.device_by_bus(f"{identity}.0")
    else:
        code, device = nvml.device_by_uuid(f"GPU-{identity.removeprefix('GPU-')}")
    return None if code else lambda: _read_nvidia(nvml, device)


def _read_nvidia(nvml: Nvml, device: ctypes.c_void_p) -> dict[str, float]:
    count = ctypes.c_uint()
    code = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None)
    answers = {
        "gpu_mhz": nvml.number("nvmlDeviceGetClockInfo", device, _SM_CLOCK),
        "gpu_celsius": temperature(nvml, device),
        "gpu_limit_w": nvml.number("nvmlDeviceGetEnforcedPowerLimit", device),
        "gpu_processes": (0 if code == _INSUFFICIENT_SIZE else code, count.value),
        "reasons": reason_bits(nvml, device),
    }
    units = {"gpu_limit_w": 1000}
    return {name: value / units.get(name, 1) for name, (code, value) in answers.items() if code == 0}


def _read_amd(folder: Path) -> dict[str, float]:
    """Return a sample from the folder of the sensors. The driver uses hertz, thousandths of a degree and microwatts."""
    sample = dict[str, float]()
    for gauge, files, units in (
        ("gpu_mhz", "freq1_input", 1e6),
        ("gpu_celsius", "temp*_input", 1e3),
        ("gpu_limit_w", "power1_cap", 1e6),
    ):
        with contextlib.suppress(OSError, ValueError):
            sample[gauge] = max(int(file.read_text()) for file in folder.glob(files)) / units
    return sample
