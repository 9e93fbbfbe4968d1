"""What keeps this process from its cores, its memory and its GPU.

Of the host by counters of the kernel, of which two readings tell; a reading takes less than a millisecond. Of a GPU by
what it says of itself while it works, ten times a second at first. What cannot be told is left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from seatrial.probe import cgroup, cpu
from seatrial.probe.gpu_gauges import IDLE, REASONS, Gauges

__all__ = ["Contention", "counters"]

_MHZ = "mhz"
_FIRST_S = 0.1
_END_S = 1.0
_ASKED = "asked"


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


class Contention:
    """What has come to pass since this was made; while it is entered, of the GPU too, by a thread of its own."""

    def __init__(self, gauges: Gauges | None) -> None:
        """``gauges``: of the GPU, None: there is none."""
        self._before, self._gauges = counters(), gauges
        self._clocks, self._reasons, self._most = Counter[float](), Counter[str](), dict[str, float]()
        self._lock, self._over, self._reader = threading.Lock(), threading.Event(), threading.Thread()

    def __enter__(self) -> Contention:
        if self._gauges is not None:
            # One for each time: should a driver not answer, its thread must not hold the next one up.
            self._over = threading.Event()
            self._reader = threading.Thread(target=self._read, args=(self._gauges, self._over), daemon=True)
            self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._gauges is not None:
            self._reader.join(_END_S)

    def so_far(self) -> dict[str, float]:
        """The host: what ``counters`` tells of, since then. The GPU: ``gpu_mhz``, the median; the most of each other
        gauge; and for each of ``gpu_gauges.REASONS`` the share of the readings in which it held its clock down."""
        now = counters()
        told = {
            name: round(now[name] - (0 if name == _MHZ else then), 4)
            for name, then in self._before.items()
            if name in now
        }
        with self._lock:
            if count := self._clocks.total():
                told |= {"gpu_mhz": sorted(self._clocks.elements())[count // 2], **self._most}
                if asked := self._reasons[_ASKED]:
                    told |= {name: round(self._reasons[name] / asked, 4) for name in REASONS.values()}
        return told

    def _read(self, gauges: Gauges, over: threading.Event) -> None:
        every_s = _FIRST_S
        while not over.wait(every_s):
            # Ever less often: a rank that hangs is known by the CPU time that it does not use, and this uses some.
            every_s = min(1.0, every_s * 1.1)
            seen = dict(gauges())
            told_why, reasons = "reasons" in seen, int(seen.pop("reasons", 0))
            if reasons & IDLE or "gpu_mhz" not in seen:  # nothing runs on it, and its clock sinks
                continue
            with self._lock:
                self._clocks[seen.pop("gpu_mhz")] += 1
                if told_why:
                    self._reasons.update([_ASKED, *(name for bit, name in REASONS.items() if reasons & bit)])
                self._most |= {name: max(value, self._most.get(name, value)) for name, value in seen.items()}
