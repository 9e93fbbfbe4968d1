"""The number of accelerators that the processes of this node may use, counted without importing torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.devices.readers import SOURCES, on_bus
from seatrial.util.tool import find_tool, run_tool

_TOOL_TIMEOUT_S = 20.0
# NVIDIA_VISIBLE_DEVICES is not here: it configures the container runtime, and CDI sets it to "void" in containers that
# do have devices.
_VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
# Values that mean "no device"; the last is Slurm's.
_NONE = ("", "-1", "none", "void", "NoDevFiles")
_CPU_INSTEAD = "or use --device cpu to test the CPUs only."


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """The number of usable accelerators, and how it was found."""

    count: int
    vendor: str
    """``nvidia``, ``amd`` or empty."""
    source: str
    """The tool, folder or variable that gave the count."""
    problem: str = ""
    """Why the count is not reliable and what to do, in words; empty: it is reliable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DriverView:
    """The devices that a driver shows, before a variable hides some of them."""

    count: int
    source: str
    listing: str = ""
    """The output of the tool, with the UUIDs."""
    complaint: str = ""
    """Why the source shows nothing, as the tool says it."""
    silent: bool = False
    """Whether the tool did not answer in time."""


def count_accelerators(
    environ: Mapping[str, str] | None = None, *, first: str = "nvidia", sysfs: Path = Path("/sys")
) -> Accelerators:
    """Count the devices that a new process would see. A visibility variable that is set but empty means none.

    ``first``: the vendor whose devices count where there are both.
    """
    environ = os.environ if environ is None else environ
    problems = []
    for vendor in sorted(SOURCES, key=lambda name: name != first):
        view = _nvidia() if vendor == "nvidia" else _amd(sysfs)
        if view.silent:
            problem = f"{view.complaint}; check the driver's log, restart the machine, {_CPU_INSTEAD}"
            return Accelerators(count=view.count, vendor=vendor, source=view.source, problem=problem)
        if view.count:
            return _visible(vendor, view, environ)
        number = on_bus(vendor, sysfs)
        if number:
            devices = f"{number} {vendor.upper()} {'device is' if number == 1 else 'devices are'} on the PCI bus"
            problems.append(f"{devices}, but the driver shows none ({view.complaint}); load the driver, {_CPU_INSTEAD}")
    return Accelerators(count=0, vendor="", source="no NVIDIA or AMD device found", problem="; ".join(problems))


def _visible(vendor: str, view: _DriverView, environ: Mapping[str, str]) -> Accelerators:
    name = next((name for name in _VARIABLES[vendor] if name in environ), None)
    if name is None:
        return Accelerators(count=view.count, vendor=vendor, source=view.source)
    value = environ[name]
    count = _count_visible(value, view)
    problem = ""
    if not count and value.split(",")[0].strip() not in _NONE:
        problem = f"{name}={value} names none of the {view.count} devices that {view.source} shows; correct it,"
        problem += f" {_CPU_INSTEAD}"
    return Accelerators(count=count, vendor=vendor, source=f"{name}={value}", problem=problem)


def _count_visible(value: str, view: _DriverView) -> int:
    """Return how many devices torch takes from a visibility variable: those before the first that matches none."""
    taken: set[int | str] = set()
    for entry in value.split(","):
        text = entry.strip()
        number = re.match(r"\+?([0-9]{1,9})", text)
        name = int(number[1]) if number else text
        if isinstance(name, int):
            known = name < view.count
        else:
            known = name.startswith(("GPU-", "MIG-")) and (not view.listing or f"UUID: {name}" in view.listing)
        if not known:
            break
        if name in taken:  # torch takes none at all if one is listed twice
            return 0
        taken.add(name)
    return min(len(taken), view.count)


def _nvidia() -> _DriverView:
    tool = find_tool("nvidia-smi")
    code, text = run_tool([tool, "-L"], timeout_s=_TOOL_TIMEOUT_S) if tool else (0, "not found")
    count = sum(line.startswith("GPU ") for line in text.splitlines())
    if code == 0 and count:
        return _DriverView(count=count, source="nvidia-smi -L", listing=text)
    folder = Path("/proc/driver/nvidia/gpus")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    if code is None:
        complaint = f"nvidia-smi did not answer in {_TOOL_TIMEOUT_S:g} s"
        return _DriverView(count=count, source=str(folder), complaint=complaint, silent=True)
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
    complaint = f"nvidia-smi: exit code {code}: {first_line}" if code else f"nvidia-smi: {first_line}"
    return _DriverView(count=count, source=str(folder), complaint=complaint)


def _amd(sysfs: Path) -> _DriverView:
    count = 0
    folder = sysfs / "class" / "kfd"
    for node in (folder / "kfd" / "topology" / "nodes").glob("*/properties"):
        with contextlib.suppress(OSError):  # a device that this container may not use
            # CPU nodes have no SIMD units.
            count += re.search("\nsimd_count [1-9]", "\n" + node.read_text()) is not None
    return _DriverView(count=count, source=str(folder), complaint=f"nothing in {folder}")
