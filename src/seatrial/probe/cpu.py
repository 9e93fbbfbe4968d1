"""How many cores this process may really use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores in the affinity mask, or fewer where a CPU quota of the cgroup allows fewer; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity mask
        cores = os.cpu_count() or 1
    quota = _quota_cores(cgroup_root)
    return max(1, cores if quota is None else min(cores, int(quota + 0.5)))


def _quota_cores(root: Path) -> float | None:
    try:
        limit, period = (root / "cpu.max").read_text().split()  # cgroup v2
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:  # cgroup v1
        limit_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if limit_us <= 0 else limit_us / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
