"""A job that is canceled from outside: its ranks may end before the agents report the signal that all of them got."""

from __future__ import annotations

import signal

STOP_HEARD_S = 3.0
"""Time for an agent to report the signal that also ended its ranks: it looks for signals ten times a second, and a
loaded host may delay it. No origin but that: long against the delay, short against a user who waits for a name."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Each of them ends an agent in order. Of SIGTERM and the SIGHUP of systemd a rank may get either first."""


def is_stop_signal(code: int) -> bool:
    """Return whether an exit code is that of such a signal, also behind a shell."""
    return -code in _STOP_SIGNALS or code - 128 in _STOP_SIGNALS
