"""The kernel's counters of this very process."""

from __future__ import annotations

import sys
import time

import pytest

from seatrial.probe.contention import counters, since

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters are Linux's")


def test_what_this_process_used_and_its_cores_did_is_counted() -> None:
    before = counters()
    assert {"wall_s", "cpu_s", "waited_s", "busy_s", "steal_s", "major_faults"} <= before.keys()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    told = since(before)
    assert told["cpu_s"] >= 0.05
    assert told["wall_s"] > 0
    assert all(value >= 0 for value in told.values())


def test_a_counter_that_was_not_there_before_is_left_out() -> None:
    assert since({"wall_s": 0.0, "of another kernel": 1.0}).keys() == {"wall_s"}
