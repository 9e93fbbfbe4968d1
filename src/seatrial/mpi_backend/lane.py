"""Lanes: the order of collectives, and the threads that run them.

MPI requires the collectives of a communicator in the same order on all ranks, whichever thread calls them, never two at
a time, and never a blocking one on one rank with a non-blocking one on another. So each group has one lane, and every
collective is a blocking call. A collective that the caller waits for anyway runs in the caller's thread if nothing is
queued before it. All others run in the lane's thread, one after the other. The other ranks need not choose the same
thread, and the order is that of the caller's requests. Groups have separate communicators, so their lanes need not wait
for one another.

After an error or a timeout it is unknown which collective the other ranks are in, and the next one could take their
values for its own. So the lane then refuses everything that follows.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn

from seatrial.mpi_backend.work import LaneWork, timed_out

_WATCH_S = 1.0


class Lane:
    """The collectives of one group."""

    def __init__(self, *, threads: bool) -> None:
        """``threads``: whether MPI may be called from another thread than the one that initialized it."""
        self._threads = threads
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._watchdog = Watchdog()
        self._pending = 0
        self._queue: deque[LaneWork] = deque()
        self._waiting = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._closed = False

    def execute(self, name: str, operation: Callable[[], None], timeout_s: Callable[[], float]) -> bool:
        """Run an operation in this thread and raise what it raises; return False, without running it, when others are
        queued.

        The process ends when it takes longer than ``timeout_s()`` seconds. Raises RuntimeError when an earlier
        operation failed.
        """
        if self._failure or self._closed:
            self._refuse(name)
        if not self._turn.acquire(False):
            return False
        if self._pending:
            self._turn.release()
            return False
        watchdog = self._watchdog
        watchdog.running = (time.monotonic(), name, timeout_s)
        try:
            operation()
        except BaseException as error:
            self._fail(name, error)
            raise
        finally:
            watchdog.running = None
            self._turn.release()
        return True

    def submit(self, work: LaneWork) -> None:
        """Put an operation into the queue. Raises RuntimeError when an earlier one failed."""
        if not self._threads:
            if not self.execute(work.name, work.execute, lambda: work.timeout_s):
                raise RuntimeError(f"MPI {work.name}: two threads call an MPI that supports only one")
            return
        with self._lock:
            if self._failure or self._closed:
                self._refuse(work.name)
            self._pending += 1
            self._queue.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="seatrial MPI lane", daemon=True)
                self._thread.start()
        self._waiting.release()

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(f"MPI {name}: {self._failure or 'its group was destroyed'}")

    def _fail(self, name: str, error: BaseException) -> None:
        self._failure = f"an earlier {name} of this group failed ({error}); the ranks may be in different collectives"

    def _run(self, work: LaneWork) -> None:
        with self._turn:
            if self._failure:
                work.refuse(RuntimeError(f"MPI {work.name}: {self._failure}"))
            else:
                try:
                    work.execute()
                except BaseException as error:
                    self._fail(work.name, error)
        with self._lock:
            self._pending -= 1

    def _serve(self) -> None:
        while True:
            self._waiting.acquire()
            if not self._queue:
                return
            self._run(self._queue.popleft())

    def close(self, timeout_s: float) -> bool:
        """Refuse new operations and wait for the queued ones; return whether all have ended in time, without an
        error."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._waiting.release()
            thread.join(timeout_s)
        return not self._failure and not (thread is not None and thread.is_alive())


class Watchdog:
    """Ends the process when a call in a caller's thread takes longer than its timeout.

    A blocking MPI call cannot be left in another way. The launcher, or our agent, then ends the other ranks. One
    watchdog covers calls that follow one another, such as those of a lane.
    """

    _all: ClassVar[weakref.WeakSet[Watchdog]] = weakref.WeakSet()
    _lock = threading.Lock()
    _thread: ClassVar[threading.Thread | None] = None

    def __init__(self) -> None:
        self.running: tuple[float, str, Callable[[], float]] | None = None
        """Start, name and timeout of the current call. The timeout is a function, since reading it takes torch a
        microsecond."""
        with Watchdog._lock:
            Watchdog._all.add(self)
            if Watchdog._thread is None:
                Watchdog._thread = threading.Thread(target=_watch, name="seatrial MPI watchdog", daemon=True)
                Watchdog._thread.start()

    @contextlib.contextmanager
    def watching(self, name: str, timeout_s: float) -> Iterator[None]:
        """Within this context the process ends when it takes longer."""
        self.running = (time.monotonic(), name, lambda: timeout_s)
        try:
            yield
        finally:
            self.running = None

    def check(self) -> None:
        """End the process if the current call is overdue."""
        running = self.running
        if running is None:
            return
        began, name, limit = running
        timeout_s = limit()
        if time.monotonic() > began + timeout_s:
            # One write call, since others search the output of ranks for such a line.
            sys.stderr.write(f"seatrial: {timed_out(name, timeout_s)}; this rank ends.\n")
            sys.stderr.flush()
            os._exit(1)

    @classmethod
    def watched(cls) -> list[Watchdog]:
        """Return all watchdogs."""
        with cls._lock:
            return list(cls._all)


def _watch() -> None:
    while True:
        time.sleep(_WATCH_S)
        for watchdog in Watchdog.watched():
            watchdog.check()
