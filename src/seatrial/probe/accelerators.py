"""How many accelerators the processes of this node may use, without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Accelerators", "count_accelerators"]

_TOOL_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """How many, of which vendor (``nvidia``, ``amd`` or empty), and how we know."""

    count: int
    vendor: str
    source: str


def count_accelerators(environ: Mapping[str, str] | None = None) -> Accelerators:
    """Count what a new process would see. A visibility variable that is set but empty means none."""
    environ = os.environ if environ is None else environ
    for vendor, counted, variables in (
        ("nvidia", _nvidia(), ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")),
        ("amd", _amd(), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    ):
        if counted.count == 0:
            continue
        for name in variables:
            shown = environ.get(name)
            if shown is not None and shown != "all":
                # torch stops at the first entry that names no device, such as -1.
                names = [part.strip() for part in shown.split(",")]
                visible = next((at for at, part in enumerate(names) if part in ("", "-1", "void", "none")), len(names))
                return Accelerators(count=min(visible, counted.count), vendor=vendor, source=f"{name}={shown}")
        return counted
    return Accelerators(count=0, vendor="", source="no NVIDIA or AMD device found")


def _nvidia() -> Accelerators:
    tool = shutil.which("nvidia-smi")
    if tool:
        try:
            done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            pass
        else:
            count = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
            if done.returncode == 0 and count:
                return Accelerators(count=count, vendor="nvidia", source="nvidia-smi -L")
    folder = Path("/proc/driver/nvidia/gpus")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    return Accelerators(count=count, vendor="nvidia", source=str(folder))


def _amd() -> Accelerators:
    count = 0
    for node in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/simd_count"):
        try:
            count += int(node.read_text() or "0") > 0  # CPU nodes have no SIMD units
        except (OSError, ValueError):
            continue
    return Accelerators(count=count, vendor="amd", source="/sys/class/kfd")
