"""Only time in which this process did not run is a pause of it, and no wait goes on in a pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from by_day import by_day
from conductor.simulated_program import Act, SimulatedProgram, config
from event_streams import event_of

from seatrial.conductor import clock, pauses
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


@pytest.mark.parametrize("does", by_day(["waits for a disk", "thinks"]))
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


@pytest.mark.parametrize(("used_s", "missed_s"), [(4.0, 0.0), (0.1, 4.9)])
def test_a_message_that_keeps_all_threads_waiting_is_no_pause(
    used_s: float, missed_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoding of a large one takes seconds of CPU time."""
    times = {"clock": 10.0, "cpu": 1.0}
    monkeypatch.setattr(pauses, "clock_s", lambda: times["clock"])
    monkeypatch.setattr(pauses, "time", SimpleNamespace(process_time=lambda: times["cpu"]))
    watch = Pauses()
    times["clock"] += 5.0
    times["cpu"] += used_s
    assert watch.missed_s() == pytest.approx(missed_s)


def test_a_machine_that_slept_was_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC of Linux stands still meanwhile."""
    asleep_s = 0.0

    def read(number: int) -> float:
        return time.monotonic() + (asleep_s if number == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(clock, "time", SimpleNamespace(clock_gettime=read))
    watch = Pauses()
    assert watch.missed_s() == 0.0
    asleep_s = 300.0
    assert 299.0 < watch.missed_s() < 301.0


def test_the_conductor_has_one_clock() -> None:
    root = Path(pauses.__file__).parent
    assert [path.name for path in root.rglob("*.py") if "time.monotonic()" in _code(path)] == []


def _code(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))


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


class _Busy(SimulatedProgram):
    """Under a controller that is busy with something else from 10 s until 45 s."""

    def _tick(self) -> None:
        if 10.0 <= self.now < 45.0:
            self.later(0.25, self._tick)
        else:
            super()._tick()


def _end_agents(fleet: SimulatedProgram, *nodes: int) -> None:
    """As agents do that hear nothing for 30 s."""
    for node in nodes:
        for number, rank in list(fleet.agents[node].ranks.items()):
            rank.signaled = True
            fleet._act(rank, number, Act(at_s=0.0, what="exit", code=-9))
        fleet.say(node, event_of(fleet.agents[node].source, "end"))
        fleet.agents[node].open = False


_RUNS = [Act(at_s=100.0, what="exit")]


@pytest.mark.parametrize("ended", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("followed", [False, True])
def test_agents_that_a_busy_controller_left_alone_are_not_named(*, ended: tuple[int, ...], followed: bool) -> None:
    """Its disk answered nothing for 35 s, and a healthy node was named as lost."""
    acts = {(0, rank): _RUNS for rank in range(4)}
    if followed:  # A rank of another node complains of those that its agent ended.
        acts[(0, 1)] = [Act(at_s=41.2, what="exit", code=1, last=("RuntimeError: Connection closed by peer",))]
    at_s = [(41.0, lambda fleet: _end_agents(fleet, *ended))]
    outcome = _Busy(config(watched=False), acts, at_s=at_s, unread=(10.0, 35.0)).run()
    assert outcome["how"] == "failed"
    assert outcome["text"].startswith("this controller sent nothing to the agents for 3")
    assert "node" not in outcome["text"]
    assert "rank " not in outcome["text"]


def test_a_rank_that_fails_while_the_controller_is_busy_is_named() -> None:
    acts = {(0, rank): _RUNS for rank in range(4)}
    acts[(0, 2)] = [Act(at_s=20.0, what="exit", code=-11)]
    at_s = [(41.0, lambda fleet: _end_agents(fleet, 0, 1))]
    outcome = _Busy(config(watched=False), acts, at_s=at_s, unread=(10.0, 35.0)).run()
    assert outcome["text"].startswith("rank 2 on node n1 was killed by signal 11")


def test_a_node_that_is_lost_later_is_named() -> None:
    acts = {(0, rank): _RUNS for rank in range(4)}
    outcome = _Busy(config(watched=False), acts, at_s=[(70.0, lambda fleet: fleet.lose(1))], unread=(10.0, 35.0)).run()
    assert outcome["text"] == "node 1 (n1) was lost: the control connection was closed"
