"""Contention: whatever keeps this process from its cores, its memory and its GPU.

For the host, two readings of kernel counters are compared; a reading takes less than a millisecond. A GPU is sampled by
a thread, ten times a second at first, because its clock matters only while it works. Unreadable values are left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from seatrial.probe import cgroup, cpu, process
from seatrial.probe.gpu_gauges import IDLE, REASONS, Gauges

_MHZ = "mhz"
_FIRST_S = 0.1
_END_S = 1.0
_ASKED = "asked"


def counters() -> dict[str, float]:
    """Return counters of this process and its usable cores in seconds, and ``major_faults``, each since its own start.

    - ``cpu_s``: CPU time of all threads; ``waited_s``: time in which they were runnable and had no core.
    - ``busy_s``, ``steal_s``: time of the usable cores in any process, and taken by the hypervisor.
    - ``stalled_s``: time in which some task of the host waited for memory.
    - ``mhz``: the current clock of the usable cores.
    """
    values = {"wall_s": time.monotonic(), "cpu_s": time.process_time()}
    if waits := process.core_waits(os.getpid()):
        values["waited_s"] = sum(waits.values())
    with contextlib.suppress(OSError, ValueError, IndexError):
        faults = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[9]
        values["major_faults"] = float(faults)
    cores = {f"cpu{core}" for core in cpu.cores_in(cpu.affinity() or "")}
    with contextlib.suppress(OSError, ValueError, IndexError):
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        own_rows = [row for row in rows if row[0] in cores]
        for name, columns in {"busy_s": (1, 2, 3, 6, 7), "steal_s": (8,)}.items():
            values[name] = sum(int(row[column]) for row in own_rows for column in columns) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError, ValueError, IndexError):
        values["stalled_s"] = int(Path("/proc/pressure/memory").read_text().split()[4][6:]) / 1e6
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        files = [Path(f"/sys/devices/system/cpu/{core}/cpufreq/scaling_cur_freq") for core in cores]
        values[_MHZ] = sum(int(file.read_text()) for file in files) / len(files) / 1e3
    return values


class CpuTime:
    """The CPU time of this process since this was made, and the waits of its threads for a core."""

    def __init__(self) -> None:
        self._started_s, self._cpu_s, self._waited_s = (
            time.perf_counter(),
            time.process_time(),
            process.core_waits(os.getpid()),
        )

    def share(self, threads: int) -> float:
        """Return which part of the time this many threads had a core.

        It is what the process used, and no more than the part in which no thread waited: a thread of a library that
        strangers keep busy, such as that of a store, uses CPU time, too, and takes it from those that compute.
        """
        wall_s, cpu_s = time.perf_counter() - self._started_s, time.process_time() - self._cpu_s
        waits = (now - self._waited_s.get(thread, 0.0) for thread, now in process.core_waits(os.getpid()).items())
        return min(cpu_s / (wall_s * threads), 1 - min(1.0, max(waits, default=0.0) / wall_s))


class Contention:
    """The change of the counters since this was made; while it is entered, a thread also samples the GPU."""

    def __init__(self, gauges: Gauges | None) -> None:
        """Read the counters. ``gauges``: those of the GPU; None: there is no GPU, or it has no gauges."""
        self._before, self._quotas, self._gauges = counters(), cgroup.throttling(), gauges
        self._clocks, self._reasons, self._maxima = Counter[float](), Counter[str](), dict[str, float]()
        self._lock, self._over, self._reader = threading.Lock(), threading.Event(), threading.Thread()

    def __enter__(self) -> Contention:
        if self._gauges is not None:
            # A new event for each use: a thread whose driver does not answer must not affect the next one.
            self._over = threading.Event()
            self._reader = threading.Thread(target=self._read, args=(self._gauges, self._over), daemon=True)
            self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._gauges is not None:
            self._reader.join(_END_S)

    def so_far(self) -> dict[str, float]:
        """Return the change of the host's ``counters`` since then, and of the GPU's gauges the samples so far.

        ``throttled_s`` is the time, summed over cores, for which a CPU quota has stopped our control group, or the one
        above it that was stopped most; ``below_quota_s`` is the CPU time of all processes below that quota.

        ``gpu_mhz`` is the median; each other gauge is the maximum. For each of ``gpu_gauges.REASONS``: the share of the
        samples in which it limited the clock.
        """
        now = counters()
        changes = {
            # With a thread that ends goes what it has waited, and the kernel takes back some of the time of cores.
            name: round(max(0.0, now[name] - (0 if name == _MHZ else then)), 4)
            for name, then in self._before.items()
            if name in now
        }
        if (most := cgroup.most_stopped(self._quotas, cgroup.throttling())) is not None:
            changes["throttled_s"] = round(most.stopped_s, 4)
            if most.used_s is not None:
                changes["below_quota_s"] = round(most.used_s, 4)
        with self._lock:
            if count := self._clocks.total():
                changes |= {"gpu_mhz": sorted(self._clocks.elements())[count // 2], **self._maxima}
                if asked := self._reasons[_ASKED]:
                    changes |= {name: round(self._reasons[name] / asked, 4) for name in REASONS.values()}
        return changes

    def _read(self, gauges: Gauges, over: threading.Event) -> None:
        every_s = _FIRST_S
        while not over.wait(every_s):
            # Sample less and less often: a hang is detected by unused CPU time, and sampling uses some.
            every_s = min(1.0, every_s * 1.1)
            sample = dict(gauges())
            has_reasons, reasons = "reasons" in sample, int(sample.pop("reasons", 0))
            if reasons & IDLE or "gpu_mhz" not in sample:  # nothing runs on it, and its clock sinks
                continue
            with self._lock:
                self._clocks[sample.pop("gpu_mhz")] += 1
                if has_reasons:
                    self._reasons.update([_ASKED, *(name for bit, name in REASONS.items() if reasons & bit)])
                self._maxima |= {name: max(value, self._maxima.get(name, value)) for name, value in sample.items()}
