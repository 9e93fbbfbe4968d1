"""/proc of ourselves, of a stopped child and of one that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from seatrial.probe.process import core_waits, num_cores, read_process, wchan


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    # Its name has a space and a parenthesis, as a command may.
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) (b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _wait_for(pid: int, state: str) -> None:
    give_up = time.monotonic() + 10
    while (seen := read_process(pid)) is None or seen.state != state:
        assert time.monotonic() < give_up, seen
        time.sleep(0.005)


def test_we_ourselves_run_and_use_cpu_time() -> None:
    before = read_process(os.getpid())
    assert before is not None
    while (now := read_process(os.getpid())) is None or now.cpu_s < before.cpu_s + 0.02:
        pass
    assert now.state == "R"
    assert now.cpu_s == pytest.approx(time.process_time(), abs=0.2)


def test_a_child_sleeps_stops_and_goes(child: subprocess.Popen[bytes]) -> None:
    _wait_for(child.pid, "S")
    child.send_signal(signal.SIGSTOP)
    _wait_for(child.pid, "T")
    child.kill()
    _wait_for(child.pid, "Z")
    child.wait()
    assert read_process(child.pid) is None
    assert wchan(child.pid) == ""
    assert (core_waits(child.pid), num_cores(child.pid)) == ({}, 0)


def test_wchan_is_a_name_or_nothing(child: subprocess.Popen[bytes]) -> None:
    _wait_for(child.pid, "S")
    name = wchan(child.pid)
    assert name == name.strip()
    assert not name.isdigit()


def test_the_cores_that_threads_are_bound_to_count_together() -> None:
    """A library may bind each of its threads to another core, the main thread included."""
    cores, is_over, bound = os.sched_getaffinity(0), threading.Event(), threading.Event()

    def work() -> None:
        os.sched_setaffinity(threading.get_native_id(), {max(cores)})
        bound.set()
        is_over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert bound.wait(10)
        os.sched_setaffinity(os.getpid(), {min(cores)})
        assert num_cores(os.getpid()) >= len({min(cores), max(cores)})
        waits = core_waits(os.getpid())
        assert not waits or waits.keys() >= {str(os.getpid()), str(thread.native_id)}
    finally:
        os.sched_setaffinity(os.getpid(), cores)
        is_over.set()
        thread.join()
