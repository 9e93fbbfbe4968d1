"""Operations in flight: what a caller waits for, and the lane of one group in which collectives keep their order.

MPI wants the collectives of a communicator in the same order on all ranks, whatever thread calls them, and never a
blocking one against a non-blocking one. So each group has one lane: every collective is a blocking call; one that the
caller waits for anyway runs in the caller's thread if nothing is before it, every other one in the lane's own thread,
one after the other. What is chosen on one rank does not matter to the others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work

__all__ = ["Lane", "LaneWork", "RequestWork", "settle"]

_SPIN_S = 50e-6
"""So long a request is asked without pause: small messages take less."""
_LONGEST_SLEEP_S = 1e-3
_WATCH_S = 1.0


def settle(test: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it is true or the time is over: without pause at first, then with pauses up to a millisecond."""
    began = time.monotonic()
    sleep_s = 20e-6
    while not test():
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            return False
        if waited_s > _SPIN_S:
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 1.5, _LONGEST_SLEEP_S)
    return True


def _seconds(timeout: Any, default_s: float) -> float:
    """torch passes a timedelta; zero means that the caller named none."""
    named_s = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return named_s if named_s > 0 else default_s


def _timed_out(name: str, timeout_s: float) -> Exception:
    kind = getattr(torch.distributed, "DistBackendError", RuntimeError)
    error: Exception = kind(f"MPI {name} timed out waiting {timeout_s:g} s for the other ranks of its group")
    return error


class LaneWork(Work):  # type: ignore[misc]
    """A collective of a lane."""

    def __init__(
        self,
        name: str,
        operation: Callable[[], None],
        result: Sequence[Tensor],
        timeout_s: float,
        keep: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self._keep = keep
        self.name = name
        self.timeout_s = timeout_s
        self._operation: Callable[[], None] | None = operation
        self._result = list(result)
        self._error: BaseException | None = None
        self._future: Any = None
        self._lock = threading.Lock()
        self._done = threading.Event()

    def execute(self) -> None:
        """Run the operation in this thread, keep what it raises, and tell who waits."""
        assert self._operation is not None
        try:
            self._operation()
        except BaseException as error:
            self._error = error
        self._operation, self._keep = None, ()
        with self._lock:
            self._done.set()
        if self._future is not None:
            self._complete()

    def wait(self, timeout: Any = None) -> bool:
        """Until it is done. Raises what the operation raised, or DistBackendError when the time is over."""
        timeout_s = _seconds(timeout, self.timeout_s)
        if not self._done.wait(timeout_s):
            raise _timed_out(self.name, timeout_s)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """A torch future of the result tensors."""
        with self._lock:
            first = self._future is None
            if first:
                self._future = torch.futures.Future()  # type: ignore[var-annotated]
            done = self._done.is_set()
        if first and done:
            self._complete()
        return self._future

    def _complete(self) -> None:
        if isinstance(self._error, Exception):
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)


class Lane:
    """The collectives of one group, in their order."""

    def __init__(self, threads: bool) -> None:
        """``threads``: whether MPI may be called from another thread than the one that initialised it."""
        self._threads = threads
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._pending = 0
        self._queue: deque[LaneWork] = deque()
        self._waiting = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def submit(self, work: LaneWork, *, asynchronous: bool) -> LaneWork:
        """Run it here if the caller waits for it and nothing is before it, else put it in the queue.

        A collective that runs here raises here.
        """
        with self._lock:
            here = not self._threads or (not asynchronous and self._pending == 0)
            self._pending += 1
            if here:
                self._turn.acquire()
            else:
                self._queue.append(work)
        if not here:
            self._start()
            self._waiting.release()
            return work
        _WATCHDOG.enter(work)
        try:
            work.execute()
        finally:
            _WATCHDOG.leave(work)
            self._turn.release()
            with self._lock:
                self._pending -= 1
        error = work.exception()
        if error is not None:
            raise error
        return work

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="seatrial MPI lane", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            self._waiting.acquire()
            if not self._queue:
                return
            work = self._queue.popleft()
            with self._turn:
                work.execute()
            with self._lock:
                self._pending -= 1
            del work

    def close(self) -> None:
        """Let the thread end after what is queued. Waits for it a short time only."""
        if self._thread is not None:
            self._waiting.release()
            self._thread.join(timeout=5)


class RequestWork(Work):  # type: ignore[misc]
    """Sends or receives, each an MPI request; tensors and buffers stay alive with it."""

    def __init__(
        self,
        name: str,
        requests: Sequence[Any],
        *,
        keep: Sequence[Any],
        result: Sequence[Tensor],
        finish: Callable[[], None],
        timeout_s: float,
        make_status: Callable[[], Any],
    ) -> None:
        """``finish`` runs once when all requests are done: it brings back what was received."""
        super().__init__()
        self.name = name
        self._requests = list(requests)
        self._keep: Sequence[Any] = keep
        self._result = list(result)
        self._finish = finish
        self._timeout_s = timeout_s
        self._status = make_status()
        self._lock = threading.Lock()
        self._done = False
        self._error: Exception | None = None

    def _test(self) -> bool:
        with self._lock:
            if self._done:
                return True
            try:
                while self._requests:
                    if not self._requests[0].Test(self._status):
                        return False
                    self._requests.pop(0)
                self._finish()
            except Exception as error:
                self._error = error
            self._done, self._keep = True, ()
            return True

    def wait(self, timeout: Any = None) -> bool:
        """Until it is done. Raises what MPI raised, or DistBackendError when the time is over."""
        timeout_s = _seconds(timeout, self._timeout_s)
        if not settle(self._test, timeout_s):
            raise _timed_out(self.name, timeout_s)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._test()

    def is_success(self) -> bool:
        return self._test() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def source_rank(self) -> int:
        """The group rank that sent what was received."""
        return int(self._status.Get_source())

    def _source_rank(self) -> int:
        return self.source_rank()

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """A torch future; a thread of its own waits for it, since nobody else may."""
        future: Any = torch.futures.Future()

        def complete() -> None:
            try:
                self.wait()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(self._result)

        threading.Thread(target=complete, name="seatrial MPI future", daemon=True).start()
        return future


class _Watchdog:
    """Ends the process when a collective in a caller's own thread takes longer than its timeout.

    A blocking MPI call cannot be left otherwise. The launcher, or our agent, then ends the other ranks.
    """

    def __init__(self) -> None:
        self._running: dict[LaneWork, float] = {}
        self._thread: threading.Thread | None = None

    def enter(self, work: LaneWork) -> None:
        self._running[work] = time.monotonic() + work.timeout_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="seatrial MPI watchdog", daemon=True)
            self._thread.start()

    def leave(self, work: LaneWork) -> None:
        self._running.pop(work, None)

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCH_S)
            now = time.monotonic()
            for work, until in list(self._running.items()):
                if now > until:
                    print(f"seatrial: {_timed_out(work.name, work.timeout_s)}; this rank ends.", file=sys.stderr)
                    sys.stderr.flush()
                    os._exit(1)


_WATCHDOG = _Watchdog()
