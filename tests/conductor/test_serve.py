"""The server on real sockets, with strangers, liars and agents that leave."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conductor.stub_agent import RUN, TOKEN, StubAgent

from seatrial.conductor.machine import Machine
from seatrial.conductor.records import Config
from seatrial.conductor.serve import Server
from seatrial.conductor.steps import StepPlan
from seatrial.verdict.events import Source
from seatrial.verdict.handshake import proof, proves
from seatrial.verdict.wire import MAX_LINE_BYTES, PREFIX, Decoder, encode

_STEPS = (StepPlan(check="compute", scope="alone"), StepPlan(check="training", scope="world"))
_HELLO = {"kind": "hello", "nonce": "n", "node_rank": 0}
_FULL_HOUSE = 256
"""Strangers that a server keeps at once."""


class _Served:
    """A server in a thread, and what it kept."""

    def __init__(self, nodes: int, steps: tuple[StepPlan, ...]) -> None:
        self.events: list[dict[str, Any]] = []
        self.news: list[str | tuple[int, str]] = []
        self.server = Server("127.0.0.1", TOKEN, self._keep)
        config = Config(
            run=RUN,
            nodes=nodes,
            nproc_per_node=2,
            steps=steps,
            deadline_s=60.0,
            worker={"env": {}},
            suspects=lambda check, events: (),
        )
        machine = Machine(config, time.monotonic())
        arguments = (machine, nodes, Source(RUN, "conductor"), lambda: self.news.pop() if self.news else None)
        self.thread = threading.Thread(target=self.server.serve, args=arguments)

    def _keep(self, event: dict[str, Any]) -> None:
        encode(event)  # as a recorder does, which raises for what JSON does not know
        self.events.append(event)

    def over(self) -> None:
        """It has come to its own end."""
        self.thread.join(20.0)
        assert not self.thread.is_alive()
        assert self.own()[-1] == "end"

    def own(self) -> list[str]:
        """The conductor's own events, by kind."""
        return [event["kind"] for event in self.events if event.get("src") == "conductor"]

    def outcomes(self) -> list[str]:
        """How the steps ended."""
        return [event["outcome"] for event in self.events if event.get("kind") == "step_end"]

    def connect(self) -> socket.socket:
        """A stranger's connection."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20.0)


@contextlib.contextmanager
def _served(nodes: int = 1, steps: tuple[StepPlan, ...] = _STEPS) -> Iterator[_Served]:
    served = _Served(nodes, steps)
    served.thread.start()
    try:
        yield served
    finally:
        served.news.append("the test is over")
        served.thread.join(20.0)


def _is_closed(stranger: socket.socket) -> bool:
    """Wait until it is sent away; it may have been shown a proof, and nothing else."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := stranger.recv(1 << 12):
            heard += piece
    return b"welcome" not in heard


def _line(body: str) -> bytes:
    """What our own encoder would not write."""
    return PREFIX + f"{zlib.crc32(body.encode()):08x} ".encode() + body.encode() + b"\n"


def test_a_trial_goes_through() -> None:
    with _served(nodes=2) as served:
        second = threading.Thread(target=StubAgent(served.server.port, 1).serve)
        second.start()
        StubAgent(served.server.port).serve()
        second.join()
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert served.server.damaged == 0


@pytest.mark.parametrize(
    "said",
    [
        encode({**_HELLO, "nonce": None}),
        encode({"kind": "hello", "node_rank": 0}),
        encode({**_HELLO, "node_rank": 1}),
        encode({**_HELLO, "node_rank": False}),
        encode(_HELLO) * 2,
        encode(_HELLO) + encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", "guessed", 0)}),
        encode({**_HELLO, "nonce": "\ud800"}) + encode({"kind": "proof"}),
        encode({**_HELLO, "node_rank": -1}),
        encode({**_HELLO, "node_rank": "0"}),
        encode({**_HELLO, "kind": "status"}),
        [_line(json.dumps({**_HELLO, "node_rank": float("nan")}))],
        [b"x" * (MAX_LINE_BYTES * 4)],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [bytes(range(256)) * 8, b"\n"],
        encode({**_HELLO, "more": "x" * 20_000}),
    ],
    ids=lambda said: repr(said[0][:60]),
)
def test_who_does_not_begin_with_a_right_hello_is_sent_away(said: list[bytes]) -> None:
    with _served() as served:
        with served.connect() as stranger:
            with contextlib.suppress(OSError):
                for piece in said:
                    stranger.sendall(piece)
            assert _is_closed(stranger)
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda challenge: proof("another token", "agent", "n", challenge, 0),
        lambda challenge: proof(TOKEN, "conductor", "n", challenge, 0),
        lambda challenge: proof(TOKEN, "agent", "m", challenge, 0),
        lambda challenge: proof(TOKEN, "agent", "n", challenge, 1),
        lambda challenge: proof(TOKEN, "agent", "n", "of another connection", 0),
        lambda challenge: ["x"],
        lambda challenge: "\ud800",
        lambda challenge: None,
    ],
)
def test_who_says_hello_and_cannot_prove_it_is_sent_away(wrong: Callable[[str], object]) -> None:
    with _served() as served:
        with served.connect() as stranger, stranger.makefile("rb") as lines:
            stranger.sendall(b"".join(encode(_HELLO)))
            answer = Decoder().line(lines.readline())
            assert answer is not None
            assert proves(answer["proof"], TOKEN, "conductor", "n", answer["challenge"], 0)
            stranger.sendall(b"".join(encode({"kind": "proof", "proof": wrong(answer["challenge"])})))
            assert _is_closed(stranger)
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


def test_what_was_overheard_on_one_connection_opens_no_other_one() -> None:
    overheard = []
    with _served() as served:
        agent = StubAgent(served.server.port)
        overheard = list(agent.said)
        agent.serve()
        served.over()
    assert len(overheard) == 2
    with _served() as served:
        for said in (overheard, overheard[1:]):
            with served.connect() as stranger:
                stranger.sendall(b"".join(said))
                assert _is_closed(stranger)
        assert served.server._peers == {}
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


def test_nobody_takes_the_place_of_a_node() -> None:
    with _served() as served:
        first = StubAgent(served.server.port)
        heard = first.heard()
        first.send(*first.answers(next(heard)))
        with StubAgent(served.server.port).socket as second:
            assert _is_closed(second)
        for message in heard:
            first.send(*first.answers(message))
        first.socket.close()
        served.over()
    assert served.outcomes() == ["done", "done"]


def test_hundreds_of_silent_strangers_keep_nobody_out() -> None:
    with _served() as served, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(served.connect()) for _ in range(_FULL_HOUSE + 50)]
        for stranger in strangers[:50]:
            stranger.settimeout(5.0)  # less than the time that a stranger has for its hello
            assert _is_closed(stranger), "the oldest make room"
        StubAgent(served.server.port).serve()
        served.over()
        assert all(_is_closed(stranger) for stranger in strangers)
    assert served.outcomes() == ["done", "done"]


def test_strangers_who_speak_while_they_are_sent_away_for_others_do_no_harm() -> None:
    with _served() as served, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(served.connect()) for _ in range(_FULL_HOUSE)]
        for number, stranger in enumerate(strangers):
            # One that is dropped for a newcomer may have words waiting in the same round.
            stack.enter_context(served.connect())
            with contextlib.suppress(OSError):
                stranger.sendall(b"x\n" if number % 2 else b"x")
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


@pytest.mark.parametrize(("leave_at", "outcomes"), [("start", []), ("step", ["trouble"])])
def test_an_agent_that_leaves_half_way_is_told_of(leave_at: str, outcomes: list[str]) -> None:
    with _served() as served:
        StubAgent(served.server.port).serve(leave_at)
        served.over()
    assert served.outcomes() == outcomes
    seen = [event["seen"] for event in served.events if event["kind"] == "trouble"]
    assert [(entry["node"], entry["how"]) for entry in seen[0]] == [(0, "lost")]


def test_wrong_words_of_a_right_agent_are_counted_and_passed_over() -> None:
    wrong: list[Any] = [
        {"kind": "done", "gen": 0, "seq": 9},
        {"kind": "status", "ranks": 3},
        {"kind": "status", "ranks": {"0": ["R", 10**400, 1, "x"]}},
        {"kind": "error", "gen": 0, "rank": 77, "phase": "x", "cause": "own"},
    ]
    wrong += [{"seq": 1}]
    unknown: list[Any] = [{"kind": "killed"}, {"kind": "weather", "gen": 0}]
    damaged = [
        _line('{"kind":"status","ranks":{"0":["R",Infinity,Infinity,"x"]}}'),
        _line('{"kind":"figures","gen":0,"src":"rank0.0","seq":7,"figures":[{"value":NaN}]}'),
        b"@seatrial1 00000000 {}\n",
    ]
    with _served() as served:
        agent = StubAgent(served.server.port)
        for message in agent.heard():
            if message["kind"] == "step":
                agent.send(*wrong, *unknown)
                agent.socket.sendall(b"".join([*damaged, b"no line of ours\n"]))
            agent.send(*agent.answers(message))
        agent.socket.close()
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert served.server.damaged == len(_STEPS) * (len(wrong) + len(damaged))


def test_the_time_is_told_at_once_to_whoever_belongs_here() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        heard = agent.heard()
        agent.send(*agent.answers(next(heard)))
        before = time.time()
        agent.send({"kind": "time", "number": 7}, {"kind": "time"}, {"kind": "time", "number": "8"})
        told = []
        for message in heard:
            told += [message] if message["kind"] == "time" else []
            agent.send(*agent.answers(message))
        agent.socket.close()
        served.over()
    (answer,) = told
    assert answer["number"] == 7
    assert before <= answer["at"] <= time.time()
    assert served.server.damaged == 2
    assert served.outcomes() == ["done", "done"]
    assert not any(event["kind"] == "time" for event in served.events)


def test_an_agent_that_sends_without_end_is_cut_off() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            while True:
                agent.socket.sendall(b"x" * (1 << 16))
        served.over()
    assert "trouble" in served.own()


def test_what_an_agent_does_not_read_is_not_kept_for_ever() -> None:
    steps = tuple(StepPlan(check="compute", scope="alone", params={"ballast": "x" * (1 << 20)}) for _ in range(24))
    with _served(steps=steps) as served:
        agent = StubAgent(served.server.port)
        most_kept = 0
        kinds: list[dict[str, Any]] = [{"kind": "welcome"}, {"kind": "start"}]
        kinds += [{"kind": "step", "step": number, "ranks": [0, 1]} for number in range(len(steps))]
        with agent.socket:
            for message in [*kinds, {"kind": "quit"}, {"kind": "stop"}]:
                # It answers blindly, each time when the conductor must have spoken.
                deadline = time.monotonic() + 10.0
                while message["kind"] == "step" and served.own().count("step") <= message["step"]:
                    assert time.monotonic() < deadline
                    time.sleep(0.002)
                most_kept = max(most_kept, *(len(peer.out) for peer in served.server._peers.values()), 0)
                agent.send(*agent.answers(message))
            served.over()
    assert served.outcomes() == ["done"] * len(steps)
    # At most the limit, and what is just being added to it: that is looked at from another thread.
    assert 1 << 20 < most_kept <= (8 << 20) + (1 << 20) + 4096


@pytest.mark.parametrize("news", ["SIGTERM", (0, "its agent ended with exit code 3")])
def test_news_from_outside_end_a_trial_that_waits_for_its_agents(news: str | tuple[int, str]) -> None:
    with _served() as served:
        served.news.append(news)
        served.over()
    told = next(event for event in served.events if event["kind"] in ("interrupted", "note"))
    assert (news if isinstance(news, str) else news[1]) in told.get("by", "") + told.get("text", "")
