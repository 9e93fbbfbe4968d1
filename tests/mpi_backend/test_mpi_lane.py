"""The order of collectives and the works that callers get, without MPI: the operations here are functions."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch

from seatrial.mpi_backend.lane import Lane, Watchdog
from seatrial.mpi_backend.work import LaneWork, RequestWork


@pytest.fixture(autouse=True, scope="module")
def watchdog() -> None:
    """Its thread lives as long as the process, so it is started before the first test."""
    Watchdog()


@pytest.fixture
def lane() -> Iterator[Lane]:
    made = Lane(threads=True)
    yield made
    made.close(10)


def collective(operation: Callable[[], object], timeout_s: float = 10) -> LaneWork:
    def run() -> None:
        operation()

    return LaneWork("all_reduce", run, [torch.ones(2)], timeout_s)


def queued(lane: Lane, operation: Callable[[], object], timeout_s: float = 10) -> LaneWork:
    work = collective(operation, timeout_s)
    lane.submit(work)
    return work


def here(lane: Lane, operation: Callable[[], object]) -> bool:
    def run() -> None:
        operation()

    return lane.execute("all_reduce", run, lambda: 10)


def test_collectives_run_in_the_order_in_which_they_were_asked_for(lane: Lane) -> None:
    ran: list[int] = []
    gate = threading.Event()
    works = [queued(lane, gate.wait)]
    for number in range(20):
        assert not here(lane, partial(ran.append, -1))  # others come before it
        works.append(queued(lane, partial(ran.append, number)))
    assert ran == []
    gate.set()
    for work in reversed(works):
        assert work.wait()
    assert ran == list(range(20))


def test_a_blocking_call_runs_in_its_thread_if_the_queue_is_empty(lane: Lane) -> None:
    threads: list[threading.Thread] = []
    note = lambda: threads.append(threading.current_thread())  # noqa: E731
    assert here(lane, note)
    queued(lane, note).wait()
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threads[0]


def test_while_one_runs_in_the_callers_thread_those_of_others_wait(lane: Lane) -> None:
    ran: list[str] = []
    later: list[LaneWork] = []

    def first() -> None:
        later.append(queued(lane, lambda: ran.append("second")))
        assert not later[0].is_completed()
        assert not here(lane, lambda: ran.append("never"))
        time.sleep(0.02)
        ran.append("first")

    assert here(lane, first)
    assert later[0].wait()
    assert ran == ["first", "second"]


def test_without_threads_all_run_in_the_callers() -> None:
    alone = Lane(threads=False)
    assert queued(alone, lambda: None).is_completed()
    with pytest.raises(RuntimeError, match="two threads call an MPI that supports only one"):
        here(alone, lambda: queued(alone, lambda: None))
    assert not alone.close(1)


def test_after_a_failure_what_was_queued_and_what_comes_is_refused(lane: Lane) -> None:
    gate = threading.Event()
    ran: list[int] = []

    def fail() -> None:
        gate.wait()
        raise OSError("planted")

    first = queued(lane, fail)
    second = queued(lane, lambda: ran.append(2))
    gate.set()
    with pytest.raises(OSError, match="planted"):
        first.wait()
    with pytest.raises(RuntimeError, match=r"an earlier all_reduce of this group failed \(planted\)"):
        second.wait()
    for give in (here, queued):
        with pytest.raises(RuntimeError, match="the ranks may be in different collectives"):
            give(lane, lambda: ran.append(3))
    assert (ran, lane.close(10)) == ([], False)


def test_what_runs_in_the_callers_thread_raises_there_and_nothing_follows(lane: Lane) -> None:
    with pytest.raises(ZeroDivisionError):
        here(lane, lambda: 1 // 0)
    with pytest.raises(RuntimeError, match=r"an earlier all_reduce of this group failed"):
        here(lane, lambda: None)


def test_a_closed_lane_ends_what_it_has_and_takes_nothing_more(lane: Lane) -> None:
    work = queued(lane, lambda: time.sleep(0.05))
    assert lane.close(10)
    assert work.is_success()
    with pytest.raises(RuntimeError, match="its group was destroyed"):
        here(lane, lambda: None)


def test_a_lane_that_is_stuck_says_so_when_it_is_closed(lane: Lane) -> None:
    gate = threading.Event()
    queued(lane, gate.wait)
    assert not lane.close(0.01)
    gate.set()


def test_a_wait_ends_at_its_timeout_and_the_work_goes_on(lane: Lane) -> None:
    gate = threading.Event()
    work = queued(lane, gate.wait, timeout_s=0.02)
    for timeout in (None, timedelta(0), timedelta(milliseconds=10)):
        with pytest.raises(RuntimeError, match=r"MPI all_reduce timed out waiting 0.0[12] s"):
            work.wait(timeout)
    assert not work.is_completed()
    gate.set()
    assert work.wait(timedelta(seconds=10))
    assert (work.is_success(), work.exception()) == (True, None)


def test_a_future_has_the_result_or_the_error(lane: Lane) -> None:
    work = queued(lane, lambda: None)
    assert torch.equal(work.get_future().wait()[0], torch.ones(2))
    assert work.get_future() is work.get_future()
    failed = queued(lane, lambda: 1 // 0).get_future()
    with pytest.raises(ZeroDivisionError):
        failed.wait()


def test_a_callback_may_wait_for_collectives_that_come_after_its_own(lane: Lane) -> None:
    gate = threading.Event()
    futures = [queued(lane, gate.wait).get_future() for _ in range(4)]

    def nested(done: Any) -> int:
        for later in futures[1:]:
            later.wait()
        queued(lane, lambda: None).get_future().wait()
        return 7

    chained = futures[0].then(nested)
    gate.set()
    assert chained.wait() == 7


class RequestDouble:
    """Stands in for ``MPI.Request``: it is done when it has been asked often enough."""

    def __init__(self, asked: int) -> None:
        self.left = asked

    def Test(self, status: object) -> bool:  # noqa: N802
        self.left -= 1
        return self.left < 0


def message(asked: int, settled: list[RequestWork], finish: Callable[[], None] = lambda: None) -> RequestWork:
    return RequestWork(
        "recv",
        [RequestDouble(asked)],
        keep=(),
        result=[torch.ones(1)],
        finish=finish,
        timeout_s=0.05,
        status=None,
        threads=True,
        settled=settled.append,
    )


def test_a_message_is_brought_back_once_however_often_it_is_asked_for() -> None:
    settled: list[RequestWork] = []
    finished: list[int] = []
    work = message(3, settled, lambda: finished.append(1))
    assert not work.is_completed()
    assert work.wait()
    assert work.wait()
    assert work.is_success()
    assert torch.equal(work.get_future().wait()[0], torch.ones(1))
    assert (finished, set(settled)) == ([1], {work})


def test_the_memory_of_an_abandoned_message_stays_as_mpi_may_write_to_it() -> None:
    """A rank may send it after its receiver has destroyed the group."""
    work = message(1_000_000, [])
    host = torch.ones(3)
    work._keep = [host]
    alive = weakref.ref(host)
    work.abandon()
    del work, host
    gc.collect()
    assert alive() is not None


def test_a_message_that_does_not_come_times_out_and_can_be_abandoned() -> None:
    work = message(10**9, [])
    future = work.get_future()
    with pytest.raises(RuntimeError, match=r"MPI recv timed out waiting 0.05 s"):
        work.wait()
    with pytest.raises(RuntimeError, match="timed out"):
        future.wait()
    work.abandon()
    with pytest.raises(RuntimeError, match="its group was destroyed"):
        work.wait()
