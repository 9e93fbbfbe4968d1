"""The interim report: written at the first trouble, in case that this process does not live to write the last one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seatrial.judge.conclude import conclude
from seatrial.report.write import write_reports

_INTERVAL_S = 10.0
_MOST_VALUES = 150_000
"""Values in the events of about a hundred ranks. Each costs about 20 us, and thrice that on a busy machine; agents
that hear nothing for 30 s take their conductor for dead; the report of more is written at the end only."""


class Interim:
    """Writes interim reports, called with each event and all events so far.

    The conductor waits for it, so it writes at most one report for each generation, at least ten seconds apart, and
    none of very many events. It raises nothing: the final report is written at the end of the trial.
    """

    def __init__(self, out: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._reported: set[int] = set()
        self._last_at = float("-inf")

    def __call__(self, event: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
        with contextlib.suppress(Exception):
            if (
                event["kind"] != "trouble"
                or event["gen"] in self._reported
                or self._clock() - self._last_at < _INTERVAL_S
                or _has_more_values(events, _MOST_VALUES)
            ):
                return
            self._reported.add(event["gen"])
            try:
                write_reports(conclude(events), self._out)
            finally:
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
