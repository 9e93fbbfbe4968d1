"""The end of a process that an agent started, together with its agent."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
"""From Linux's sys/prctl.h."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the agent dies: it must not outlive its agent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["SEATRIAL_AGENT_PID"]):  # the agent died before the call
        os._exit(1)
