"""Agents that joined and send more than any check needs."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest
from by_day import by_day
from conductor.served import served as _served
from conductor.stub_agent import RUN, TOKEN, StubAgent
from event_streams import event_of
from foreign_lines import line_of, nested, parts_of

from seatrial.conductor import base, event_allowance, hang_detector, peer
from seatrial.protocol.events import Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import encode


@pytest.fixture(autouse=True)
def _small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_detector, "GRACE_S", 0.1)
    monkeypatch.setattr(event_allowance, "BURST_BYTES", 400_000)
    monkeypatch.setattr(event_allowance, "BYTES_PER_S", 0)


@pytest.mark.parametrize("kind", by_day(["progress", "x"]))
def test_an_agent_that_floods_what_is_no_event_is_ended(kind: str) -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            for _ in range(100):
                agent.send({"kind": kind, "x": "x" * 50_000})
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert "it sent more events than any check needs" in seen["detail"]


@pytest.mark.parametrize("kind", by_day(["status", "x"]))
@pytest.mark.parametrize("depth", [1, 90], ids=["sound", "too deep"])
def test_large_messages_count_before_they_are_decoded(depth: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not kept may be sent without end, but decoding it takes time, in which nobody else is heard."""
    monkeypatch.setattr(peer, "_LARGE_BYTES", 40_000)
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            for _ in range(100):
                deep, long = "[" * depth + "]" * depth, "y" * 50_000
                agent.send_lines(parts_of(f'{{"kind":"{kind}","ranks":{{}},"x":{deep},"y":"{long}"}}'))
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert (seen["node"], seen["how"]) == (0, "lost")
    assert "it sent more events than any check needs" in seen["detail"]


def test_a_message_that_no_other_one_can_hold_is_damage_of_its_node() -> None:
    """The first pod holds it in another one, which the controller outside could not read: it read the log again."""
    output = {"kind": "output", "gen": 0, "rank": 0, "lines": [], "left_out": 0, "x": nested(62)}
    with _served() as served:
        agent = StubAgent(served.server.port)
        agent.send(output, output)
        agent.serve()
        served.over()
    assert served.server.damaged == 2
    (note,) = [event for event in served.events if event["kind"] == "note"]
    assert (note["severity"], note["text"].partition(",")[0]) == ("error", "node 0 sent a line that is cut or changed")


def test_an_agent_that_sends_damage_without_end_is_ended() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            agent.send_lines(line_of('{"kind":"status","x":' + "[" * 90 + "]" * 90 + "}") * 1_000)
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert "it sent more events than any check needs" in seen["detail"]
    assert served.server.damaged < 1_000


_PART, *_ = encode({"kind": "x", "x": "x" * 5_000})


@pytest.mark.parametrize(
    "line",
    by_day([b"\n", b"words of a login script\n", _PART, b"@seatrial1 \n"], 0, 2),
    ids=["empty", "foreign", "part", "damaged"],
)
def test_an_agent_that_sends_no_messages_without_end_is_ended(line: bytes) -> None:
    """A read brings so many empty lines that time passes unnoticed, and the deadlines of all move."""
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            agent.send_lines(line * 50)
            agent.send_lines(line * 1_000)
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert "it sent more events than any check needs" in seen["detail"]


def test_messages_of_many_parts_do_not_count_as_lines_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "END_S", 1.0)
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket:
            for _ in range(100):
                agent.send({"kind": "status", "ranks": {}, "x": "x" * 50_000})
            agent.send(event_of(Source(RUN, "node0"), "note", severity="info", text="all of them came"))
            while not any(event["src"] == "node0" for event in served.events):
                assert not any(event["kind"] == "trouble" for event in served.events)
                time.sleep(0.01)


def test_parts_that_came_before_an_agent_joined_give_nothing_back() -> None:
    """Over ssh anything may come before: they counted nowhere."""
    messages = [encode({"kind": "status", "ranks": {}, "x": f"{number:060000}"}) for number in range(30)]
    with _served() as served:
        ours, theirs = socket.socketpair()
        served.server.attach(ours, b"", 0)
        with theirs, theirs.makefile("rb") as lines, contextlib.suppress(OSError):
            theirs.sendall(b"".join(line for parts in messages for line in parts[:-1]))
            theirs.sendall(b"".join(encode({"kind": "hello", "nonce": "n", "node_rank": 0})))
            challenge = json.loads(lines.readline().split(b" ", 2)[2])["challenge"]
            theirs.sendall(b"".join(encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, 0)})))
            for parts in messages:
                theirs.sendall(b"\n" * 25 + parts[-1])
            theirs.sendall(b"".join(encode(event_of(Source(RUN, "node0"), "note", severity="info", text="all came"))))
            theirs.settimeout(20.0)
            while lines.readline():
                pass
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert "it sent more events than any check needs" in seen["detail"]


@pytest.mark.parametrize("text_chars", by_day([100, 50_000], 1), ids=["short", "split"])
def test_an_agent_that_floods_its_events_is_ended(text_chars: int) -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        source = Source(RUN, "node0")
        with agent.socket, contextlib.suppress(OSError):
            while True:
                agent.send(event_of(source, "note", severity="info", text="x" * text_chars))
        served.over()
    (seen,) = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert (seen["node"], seen["how"]) == (0, "lost")
    assert "it sent more events than any check needs" in seen["detail"]
    lines = [encode(event) for event in served.events if event["src"] == "node0"]
    text_bytes = sum(len(line) for parts in lines for line in parts)
    assert 100_000 < text_bytes < 820_000
