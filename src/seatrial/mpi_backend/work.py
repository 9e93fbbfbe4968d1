"""Operations in flight: a caller can wait for them, poll them, or take a future."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

_SPIN_S = 50e-6
"""Time for which a request is polled without a pause: small messages take less."""
_LONGEST_SLEEP_S = 1e-3
_abandoned: list[Any] = []
"""Works with requests that are still open, whose memory must stay: a message may arrive until the process ends."""
_future_lock = threading.Lock()
"""Serializes requests for a future with the end of an operation. One lock for all works: it is held only briefly."""


def wait_until(test: Callable[[], bool], timeout_s: float) -> bool:
    """Poll ``test`` until it is true (return True) or the time is over (return False).

    Without pauses at first, then with pauses of up to a millisecond.
    """
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


def timed_out(name: str, timeout_s: float) -> Exception:
    """Return the error for a wait that took too long."""
    return dist.DistBackendError(f"MPI {name} timed out waiting {timeout_s:g} s for the other ranks of its group")


def _seconds(timeout: Any, default_s: float) -> float:
    """Return the seconds of a timeout from torch; zero, or no timedelta, means that the caller gave none."""
    named_s = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return named_s if named_s > 0 else default_s


class FinishedWork(Work):
    """A collective that has already ended. torch drops it at once."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed


class LaneWork(Work):
    """A collective of a lane (``lane.py``)."""

    def __init__(
        self,
        name: str,
        operation: Callable[[], None],
        result: Sequence[Tensor],
        timeout_s: float,
        keep: Sequence[Any] = (),
    ) -> None:
        """``keep``: objects whose memory only MPI refers to, by its address."""
        super().__init__()
        self.name = name
        self.timeout_s = timeout_s
        self._operation: Callable[[], None] | None = operation
        self._keep = keep
        self._result = result
        self._error: BaseException | None = None
        self._future: Any = None
        self._done = False
        # Locked until it is done: an Event costs three times as much, and one is made for each collective.
        self._running = threading.Lock()
        self._running.acquire()

    def execute(self) -> None:
        """Run the operation in this thread and raise what it raises; wake the waiting callers."""
        assert self._operation is not None
        try:
            self._operation()
        except BaseException as error:
            self._finish(error)
            raise
        self._finish(None)

    def refuse(self, error: Exception) -> None:
        """End the operation with this error, without running it."""
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        self._error = error
        self._operation, self._keep = None, ()
        with _future_lock:
            self._done = True
            has_future = self._future is not None
        self._running.release()
        if has_future:
            # In another thread: a callback may wait for a collective that is queued behind this one.
            _in_background(self._complete)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is done. Raises what the operation raised, or DistBackendError when the time is over."""
        if not self._done:
            timeout_s = _seconds(timeout, self.timeout_s)
            if not self._running.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
                raise timed_out(self.name, timeout_s)
            self._running.release()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        self.wait()
        return list(self._result)

    def get_future(self) -> Any:
        """Return a torch future of the result tensors."""
        with _future_lock:
            first = self._future is None
            if first:
                self._future = torch.futures.Future()
            done = self._done
        if first and done:
            self._complete()
        return self._future

    def _complete(self) -> None:
        _fulfil(self._future, list(self._result), self._error)


class RequestWork(Work):
    """Sends or receives, each an MPI request. Tensors and buffers stay alive with it."""

    def __init__(
        self,
        name: str,
        requests: Sequence[Any],
        *,
        keep: Sequence[Any],
        result: Sequence[Tensor],
        finish: Callable[[], None],
        timeout_s: float,
        status: Any,
        threads: bool,
        settled: Callable[[RequestWork], None],
    ) -> None:
        """Start to track the requests.

        Args:
            name: Name of the operation, for messages.
            requests: The MPI requests.
            keep: Buffers that MPI uses until the requests are done.
            result: The caller's tensors.
            finish: Called once when all requests are done; copies received values back.
            timeout_s: Seconds that ``wait`` waits when it is given no timeout.
            status: An ``MPI.Status``.
            threads: Whether another thread may poll the requests as well.
            settled: Called once when nothing is in flight any more.
        """
        super().__init__()
        self.name = name
        self._requests = deque(requests)
        self._keep: Sequence[Any] = keep
        self._result = list(result)
        self._finish: Callable[[], None] = finish
        self._timeout_s = timeout_s
        self._status = status
        self._threads = threads
        self._settled = settled
        self._future: Any = None
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
                    self._requests.popleft()
                self._finish()
            except Exception as error:
                self._error = error
            self._done, self._keep = True, ()
        self._settled(self)
        return True

    def abandon(self) -> None:
        """Stop polling: MPI must not be called about these requests any more. It may still write to their memory."""
        with self._lock:
            if not self._done:
                _abandoned.append(self)
                self._done, self._error = True, RuntimeError(f"MPI {self.name}: its group was destroyed")

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is done. Raises what MPI raised, or DistBackendError when the time is over."""
        timeout_s = _seconds(timeout, self._timeout_s)
        if not wait_until(self._test, timeout_s):
            raise timed_out(self.name, timeout_s)
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
        """Return the group rank that sent the received message."""
        return int(self._status.Get_source())

    _source_rank = source_rank

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """Return a torch future of the tensors. A thread waits for it, since MPI calls nobody back."""
        with self._lock:
            first = self._future is None
            if first:
                self._future = torch.futures.Future()
        if first and self._threads:
            _in_background(self._complete)
        elif first:
            self._complete()
        return self._future

    def _complete(self) -> None:
        error: Exception | None = None
        try:
            self.wait()
        except Exception as raised:
            error = raised
        _fulfil(self._future, self._result, error)


def _fulfil(future: Any, result: list[Tensor], error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _in_background(task: Callable[[], None]) -> None:
    """Run a task in a separate thread: it may wait for another such task."""
    thread = threading.Thread(target=task, name="seatrial MPI future", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, or the system has no more threads
        task()
