"""The end of a process together with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
"""From Linux's sys/prctl.h."""
AGENT = "SEATRIAL_AGENT_PID"
SPAWNED_BY = "SEATRIAL_SPAWNED_BY"
"""Variables with the id of the process that started this one: an agent, or that of ``--spawn``."""


def die_with_parent(variable: str = AGENT, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this signal when the process dies that started this one, which must not outlive it.

    ``variable``: that with its id.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != int(os.environ[variable]):  # it died before the call
        os._exit(1)
