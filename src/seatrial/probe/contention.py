"""What keeps this process from its cores and its memory: counters of the kernel, of which two readings tell.

A reading takes less than a millisecond. What cannot be told is left out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from seatrial.probe import cgroup, cpu

__all__ = ["counters", "since"]

_MHZ = "mhz"


def counters() -> dict[str, float]:
    """Seconds of this process and of the cores that it may use, and ``major_faults``, since whenever they were 0.

    ``cpu_s``: used by all threads; ``waited_s``: they were runnable and had no core; ``busy_s`` and ``steal_s``: of its
    cores, whoever used them, and the hypervisor; ``throttled_s``: by its control group's CPU quota, summed over cores;
    ``stalled_s``: some task of the host waited for memory. ``mhz`` is the clock of its cores right now.
    """
    found = {"wall_s": time.monotonic(), "cpu_s": time.process_time()}
    with contextlib.suppress(OSError, ValueError, IndexError):
        tasks = Path("/proc/self/task").iterdir()
        found["waited_s"] = sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9
    with contextlib.suppress(OSError, ValueError, IndexError):
        faults = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[9]
        found["major_faults"] = float(faults)
    cores = {f"cpu{core}" for core in cpu.cores_in(cpu.affinity() or "")}
    with contextlib.suppress(OSError, ValueError, IndexError):
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        mine = [row for row in rows if row[0] in cores]
        for name, columns in {"busy_s": (1, 2, 3, 6, 7), "steal_s": (8,)}.items():
            found[name] = sum(int(row[column]) for row in mine for column in columns) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError, ValueError, IndexError):
        found["stalled_s"] = int(Path("/proc/pressure/memory").read_text().split()[4][6:]) / 1e6
    stopped_s = cgroup.throttled_s()
    if stopped_s is not None:
        found["throttled_s"] = stopped_s
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        files = [Path(f"/sys/devices/system/cpu/{core}/cpufreq/scaling_cur_freq") for core in cores]
        found[_MHZ] = sum(int(file.read_text()) for file in files) / len(files) / 1e3
    return found


def since(before: Mapping[str, float]) -> dict[str, float]:
    """What has come to pass since that reading."""
    now = counters()
    return {name: round(now[name] - (0 if name == _MHZ else then), 4) for name, then in before.items() if name in now}
