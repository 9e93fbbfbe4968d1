"""How far this node's clock is from the conductor's, asked over the control connection."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["ClockOffset"]

_QUESTIONS = 8
"""One after the other. The one with the shortest round trip tells most."""


class ClockOffset:
    """Asks when told to, and learns from the answers. Nobody waits for them."""

    def __init__(self) -> None:
        self.best: list[float] | None = None
        """[offset_ms, accuracy_ms]: our clock minus the conductor's, half of the round trip. None: no answer yet."""
        self._asked = 0
        self._at = 0.0
        self._ticks = 0.0

    def question(self) -> dict[str, Any] | None:
        """The next message to the conductor; None: all have been asked."""
        if self._asked == _QUESTIONS:
            return None
        self._asked += 1
        self._at, self._ticks = time.time(), time.monotonic()
        return {"kind": "time", "number": self._asked}

    def answer(self, message: dict[str, Any]) -> bool:
        """Take what the conductor says; whether it answers the last question."""
        theirs = message.get("at")
        if message.get("number") != self._asked or not isinstance(theirs, float):
            return False
        round_trip_s = time.monotonic() - self._ticks
        # It was read somewhere between asking and hearing: at the middle we are wrong by half of that at most.
        offset_ms, accuracy_ms = (self._at + round_trip_s / 2 - theirs) * 1e3, round_trip_s / 2 * 1e3
        if self.best is None or accuracy_ms < self.best[1]:
            self.best = [round(offset_ms, 3), round(accuracy_ms, 3)]
        return True
