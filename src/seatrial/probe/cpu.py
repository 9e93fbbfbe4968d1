"""The cores that this process may use, and how many of them it really gets."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

from seatrial.probe.cgroup import read_cgroup


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores in the affinity mask, or fewer where a CPU quota of the control group allows fewer; at least
    1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity mask
        cores = os.cpu_count() or 1
    cgroup = read_cgroup(root)
    quota = cgroup.quota_cores if cgroup else None
    return max(1, cores if quota is None else min(cores, int(quota + 0.5)))


def affinity() -> str | None:
    """Return the cores in our affinity mask as the kernel writes them, ``0-3,8``; None where there is no mask
    (macOS)."""
    try:
        return _ranges(sorted(os.sched_getaffinity(0)))
    except AttributeError:
        return None


def cores_in(text: str) -> frozenset[int]:
    """Return the cores of a list such as ``0-3,8``. Raises ValueError for anything else."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def _ranges(numbers: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_model(root: Path = Path("/")) -> str:
    """Return the model as the kernel shows it; the machine type where it does not (ARM shows only numbers)."""
    try:
        with open(root / "proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
