"""A hang detector whose agents send statuses, as real ones do."""

from __future__ import annotations

from typing import Literal

from seatrial.conductor.hang_detector import HangDetector
from seatrial.protocol.timeouts import STATUS_S

__all__ = ["AttendedDetector"]


class AttendedDetector(HangDetector):
    """A rank of which the test says nothing stands still, and its agent says so each second and before each look."""

    def attend(self, now: float) -> None:
        """Take in the statuses until ``now``."""
        for status in self.statuses.values():
            while status.seen_at < now:
                at = min(now, status.seen_at + STATUS_S)
                status.update((status.state, status.cpu_s, status.number, status.phase), at)

    def poll(self, now: float) -> Literal["trouble", "deadline"] | None:
        """Look, once the statuses until ``now`` are taken in."""
        self.attend(now)
        return super().poll(now)
