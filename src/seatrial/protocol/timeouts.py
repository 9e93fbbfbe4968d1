"""Intervals and timeouts that both ends of a control connection rely on."""

from __future__ import annotations

import os

from seatrial.errors import RequestError

PROOF_S = 10.0
"""The conductor closes a connection that has not proved that it knows the token for this long."""
HEARTBEAT_S = 2.0
"""Interval of the conductor's heartbeats."""
CONDUCTOR_SILENT_S = 30.0
"""An agent that receives nothing for this long takes the conductor for dead or stopped, and ends its ranks."""
STATUS_S = 1.0
"""Interval of an agent's status."""
NODE_SILENT_S = 15.0
"""A node whose agent sends nothing for this long is taken for lost."""
PATIENCE_S = 15.0
"""A rank that makes no progress for this long stands still."""
STUCK_S = 90.0
"""Ranks that all wait inside an operation for this long, without any CPU time, wait for a message that does not come.
After an outage of up to 50 s TCP has sent again what was lost (Linux doubles its wait from 0.2 s: 51 s, then 102 s)."""
OUTPUT_S = 60.0
"""Time for an agent to send the output that is left when all ranks have ended: 1 GiB at 17 MB/s."""
_LEAST_PATIENCE_S = 5.0
"""The same in a short step: a rank enters a phase now and then, and its status is five times as frequent."""
_JOIN_TIMEOUT_S = 60


def patience_s(allowed_s: float) -> float:
    """Return how long a rank stands still before the end of a step of ``allowed_s`` seconds names it.

    That is a quarter of the time allowed, and neither more than PATIENCE_S nor too short for a healthy rank.
    """
    return min(PATIENCE_S, max(allowed_s / 4, _LEAST_PATIENCE_S))


def join_timeout_s() -> float:
    """Return how long agents and conductor wait for one another: SEATRIAL_JOIN_TIMEOUT_S, by default 60 s.

    A launcher may start them one by one, and pods may have to pull an image first. Raises RequestError for a value that
    is not a whole number from 1 to 86400.
    """
    text = os.environ.get("SEATRIAL_JOIN_TIMEOUT_S", str(_JOIN_TIMEOUT_S))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= 86_400:
        raise RequestError(f"SEATRIAL_JOIN_TIMEOUT_S={text[:40]!a}: a whole number from 1 to 86400 is expected.")
    return int(text)
