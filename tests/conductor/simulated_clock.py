"""Time that passes only from one thing that happens to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["SimulatedClock"]


class SimulatedClock:
    """``now``, and what is to happen later; of two things at one time the one that was asked for first."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let it happen so many seconds from now."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, action))

    def act_next(self) -> None:
        """The next thing happens, and it is then."""
        self.now, _, action = heapq.heappop(self._queue)
        action()
