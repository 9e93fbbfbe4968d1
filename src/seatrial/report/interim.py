"""A report from the moment that something is wrong, whatever happens to us next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seatrial.conductor.conclude import conclude
from seatrial.report.write import write_reports

__all__ = ["Interim"]

_APART_S = 10.0


class Interim:
    """Callable with each event and all that were kept so far. The conductor waits for it, so it is seldom.

    At most one report for each generation, ten seconds apart. Nothing is raised: the report that counts is written at
    the end.
    """

    def __init__(self, out: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._told: set[int] = set()
        self._last_at = float("-inf")

    def __call__(self, event: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
        with contextlib.suppress(Exception):
            if event["kind"] != "trouble" or event["gen"] in self._told or self._clock() - self._last_at < _APART_S:
                return
            self._told.add(event["gen"])
            try:
                write_reports(conclude(events), self._out)
            finally:
                self._last_at = self._clock()
