"""Contention: the kernel's counters of this process, and gauges made by hand."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time

import pytest

from seatrial.probe import cgroup
from seatrial.probe.cgroup import Throttling
from seatrial.probe.contention import Contention, CpuTime, counters
from seatrial.probe.gpu_gauges import REASONS

_BLOCK = bytes(1 << 20)
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters are Linux's")


def test_what_this_process_used_and_its_cores_did_is_counted() -> None:
    contention = Contention(None)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    with contention:
        changes = contention.so_far()
    of_quotas = {"throttled_s", "below_quota_s"}
    assert {"wall_s", "cpu_s", "waited_s", "busy_s", "steal_s", "major_faults"} <= changes.keys()
    assert changes.keys() - of_quotas <= counters().keys()
    assert changes["cpu_s"] >= 0.05
    assert changes["wall_s"] > 0
    assert all(value >= 0 for value in changes.values())


def test_a_busy_thread_of_a_library_is_no_core_for_those_that_compute() -> None:
    """Whoever asks a store of torch gives work to its thread, and the process has used all of its core all the same."""
    if "waited_s" not in counters():
        pytest.skip("this kernel does not count how long a thread waits for a core")
    cores, is_over = os.sched_getaffinity(0), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            hashlib.sha256(_BLOCK)  # without the lock of Python

    os.sched_setaffinity(0, {min(cores)})
    store = threading.Thread(target=work)
    try:
        store.start()
        cpu, until = CpuTime(), time.process_time() + 0.6
        while time.process_time() < until:
            hashlib.sha256(_BLOCK)
        share = cpu.share(1)
    finally:
        is_over.set()
        store.join()
        os.sched_setaffinity(0, cores)
    assert share < 0.75


@pytest.mark.parametrize("before_s", [0.0, 1.5])
def test_a_group_counts_for_the_time_in_which_it_was_stopped(monkeypatch: pytest.MonkeyPatch, before_s: float) -> None:
    """A group above may have been stopped for longer, long ago; and most groups are never stopped."""
    above = Throttling(90.0, 500.0)
    monkeypatch.setattr(cgroup, "throttling", lambda: {"own": Throttling(before_s, 2.0), "above": above})
    contention, calm = Contention(None), Contention(None)
    assert (calm.so_far()["throttled_s"], calm.so_far()["below_quota_s"]) == (0.0, 0.0)
    monkeypatch.setattr(cgroup, "throttling", lambda: {"own": Throttling(before_s + 6.0, 6.0), "above": above})
    changes = contention.so_far()
    assert (changes["throttled_s"], changes["below_quota_s"]) == (6.0, 4.0)


def test_a_counter_that_was_not_there_before_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatrial.probe.contention.counters", lambda: {"wall_s": 0.0, "of another kernel": 1.0})
    contention = Contention(None)
    monkeypatch.setattr("seatrial.probe.contention.counters", counters)
    assert contention.so_far().keys() - {"throttled_s", "below_quota_s"} == {"wall_s"}


def read_to_the_end(*readings: dict[str, float]) -> dict[str, float]:
    """What comes of these readings of a GPU, one after the other."""
    left, all_read = list(readings), threading.Event()

    def gauges() -> dict[str, float]:
        if left:
            return left.pop(0)
        all_read.set()
        return {}

    contention = Contention(gauges)
    with contention:
        assert all_read.wait(10.0)
    return {name: value for name, value in contention.so_far().items() if name.startswith("gpu_")}


def test_gpu_samples_give_median_clock_maxima_and_reason_shares() -> None:
    changes = read_to_the_end(
        {"gpu_mhz": 1980.0, "gpu_celsius": 50.0, "gpu_limit_w": 700.0, "reasons": 0x0},
        {"gpu_mhz": 1200.0, "gpu_celsius": 88.0, "gpu_limit_w": 700.0, "reasons": 0x40 | 0x8},
        {"gpu_mhz": 1215.0, "gpu_celsius": 70.0, "gpu_limit_w": 700.0, "reasons": 0x40 | 0x1000},
        {"gpu_mhz": 1200.0, "gpu_celsius": 70.0, "gpu_limit_w": 700.0, "reasons": 0x4},
    )
    assert changes.pop("gpu_mhz") == pytest.approx(1215)
    assert (changes.pop("gpu_celsius"), changes.pop("gpu_limit_w")) == (88, 700)
    assert changes == {**dict.fromkeys(REASONS.values(), 0), "gpu_hw_thermal": 0.5, "gpu_hw_slowdown": 0.25} | {
        "gpu_power_cap": 0.25
    }


def test_an_idle_gpu_gives_no_sample() -> None:
    assert read_to_the_end({"gpu_mhz": 210.0, "reasons": 0x1}, {"gpu_celsius": 40.0}) == {}


def test_readings_add_up_over_several_times() -> None:
    asked = threading.Semaphore(0)

    def gauges() -> dict[str, float]:
        asked.release()
        return {"gpu_mhz": 1000.0, "gpu_processes": 2.0}

    contention = Contention(gauges)
    for _ in range(2):
        with contention:
            assert asked.acquire(timeout=10.0)
    before = threading.active_count()
    changes = contention.so_far()
    assert {name: value for name, value in changes.items() if name.startswith("gpu_")} == {
        "gpu_mhz": 1000,
        "gpu_processes": 2,
    }, "the reasons that limit its clock are not known"
    assert threading.active_count() == before


@pytest.mark.parametrize("wait_s", [30.0])
def test_a_driver_that_does_not_answer_delays_nothing(wait_s: float) -> None:
    asked, never = threading.Event(), threading.Event()

    def gauges() -> dict[str, float]:
        asked.set()
        never.wait(wait_s)
        return {}

    started = time.monotonic()
    contention = Contention(gauges)
    with contention:
        assert asked.wait(10.0)
    assert "gpu_mhz" not in contention.so_far()
    assert time.monotonic() - started < wait_s
    never.set()
