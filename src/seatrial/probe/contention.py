"""What keeps this process from its cores and its memory: counters of the kernel, of which two readings tell.

A reading takes less than a millisecond. What cannot be told is left out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

from seatrial.probe.cgroup import throttled_s

__all__ = ["counters", "since"]

_MHZ = "mhz"


def counters(root: Path = Path("/")) -> dict[str, float]:
    """Seconds of this process and of the cores that it may use, and ``major_faults``, since whenever they were 0.

    ``cpu_s``: used by all threads; ``waited_s``: they were runnable and had no core; ``busy_s`` and ``steal_s``: of its
    cores, whoever used them, and the hypervisor; ``throttled_s``: by its control group's CPU quota, summed over cores;
    ``stalled_s``: some task of the host waited for memory. ``mhz`` is the clock of its cores right now.
    """
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    found = {"wall_s": time.monotonic(), "cpu_s": time.process_time(), "major_faults": float(faults)}
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set[str]()
    with contextlib.suppress(OSError, ValueError, IndexError):
        tasks = (root / "proc/self/task").iterdir()
        found["waited_s"] = sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9
    with contextlib.suppress(OSError, ValueError):
        rows = [line.split() for line in (root / "proc/stat").read_text().splitlines()]
        ticks = [[int(word) for word in row[1:9]] for row in rows if row and row[0] in cores]
        hertz = os.sysconf("SC_CLK_TCK")
        found["busy_s"] = sum(sum(row[:3]) + sum(row[5:7]) for row in ticks) / hertz
        found["steal_s"] = sum(sum(row[7:]) for row in ticks) / hertz
    with contextlib.suppress(OSError, ValueError):
        found["stalled_s"] = int((root / "proc/pressure/memory").read_text().split()[4].partition("=")[2]) / 1e6
    stopped_s = throttled_s(root)
    if stopped_s is not None:
        found["throttled_s"] = stopped_s
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        files = [root / f"sys/devices/system/cpu/{core}/cpufreq/scaling_cur_freq" for core in cores]
        found[_MHZ] = sum(int(file.read_text()) for file in files) / len(files) / 1e3
    return found


def since(before: Mapping[str, float]) -> dict[str, float]:
    """What has come to pass since that reading."""
    now = counters()
    return {name: round(now[name] - (0 if name == _MHZ else then), 4) for name, then in before.items() if name in now}
