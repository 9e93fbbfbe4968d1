"""The process above an agent. However the agent dies, what its ranks left behind ends with it.

A rank dies with its agent (PR_SET_PDEATHSIG), and its own children do not: data loaders, ranks that torchrun started,
daemons with a separate session. When the agent is gone, they become children of the guardian, which kills them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import time

from seatrial.agent import orphans
from seatrial.errors import SeatrialError
from seatrial.probe.process import read_process
from seatrial.protocol.timeouts import CONDUCTOR_SILENT_S
from seatrial.util.job_signals import FOR_RANKS

END_AT_ONCE = signal.SIGALRM
"""Has the guardian kill the agent, and all that the agent leaves behind. It ends any other process as well. Launchers
pass it on, and nobody but seatrial sends it: SIGUSR1 and SIGUSR2 are for the user's script."""
_PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Each of them ends an agent in order."""
_PASSED_ON = frozenset({*ENDING, *FOR_RANKS})
_HEARD = _PASSED_ON | {signal.SIGCHLD, END_AT_ONCE}
_WAIT_S = 1.0
"""A signal interrupts this wait."""
_MOST_STOPPED_S = CONDUCTOR_SILENT_S
"""By then its controller has given up a stopped agent, which nobody else may ever end."""
_END_S = 2.0
"""The kernel ends a killed process in milliseconds, except in state D."""


def guard() -> None:
    """Fork. The parent becomes the guardian, and ends as the agent does; this returns in the child, the agent.

    Raises SeatrialError without /proc, from which the guardian learns what the agent has left behind, and where there
    is no process left for it.
    """
    if not os.path.isdir("/proc/self/fd"):
        raise SeatrialError(f"{platform.node()} has no /proc, which agents read; mount it: mount -t proc proc /proc.")
    orphans.adopt()
    # Where a launcher ignores it, the kernel forgets how children ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As long as they are blocked, no signal is lost between the fork and the guardian's first wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    guardian = os.getpid()
    try:
        agent = os.fork()
    except OSError as error:
        raise SeatrialError(f"{platform.node()} gives this agent no process: {error.strerror}.") from error
    if agent:
        try:
            _end_like(_watch(agent))
        finally:
            os._exit(1)
    # Should the guardian be killed, the agent dies with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(1)
    # A signal to the group of the guardian must not arrive twice.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(agent: int) -> int:
    """Wait for the agent, end what it leaves behind, and return its wait status."""
    # The peers of pipes and sockets wait until all that hold them have closed them.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    ended = status = 0
    must_end, stopped_s = False, 0.0
    while not ended:
        began = time.monotonic()
        heard = signal.sigtimedwait(_HEARD, _WAIT_S)
        number = heard.si_signo if heard else 0
        if number in _PASSED_ON or number == END_AT_ONCE:
            os.kill(agent, signal.SIGKILL if number == END_AT_ONCE else number)
        must_end = must_end or number in ENDING
        seen = read_process(agent)
        if seen is None or seen.state != "T":
            stopped_s = 0.0
        else:
            # Where the whole job was stopped, by Slurm for example, the time of that does not count.
            stopped_s += min(time.monotonic() - began, _WAIT_S)
            if stopped_s > _MOST_STOPPED_S:
                os.kill(agent, signal.SIGKILL)
            elif must_end:  # a stopped process ends in order once it is continued
                os.kill(agent, signal.SIGCONT)
        orphans.reap((agent,))
        ended, status = os.waitpid(agent, os.WNOHANG)
    orphans.kill(_END_S)
    return status


def _end_like(status: int) -> None:
    """End with the exit code or by the signal of this wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        # Process 1 of a pod cannot end itself by a signal.
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))
