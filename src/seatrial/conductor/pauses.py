"""For how long this process did not run, because somebody stopped it, or the whole machine slept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from seatrial.conductor.clock import clock_s

_BEAT_S = 0.25
_PAUSED_S = 2.0
"""For so long no thread of a process that runs waits for its turn, unless another one works."""


class Pauses:
    """Two threads look at the clock: one waits for a disk, or thinks, while the other one goes on.

    Not where one decodes a large message, which takes seconds in which no other thread runs: that uses CPU time, and a
    process that does not run uses none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._polled_at, self._cpu_s = clock_s(), time.process_time()
        self._missed_s = 0.0
        self._is_over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the clock in a second thread; what was before counts as no pause."""
        self._polled_at, self._cpu_s = clock_s(), time.process_time()
        thread = threading.Thread(target=self._watch, name="pauses", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def missed_s(self) -> float:
        """Return the seconds of all pauses since the last call."""
        with self._lock:
            self._poll()
            missed_s, self._missed_s = self._missed_s, 0.0
            return missed_s

    def _watch(self) -> None:
        while not self._is_over.wait(_BEAT_S):
            with self._lock:
                self._poll()

    def _poll(self) -> None:
        now, cpu_s = clock_s(), time.process_time()
        missed_s = now - self._polled_at - (cpu_s - self._cpu_s)
        self._polled_at, self._cpu_s = now, cpu_s
        if missed_s > _PAUSED_S:
            self._missed_s += missed_s
