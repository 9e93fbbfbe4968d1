"""The events of a trial: what each source says, in which words.

Every event has ``kind``, ``run``, ``src`` (who says it), ``seq`` (counted from 0 in each source), ``t`` (seconds since
the epoch, the source's clock). ``gen`` is the generation where it matters. An event is written at its source and
passed on unchanged, so the same event may be met in several files; ``(src, seq)`` says so. A source that is orderly
closed says ``end`` last: a source without ``end``, or with a gap, has lost events, and then nothing PASSes.

The kinds and their payloads stand in a table in ``docs/architecture.md``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["SCHEMA", "Source"]

SCHEMA = 1
"""Version of the events and of the report."""


class Source:
    """Numbers the events of one source. The caller keeps or sends what ``event`` returns."""

    def __init__(self, run: str, src: str, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._src = src
        self._clock = clock
        self._seq = 0

    def event(self, kind: str, **payload: Any) -> dict[str, Any]:
        """The next event of this source."""
        event = {
            "kind": kind,
            "run": self._run,
            "src": self._src,
            "seq": self._seq,
            "t": round(self._clock(), 6),
            **payload,
        }
        self._seq += 1
        return event
