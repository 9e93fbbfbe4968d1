"""What lies unread while the controller reads what others sent makes nobody silent, still or late."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from by_day import by_day
from conductor.served import Served
from conductor.served import served as _served
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_program import Act, SimulatedProgram, config
from conductor.simulated_records import STEPS, Planted, RunRecord
from conductor.simulated_statuses import AttendedDetector
from conductor.stub_agent import StubAgent
from conductor.test_steps_of_agents import OF_AGENTS
from event_streams import event_of

from seatrial.conductor import base
from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.rank_status import Ahead, find_ahead
from seatrial.conductor.steps import StepPlan
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.protocol.wire import encode

_LINES_OF_OUTPUT = encode({"kind": "output"})
_ONE_STEP = (StepPlan(check="compute", scope="alone", timeout_s=30.0),)


def _run(*planted: Planted, unread: tuple[float, float], nodes: int = 3) -> RunRecord:
    return SimulatedFleet(nodes=nodes, steps=(*OF_AGENTS, *STEPS), planted=planted, unread=unread).run()


@pytest.mark.parametrize("for_s", [20.0, 50.0])
def test_no_length_of_a_round_blames_anybody(for_s: float) -> None:
    for tenths in range(22, 80, 7):  # all have joined: who has not hears no heartbeat
        record = _run(unread=(tenths / 10, for_s))
        assert (record.seen(), [event["outcome"] for event in record.of("step_end")]) == (
            [],
            ["done"] * (len(OF_AGENTS) + len(STEPS)),
        ), f"from {tenths / 10} s on"
        assert blame(fold(record.events)) == ()


@pytest.mark.parametrize("kind", ["dead", "stopped", "absent", "agent-lost", "agent-silent"])
@pytest.mark.parametrize("for_s", [12.0, 50.0])
def test_a_fault_is_found_alone_whatever_lies_unread(kind: Any, for_s: float) -> None:
    for at_s in range(2, 40, 6):
        record = _run(Planted(kind=kind, rank=2, at=4), unread=(float(at_s), for_s), nodes=4)
        assert {place for _, place in record.seen("dead", "frozen", "absent", "lost", "silent", "late")} == {2}, at_s


def _two_of_three_go_on(at: float, until: float, says: str) -> HangDetector:
    """All enter a phase at 1 s and the next one together. What two of them say then was read, and nothing of the third.

    ``at``: when they go on. ``until``: the deadline of the step.
    """
    detector = AttendedDetector({0: "a", 1: "b", 2: "c"}, 0.0, 0.0)
    detector.begin((0, 1, 2), until, 0.0, together=False)
    for rank in range(3):
        detector.statuses[rank].update(("S", 1.0, 1, "phase"), 1.0)
    for rank in (0, 1):
        detector.statuses[rank].update(("S", 1.0, 2, "next"), at)
        if says == "done":
            detector.finished(rank, at)
    return detector


def test_a_rank_is_not_absent_while_its_words_lie_unread() -> None:
    detector = _two_of_three_go_on(19.5, 60.0, "done")
    assert detector.poll(18.0) is None
    assert detector.poll(19.6) == "trouble"
    assert [(suspicion.how, suspicion.rank) for suspicion in detector.suspicions] == [("absent", 2)]


@pytest.mark.parametrize("says", ["done", "phase"])
def test_others_that_go_on_after_a_deadline_make_no_rank_late(says: str) -> None:
    detector = _two_of_three_go_on(4.5, 4.0, says)
    assert detector.poll(4.1) == "deadline"
    assert {suspicion.how for suspicion in detector.suspicions} == {"working"}


def test_others_that_go_on_later_are_not_ahead() -> None:
    detector = _two_of_three_go_on(19.5, 60.0, "phase")
    hosts = {0: "a", 1: "b", 2: "c"}
    assert find_ahead(detector.statuses, detector.waiting(), hosts, 19.4) == Ahead(furthest=0)
    assert find_ahead(detector.statuses, detector.waiting(), hosts, 19.5) == Ahead(furthest=2)


@pytest.mark.parametrize("for_s", [20.0, 50.0])
def test_no_length_of_a_round_loses_a_node_of_a_program(for_s: float) -> None:
    works = [Act(at_s=30.0, what="result"), Act(at_s=31.0, what="exit")]
    for at_s in range(2, 32, 6):
        script = {(0, rank): works for rank in range(4)}
        fleet = SimulatedProgram(config(), script, unread=(float(at_s), for_s))
        assert fleet.run()["how"] == "ended", f"from {at_s} s on"


def _slow(served: Served, message_s: float) -> None:
    """Taking in a report about output takes as long, as on a slow disk."""
    served.server._on_message = lambda message: time.sleep(message_s if message["kind"] == "output" else 0.0)


@contextlib.contextmanager
def _status_of(agent: StubAgent, ranks: tuple[int, int]) -> Iterator[None]:
    """An honest agent says so often what its ranks do."""
    is_over = threading.Event()

    def say() -> None:
        number = 0
        while not is_over.wait(0.1):
            number += 1
            agent.send(
                {"kind": "status", "ranks": {str(rank): ["R", float(number), number, "p", 0.0] for rank in ranks}}
            )

    thread = threading.Thread(target=say)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10.0)


def _begin(served: Served, nodes: int, stack: contextlib.ExitStack) -> list[StubAgent]:
    """Agents whose ranks are in their first step."""
    agents = [StubAgent(served.server.port, node) for node in range(nodes)]
    for agent in agents:
        stack.enter_context(agent.socket), stack.enter_context(agent._lines)
        agent.send(*agent.answers({"kind": "welcome"}), *agent.answers({"kind": "start_workers"}))
    while "step" not in served.own():
        time.sleep(0.01)
    return agents


def _seen(served: Served) -> list[tuple[int, str]]:
    troubles = [event for event in served.events if event["kind"] == "trouble"]
    return [(entry["node"], entry["how"]) for event in troubles for entry in event["seen"]]


def test_an_agent_is_not_silent_while_its_words_lie_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "NODE_SILENT_S", 1.0)
    with _served(2, _ONE_STEP) as served, contextlib.ExitStack() as stack:
        liar, honest = _begin(served, 2, stack)
        _slow(served, 1.6)
        with _status_of(honest, (2, 3)):
            for _ in range(3):
                liar.send({"kind": "output"})
                time.sleep(1.5)
        assert _seen(served) == []


@pytest.mark.parametrize("says", by_day([b"", b"x"], 1), ids=["nothing", "a line without end"])
def test_an_agent_whose_bytes_make_no_message_is_silent(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "NODE_SILENT_S", 1.0)
    with _served(2, _ONE_STEP) as served, contextlib.ExitStack() as stack:
        mute, honest = _begin(served, 2, stack)
        with _status_of(honest, (2, 3)):
            until = time.monotonic() + 5.0
            while not _seen(served):
                assert time.monotonic() < until
                mute.socket.sendall(says)
                time.sleep(0.002)
        assert _seen(served) == [(0, "silent")]


def test_an_endless_sender_hides_no_silent_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "NODE_SILENT_S", 1.0)
    with _served(2, _ONE_STEP) as served, contextlib.ExitStack() as stack:
        busy, _ = _begin(served, 2, stack)
        until = time.monotonic() + 15.0
        while not _seen(served):
            assert time.monotonic() < until
            busy.send(*[{"kind": "output"}] * 1_000)
        assert _seen(served) == [(1, "silent")]


def test_a_slow_sender_hides_no_silent_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in its socket takes minutes to take in, as on a slow disk."""
    monkeypatch.setattr(base, "NODE_SILENT_S", 3.0)
    with _served(3, _ONE_STEP) as served, contextlib.ExitStack() as stack:
        slow, honest, _ = _begin(served, 3, stack)
        _slow(served, 0.1)
        sends = threading.Thread(target=_send_without_end, args=(slow,))
        sends.start()
        with _status_of(honest, (2, 3)):
            until = time.monotonic() + 20.0
            while not _seen(served):
                assert time.monotonic() < until
                time.sleep(0.01)
        assert _seen(served) == [(2, "silent")]
        served.server._on_message = lambda message: None
        slow.socket.shutdown(socket.SHUT_RDWR)
        sends.join(20.0)


def _send_without_end(agent: StubAgent) -> None:
    with contextlib.suppress(OSError):
        while True:
            agent.send_lines(b"".join(_LINES_OF_OUTPUT * 1_000))


def test_agents_take_turns_and_hear_from_us_meanwhile() -> None:
    """What one of them has sent takes 10 s to take in."""
    with _served(2, _ONE_STEP) as served, contextlib.ExitStack() as stack:
        liar, honest = _begin(served, 2, stack)
        heartbeats: list[float] = []
        hears = threading.Thread(target=_note_heartbeats, args=(honest, heartbeats))
        _slow(served, 0.05)
        liar.send_lines(b"".join(_LINES_OF_OUTPUT * 200))
        time.sleep(0.5)
        began = time.monotonic()
        hears.start()
        honest.send(event_of(honest._node, "note", severity="info", text="heard"))
        while not any(event.get("text") == "heard" for event in served.events):
            assert time.monotonic() < began + 1.0
            time.sleep(0.01)
        time.sleep(5.0)
        was_heard = len(heartbeats)
        served.server._on_message = lambda message: None
        for agent in (liar, honest):
            agent.socket.shutdown(socket.SHUT_RDWR)
        hears.join(20.0)
    assert was_heard >= 2


def _note_heartbeats(agent: StubAgent, times: list[float]) -> None:
    with contextlib.suppress(OSError):
        for message in agent.heard():
            if message["kind"] == "heartbeat":
                times.append(time.monotonic())
