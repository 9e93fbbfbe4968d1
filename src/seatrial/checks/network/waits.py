"""How long somebody may have waited for a loop: a caller in the queue of its listener, or an answer to its own call."""

from __future__ import annotations

import asyncio
import math
import select
import socket
from collections.abc import Callable

_INTERVAL_S = 0.1
_LONG_S = 0.5
"""An exchange takes both ends some six turns of their loops, and what it waits for least is 3 s. A queue is first in,
first out: whoever came when nobody waited is served before the next such moment."""


class Waits:
    """Looks in a loop, ten times a second, whether nobody waits. A loop that stands still does not look."""

    def __init__(self, is_empty: Callable[[], bool] = lambda: True) -> None:
        """Begin to look, in the running loop."""
        self._is_empty = is_empty
        self._loop = asyncio.get_running_loop()
        self._none_at = self._loop.time()
        """The last moment at which nobody waited."""
        self._long_at = -math.inf
        """The end of the last long wait."""
        self._next = self._loop.call_later(_INTERVAL_S, self._note)

    def _note(self) -> None:
        now = self._loop.time()
        if now > self._none_at + _LONG_S:
            self._long_at = now
        if self._is_empty():
            self._none_at = now
        self._next = self._loop.call_later(_INTERVAL_S, self._note)

    def were_long(self, since: float = -math.inf) -> bool:
        """Return whether a long wait has ended after this time of the loop, or goes on. For any thread."""
        return self._long_at > since or self._loop.time() > self._none_at + _LONG_S

    def end(self) -> None:
        """Look no more."""
        self._next.cancel()


def queue_is_empty(listener: socket.socket) -> Callable[[], bool]:
    """Return what tells whether no connection waits to be accepted."""
    queue = select.poll()
    queue.register(listener.fileno(), select.POLLIN)
    return lambda: not queue.poll(0)
