"""The order of collectives.

MPI wants the collectives of a communicator in the same order on all ranks, whatever thread calls them, never two at a
time, and never a blocking one against a non-blocking one. So each group has one lane: every collective is a blocking
call; one that the caller waits for anyway runs in the caller's thread if nothing is before it, every other one in the
lane's own thread, one after the other. What is chosen on one rank does not matter to the others, and the order is that
in which the caller asked. Groups have communicators of their own, so their lanes need not wait for one another.

After an error or a timeout nobody knows which collective the other ranks are in, and the next one could take their
values for its own: the lane then refuses all that follows.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import deque

from seatrial.worker.mpi_work import LaneWork, timed_out

__all__ = ["WATCHDOG", "Lane", "Watchdog"]

_WATCH_S = 1.0


class Lane:
    """The collectives of one group."""

    def __init__(self, *, threads: bool) -> None:
        """``threads``: whether MPI may be called from another thread than the one that initialised it."""
        self._threads = threads
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._pending = 0
        self._queue: deque[LaneWork] = deque()
        self._waiting = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._closed = False

    def submit(self, work: LaneWork, *, asynchronous: bool) -> LaneWork:
        """Run it here if the caller waits for it and nothing is before it, else put it in the queue.

        What runs here raises here. Raises RuntimeError when an earlier one failed.
        """
        with self._lock:
            if self._failure or self._closed:
                raise RuntimeError(f"MPI {work.name}: {self._failure or 'its group was destroyed'}")
            here = not self._threads or (not asynchronous and self._pending == 0)
            self._pending += 1
            if not here:
                self._queue.append(work)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="seatrial MPI lane", daemon=True)
                    self._thread.start()
        if not here:
            self._waiting.release()
            return work
        key = WATCHDOG.enter(work.name, work.timeout_s)
        try:
            self._run(work)
        finally:
            WATCHDOG.leave(key)
        error = work.exception()
        if error is not None:
            raise error
        return work

    def _run(self, work: LaneWork) -> None:
        with self._turn:
            if self._failure:
                work.refuse(RuntimeError(f"MPI {work.name}: {self._failure}"))
            elif (error := work.execute()) is not None:
                self._failure = f"an earlier {work.name} of this group failed ({error}); the ranks may be apart"
        with self._lock:
            self._pending -= 1

    def _serve(self) -> None:
        while True:
            self._waiting.acquire()
            if not self._queue:
                return
            self._run(self._queue.popleft())

    def close(self, timeout_s: float) -> bool:
        """Take nothing more and let what is queued end; whether all of it has ended by then, and well."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._waiting.release()
            thread.join(timeout_s)
        return not self._failure and not (thread is not None and thread.is_alive())


class Watchdog:
    """Ends the process when a call in a caller's own thread takes longer than its timeout.

    A blocking MPI call cannot be left otherwise. The launcher, or our agent, then ends the other ranks.
    """

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._running: dict[int, tuple[float, str, float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def enter(self, name: str, timeout_s: float) -> int:
        """From here on the time counts; give the key to ``leave``."""
        key = next(self._keys)
        self._running[key] = (time.monotonic() + timeout_s, name, timeout_s)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="seatrial MPI watchdog", daemon=True)
                    self._thread.start()
        return key

    def leave(self, key: int) -> None:
        """The call has returned."""
        del self._running[key]

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCH_S)
            now = time.monotonic()
            for until, name, timeout_s in list(self._running.values()):
                if now > until:
                    print(f"seatrial: {timed_out(name, timeout_s)}; this rank ends.", file=sys.stderr, flush=True)
                    os._exit(1)


WATCHDOG = Watchdog()
