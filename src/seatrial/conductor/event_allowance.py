"""How many bytes of events one agent may have kept: events stay in memory and on disk until the report is written."""

from __future__ import annotations

BURST_BYTES = 64 << 20
"""The stacks of 128 ranks (at most 48 KiB each), ten times; the events of a whole trial count as 50 kB a rank."""
BYTES_PER_S = 64 << 10
"""A node of 40 ranks that goes through a whole trial, 50 kB of events a rank, every 30 s, for hours."""


class EventAllowance:
    """The allowance of one agent: a burst, which fills up again at a rate."""

    def __init__(self, now: float, agents: int = 1) -> None:
        """``now``: seconds on any clock that only goes forward, as for ``take``. ``agents``: how many share it."""
        self._burst_bytes, self._bytes_per_s = float(BURST_BYTES * agents), BYTES_PER_S * agents
        self._left_bytes = self._burst_bytes
        self._at = now

    def take(self, kept_bytes: int, now: float) -> bool:
        """Count an event that costs this much to keep (``Decoder.kept_bytes``).

        Returns whether the agent is still within its allowance.
        """
        self._left_bytes = min(self._burst_bytes, self._left_bytes + (now - self._at) * self._bytes_per_s) - kept_bytes
        self._at = now
        return self._left_bytes >= 0

    def give_back(self, kept_bytes: int) -> None:
        """Take back what was counted for the parts of a message that is whole now."""
        self._left_bytes = min(self._burst_bytes, self._left_bytes + kept_bytes)
