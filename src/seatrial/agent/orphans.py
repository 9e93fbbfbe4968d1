"""Processes that a script leaves behind in other sessions: daemons, which no process group reaches.

The agent adopts them when their parents end (PR_SET_CHILD_SUBREAPER), and ends them after the last rank of its node.
The process above it (``guardian.py``) does the same for what a dead agent leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

from seatrial.probe.process import read_process

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 2.0
"""From SIGTERM to SIGKILL, and from SIGKILL on: a daemon may have something to write."""


def adopt() -> None:
    """Become the parent of all descendants whose parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap(own: Collection[int]) -> list[int]:
    """Take in adopted processes that have ended, and return those that run. ``own``: children that others wait for."""
    running = []
    for pid in _children():
        if pid in own:
            continue
        seen = read_process(pid)
        if seen is not None and seen.state not in "ZX":
            running.append(pid)
            continue
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return running


def end() -> None:
    """End the adopted processes with all that they started: SIGTERM, then SIGKILL."""
    _signal(signal.SIGTERM, _GRACE_S)
    kill(_GRACE_S)


def kill(timeout_s: float) -> None:
    """Kill the adopted processes with all that they started, and wait for their end."""
    _signal(signal.SIGKILL, timeout_s)


def _signal(number: int, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    signaled: set[int] = set()
    # The end of one makes us the parent of its children.
    while (running := reap(())) and time.monotonic() < until:
        for pid in set(running) - signaled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signaled |= set(running)
        time.sleep(0.02)


def _children() -> list[int]:
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return []
