"""The interim report: written at the first trouble, in case that this process does not live to write the last one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seatrial.judge.conclude import conclude
from seatrial.report.write import write_reports

_INTERVAL_S = 10.0
_LAST_WRITE_S = 60.0
"""Time for the disk to take a report at the end."""
_MOST_VALUES = 150_000
"""Values in the events of about a hundred ranks. Each costs about 20 us of the core that the conductor uses, and thrice
that on a busy machine; the report of more is written at the end only."""


class Interim:
    """Writes interim reports, called with each event and all events so far.

    A thread writes them: agents that hear nothing for 30 s take their conductor for dead, and the disk may take longer.
    It writes at most one report for each generation, at least ten seconds apart, and none of very many events. It
    raises nothing: the final report is written at the end of the trial.
    """

    def __init__(self, out: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._reported: set[int] = set()
        self._last_at = float("-inf")
        self._thread: threading.Thread | None = None

    def __call__(self, event: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
        with contextlib.suppress(Exception):
            if (
                event["kind"] != "trouble"
                or event["gen"] in self._reported
                or self._clock() - self._last_at < _INTERVAL_S
                or (self._thread is not None and self._thread.is_alive())
                or _has_more_values(events, _MOST_VALUES)
            ):
                return
            self._reported.add(event["gen"])
            thread = threading.Thread(target=self._write, args=([*events],), name="interim report", daemon=True)
            thread.start()
            self._thread = thread

    def close(self) -> str:
        """Wait for the report that is being written, so that it replaces no later one.

        Returns a sentence where the disk has not taken it: nothing else can be written there.
        """
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_S)
            if self._thread.is_alive():
                return f"--out {self._out}: the disk has not answered for {_LAST_WRITE_S:.0f} s."
        return ""

    def _write(self, events: Sequence[dict[str, Any]]) -> None:
        with contextlib.suppress(Exception):
            write_reports(conclude(events), self._out)
        self._last_at = self._clock()


def _has_more_values(events: Sequence[dict[str, Any]], most: int) -> bool:
    pending: list[Any] = list(events)
    while pending:
        value = pending.pop()
        most -= len(value)
        if most < 0:
            return True
        inner = value.values() if isinstance(value, dict) else value
        pending += [entry for entry in inner if isinstance(entry, (dict, list))]
    return False
