"""What /proc says of a process."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ProcessSeen", "host_name", "launcher_fds", "leave_launcher", "look", "wchan"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """State letter (R, S, D, T, t, Z, X) and CPU time used by all threads so far."""

    state: str
    cpu_s: float


def look(pid: int) -> ProcessSeen | None:
    """None when there is no such process (or no /proc)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The command stands in parentheses and may hold spaces and parentheses itself.
    rest = text[text.rfind(")") + 2 :].split()
    return ProcessSeen(state=rest[0], cpu_s=(int(rest[11]) + int(rest[12])) / _TICKS_PER_S)


def wchan(pid: int) -> str:
    """The kernel function that the main thread waits in; empty when not told."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return file.read().strip("0\n ")
    except OSError:
        return ""


def launcher_fds(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Descriptors by which MPI in a rank of ours speaks with its launcher (hydra of MPICH and Intel MPI)."""
    try:
        fd = int(environ["PMI_FD"])
        os.fstat(fd)
    except (KeyError, ValueError, OSError, OverflowError):
        return ()
    return (fd,)


def leave_launcher(environ: Mapping[str, str]) -> None:
    """Tell hydra that the rank which we started is through with MPI, however it ended.

    Without that word hydra kills all ranks of the job, and who reports with them. It is a line of PMI-1, in
    which MPICH's ranks speak with hydra; where the rank has said it already, nobody listens any more.
    """
    for fd in launcher_fds(environ):
        with contextlib.suppress(OSError):
            os.write(fd, b"cmd=finalize\n")


def host_name() -> str:
    """Of this machine. That of a pod says nothing of it; its manifest brings the right one."""
    return os.environ.get("SEATRIAL_NODE_NAME") or platform.node()
