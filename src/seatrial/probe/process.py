"""Facts about a process, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MOST_THREADS = 512
"""Threads of one process that are read: an agent reads those of all its ranks each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """The status of one process at one moment."""

    state: str
    """State letter of the kernel: R, S, D, T, t, Z or X."""
    cpu_s: float
    """CPU time of all threads so far."""


def read_process(pid: int) -> ProcessStatus | None:
    """Return the status of a process; None when there is no such process (or no /proc)."""
    fields = _stat(pid)
    return None if fields is None else ProcessStatus(state=fields[0], cpu_s=_cpu_s(fields))


def families(pids: Collection[int]) -> dict[int, dict[int, float]]:
    """Return the CPU seconds of each of these processes and of all its descendants.

    Both keys are process ids: of the process that was asked for, and of a member of its family. A family whose process
    is gone is empty, and so are all without /proc.
    """
    cpu_s: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
            if (fields := _stat(pid)) is not None:
                cpu_s[pid] = _cpu_s(fields)
                children.setdefault(int(fields[1]), []).append(pid)
    return {pid: _family(pid, cpu_s, children) for pid in pids}


def _family(root: int, cpu_s: Mapping[int, float], children: Mapping[int, list[int]]) -> dict[int, float]:
    found: dict[int, float] = {}
    left = [root]
    while left:
        pid = left.pop()
        if pid in cpu_s and pid not in found:
            found[pid] = cpu_s[pid]
            left += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The command is in parentheses and may contain spaces and parentheses itself.
    return text[text.rfind(")") + 2 :].split()


def _cpu_s(fields: list[str]) -> float:
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def core_waits(pid: int) -> dict[str, float]:
    """Return the seconds in which each thread could run and had no core; none where the kernel does not count.

    Of a process with thousands of threads the first ones are read.
    """
    waits = dict[str, float]()
    for thread in _threads(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)
            try:
                waits[thread] = int(os.read(descriptor, 128).split()[1]) / 1e9
            finally:
                os.close(descriptor)
    return waits


def num_cores(pid: int) -> int:
    """Return how many cores the threads of a process may use together: a library may bind each one to another core."""
    cores = set[int]()
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(int(thread))
    return len(cores)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")[:_MOST_THREADS]
    except OSError:
        return []


def wchan(pid: int) -> str:
    """Return the kernel function in which the main thread waits; empty where the kernel does not show it."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read().strip("0\n ")
    except OSError:
        return ""
