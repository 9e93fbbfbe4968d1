"""Only time in which this process did not run is a pause of it, and no wait goes on in a pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

from seatrial.conductor import pauses
from seatrial.conductor.pauses import Pauses

_STOPPED = """
import sys, time
from seatrial.conductor.pauses import Pauses
watch = Pauses()
with watch.watched():
    print("begun", flush=True)
    sys.stdin.readline()
    print(watch.missed_s(), watch.missed_s())
"""


def test_a_stopped_process_was_paused() -> None:
    with subprocess.Popen([sys.executable, "-c", _STOPPED], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.5)
        print("", file=child.stdin, flush=True)
        missed_s, again_s = map(float, child.stdout.readline().split())
    assert 2.5 < missed_s < 5.0
    assert again_s == 0.0


@pytest.mark.parametrize("does", ["waits for a disk", "thinks"])
def test_a_process_that_works_was_not_paused(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_BEAT_S", 0.02)
    monkeypatch.setattr(pauses, "_PAUSED_S", 1.0)
    watch = Pauses()
    with watch.watched():
        if does == "thinks":
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                sorted(range(1_000))
        else:
            time.sleep(2.0)
        assert watch.missed_s() == 0.0


def test_after_a_pause_the_first_error_waits_for_others() -> None:
    """What came meanwhile is read now."""
    stays = [Act(at_s=500.0, what="exit")]
    acts = {(0, rank): stays if rank else [Act(at_s=5.0, what="exit", code=1)] for rank in range(4)}
    fleet = SimulatedProgram(config(), acts)
    while 0 not in fleet.conductor._exits:
        fleet.act_next()
    fleet.conductor.paused(100.0)
    later = fleet.now + 100.0
    assert not fleet.conductor.tick(later + 0.5, later + 0.5).events
    assert [event["kind"] for event in fleet.conductor.tick(later + 1.1, later + 1.1).events] == ["trouble"]
