"""The offset between this node's clock and the conductor's, measured over the control connection."""

from __future__ import annotations

import time

from seatrial.protocol.commands import TimeAnswer, TimeQuestion

_QUESTIONS = 8
"""Asked one after the other. The one with the shortest round trip is the most accurate."""


class ClockOffset:
    """Makes the questions and evaluates the answers. Nothing waits for them."""

    def __init__(self) -> None:
        self.best: list[float] | None = None
        """[offset, accuracy] in ms: our clock minus the conductor's, half of the round trip. None: no answer yet."""
        self._asked = 0
        self._asked_at = 0.0
        self._asked_monotonic = 0.0

    def question(self) -> TimeQuestion | None:
        """Return the next question; None: all have been asked."""
        if self._asked == _QUESTIONS:
            return None
        self._asked += 1
        self._asked_at, self._asked_monotonic = time.time(), time.monotonic()
        return TimeQuestion(kind="time", number=self._asked)

    def answer(self, message: TimeAnswer) -> bool:
        """Take in an answer. Returns whether it is one to the last question."""
        conductor_s: object = message.get("at")
        if message.get("number") != self._asked or not isinstance(conductor_s, float):
            return False
        round_trip_s = time.monotonic() - self._asked_monotonic
        # The conductor read its clock between question and answer: from the middle we are wrong by half at most.
        offset_ms = (self._asked_at + round_trip_s / 2 - conductor_s) * 1e3
        accuracy_ms = round_trip_s / 2 * 1e3
        if self.best is None or accuracy_ms < self.best[1]:
            self.best = [round(offset_ms, 3), round(accuracy_ms, 3)]
        return True
