"""Facts about a process, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


def held_s(pid: int) -> float:
    """Return for how many seconds so far the main thread could run and had no core; 0 where that is not known."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def wchan(pid: int) -> str:
    """Return the kernel function in which the main thread waits; empty where the kernel does not show it."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read().strip("0\n ")
    except OSError:
        return ""
