"""How many accelerators the processes of this node may use, without importing torch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Accelerators", "count_accelerators"]

_TOOL_TIMEOUT_S = 20.0
_KILL_TIMEOUT_S = 2.0
# NVIDIA_VISIBLE_DEVICES is none of them: it tells a container runtime what to put in, and CDI sets it to "void" in
# containers that do have devices.
_VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
# What people and launchers write where they mean "no device"; the last is Slurm's.
_NONE = ("", "-1", "none", "void", "NoDevFiles")
# PCI vendor, and the classes its accelerators come as: VGA, 3D, other display (MI50 to MI250), processing accelerator
# (MI300). An AMD VGA device may be the display of a desktop, which no driver for compute belongs to.
_ON_BUS = {
    "nvidia": ("0x10de", ("0x0300", "0x0302", "0x0380", "0x1200")),
    "amd": ("0x1002", ("0x0302", "0x0380", "0x1200")),
}
_CPU_INSTEAD = "or say --device cpu to try the CPUs alone."


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """How many, of which vendor (``nvidia``, ``amd`` or empty), and how we know."""

    count: int
    vendor: str
    source: str
    problem: str = ""
    """Why the count cannot be relied on and what to do, in words; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a driver shows, before any variable hides a part of it."""

    count: int
    source: str
    listing: str = ""
    """The tool's own list, with the UUIDs."""
    complaint: str = ""
    """Why the source shows nothing, in its own words."""
    silent: bool = False
    """The tool did not answer at all."""


def count_accelerators(
    environ: Mapping[str, str] | None = None, *, first: str = "nvidia", sysfs: Path = Path("/sys")
) -> Accelerators:
    """Count what a new process would see. A visibility variable that is set but empty means none.

    ``first``: the vendor whose devices count where there are both.
    """
    environ = os.environ if environ is None else environ
    problems = []
    for vendor in sorted(_VARIABLES, key=lambda name: name != first):
        shown = _nvidia() if vendor == "nvidia" else _amd(sysfs)
        if shown.silent:
            problem = f"{shown.complaint}; look at the driver's log, restart the machine, {_CPU_INSTEAD}"
            return Accelerators(count=shown.count, vendor=vendor, source=shown.source, problem=problem)
        if shown.count:
            return _visible(vendor, shown, environ)
        on_bus = _count_on_bus(vendor, sysfs)
        if on_bus:
            devices = f"{on_bus} {vendor.upper()} {'device is' if on_bus == 1 else 'devices are'} on the PCI bus"
            problems.append(
                f"{devices}, but the driver shows none ({shown.complaint}); load the driver, {_CPU_INSTEAD}"
            )
    return Accelerators(count=0, vendor="", source="no NVIDIA or AMD device found", problem="; ".join(problems))


def _visible(vendor: str, shown: _Shown, environ: Mapping[str, str]) -> Accelerators:
    name = next((name for name in _VARIABLES[vendor] if name in environ), None)
    if name is None:
        return Accelerators(count=shown.count, vendor=vendor, source=shown.source)
    value = environ[name]
    count = _named(value, shown)
    problem = ""
    if not count and value.split(",")[0].strip() not in _NONE:
        problem = f"{name}={value} names none of the {shown.count} devices that {shown.source} shows; correct it,"
        problem += f" {_CPU_INSTEAD}"
    return Accelerators(count=count, vendor=vendor, source=f"{name}={value}", problem=problem)


def _named(value: str, shown: _Shown) -> int:
    """How many devices torch takes from a visibility variable: those before the first entry that names none."""
    taken: set[int | str] = set()
    for entry in value.split(","):
        text = entry.strip()
        number = re.match(r"\+?([0-9]+)", text)
        name = int(number[1]) if number else text
        if isinstance(name, int):
            known = name < shown.count
        else:
            known = name.startswith(("GPU-", "MIG-")) and (not shown.listing or f"UUID: {name}" in shown.listing)
        if not known:
            break
        if name in taken:  # torch takes none at all where one is named twice
            return 0
        taken.add(name)
    return min(len(taken), shown.count)


def _nvidia() -> _Shown:
    tool = shutil.which("nvidia-smi")
    code, text = _ask([tool, "-L"]) if tool else (0, "not found")
    count = sum(line.startswith("GPU ") for line in text.splitlines())
    if code == 0 and count:
        return _Shown(count=count, source="nvidia-smi -L", listing=text)
    folder = Path("/proc/driver/nvidia/gpus")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    if code is None:
        complaint = f"nvidia-smi did not answer in {_TOOL_TIMEOUT_S:g} s"
        return _Shown(count=count, source=str(folder), complaint=complaint, silent=True)
    said = next((line.strip() for line in text.splitlines() if line.strip()), "it says nothing")
    complaint = f"nvidia-smi: exit code {code}: {said}" if code else f"nvidia-smi: {said}"
    return _Shown(count=count, source=str(folder), complaint=complaint)


def _ask(argv: list[str]) -> tuple[int | None, str]:
    """Exit code and output of a tool; no code: it did not answer in time.

    A tool that waits inside a driver (state D) cannot be killed, and ``subprocess.run`` would wait for it for ever.
    """
    try:
        tool = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return -1, str(error)
    try:
        text, _ = tool.communicate(timeout=_TOOL_TIMEOUT_S)
        return tool.returncode, text
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        assert tool.stdout is not None
        tool.stdout.close()
        # Should it not end now, the thread reaps it whenever it does, and holds nobody up.
        reaper = threading.Thread(target=tool.wait, name="reaper of nvidia-smi", daemon=True)
        reaper.start()
        reaper.join(_KILL_TIMEOUT_S)
        return None, ""


def _amd(sysfs: Path) -> _Shown:
    count = 0
    folder = sysfs / "class" / "kfd"
    for node in (folder / "kfd" / "topology" / "nodes").glob("*/properties"):
        with contextlib.suppress(OSError):  # of a device that this container may not use
            # CPU nodes have no SIMD units.
            count += re.search("\nsimd_count [1-9]", "\n" + node.read_text()) is not None
    return _Shown(count=count, source=str(folder), complaint=f"nothing in {folder}")


def _count_on_bus(vendor: str, sysfs: Path) -> int:
    wanted, classes = _ON_BUS[vendor]
    count = 0
    for device in (sysfs / "bus" / "pci" / "devices").glob("*"):
        try:
            count += (device / "vendor").read_text().strip() == wanted and (device / "class").read_text()[:6] in classes
        except OSError:
            continue
    return count
