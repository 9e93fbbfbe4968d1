"""The control port on real sockets: whatever comes, nothing is raised, nobody without the proof is admitted, and little
is kept of what anybody says."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from conductor.stub_agent import RUN, TOKEN, StubAgent
from foreign_lines import line_of
from fuzz.harness import Target, count, explore
from fuzz.hostile_values import HOSTILE_TEXTS, RAW_NUMBERS, VALUES
from hypothesis import strategies as st

from seatrial.conductor.clock import clock_s
from seatrial.conductor.config import TrialConfig
from seatrial.conductor.server import Server
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.protocol.events import Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.line_tags import TAG_CHARS
from seatrial.protocol.wire import MAX_LINE_BYTES, PREFIX, Decoder, encode

_STEPS = (StepPlan(check="compute", scope="alone"), StepPlan(check="training", scope="world"))
_MOST_OF_A_STRANGER_BYTES = 2 * MAX_LINE_BYTES + 4_000
_MOST_OF_AN_AGENT_BYTES = (8 << 20) + (16 << 20) + (1 << 18) + MAX_LINE_BYTES
"""Unread data of an agent: parts of incomplete messages, and one call of recv."""


class _Measured(Server):
    """Looks at what is kept of a connection each time that it has said something."""

    def _read(self, peer: Any) -> None:
        super()._read(peer)
        assert held_bytes(peer) <= (_MOST_OF_A_STRANGER_BYTES if peer.node is None else _MOST_OF_AN_AGENT_BYTES)
        assert peer.socket.fileno() < 0 or b"\n" in peer.buffer or len(peer.buffer) <= MAX_LINE_BYTES + TAG_CHARS


class _Served:
    """A server in a thread, with the exception that it raised."""

    def __init__(self, nodes: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.raised: BaseException | None = None
        self.interrupt = False
        self.server = _Measured("127.0.0.1", lambda node: TOKEN, self._keep)
        config = TrialConfig(
            run=RUN,
            nodes=nodes,
            nproc_per_node=2,
            steps=_STEPS,
            deadline_s=3_000.0,
            env={},
            device="cpu",
            backend="gloo",
            suspects=lambda check, events: (),
            join_timeout_s=3_000.0,
            most_generations=1,
        )
        self.conductor = TrialConductor(config, clock_s())
        self.thread = threading.Thread(target=self._serve, args=(nodes,))

    def _serve(self, nodes: int) -> None:
        try:
            self.server.serve(self.conductor, nodes, Source(RUN, "conductor"), self._on_idle)
        except BaseException as error:
            self.raised = error
            self.server.close()

    def _keep(self, event: dict[str, Any]) -> None:
        encode(event)  # as a recorder does
        self.events.append(event)

    def _on_idle(self, connected: Collection[int]) -> str | None:
        return "the test is over" if self.interrupt else None

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=20.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def held_bytes(peer: Any) -> int:
    """Return the bytes that a server keeps for a connection."""
    parts = sum(len(text) for pieces in peer.decoder._partial.values() for text in pieces.values())
    assert parts == peer.decoder._partial_chars
    unread = len(peer.buffer) + sum(map(len, peer.lines))
    return unread + len(peer.out) + parts + sum(map(len, (peer.claim or (0, "", ""))[1:]))


@contextlib.contextmanager
def _served(nodes: int = 1) -> Iterator[_Served]:
    served = _Served(nodes)
    served.thread.start()
    try:
        yield served
    finally:
        served.interrupt = True
        served.thread.join(20.0)
        assert not served.thread.is_alive()
        if served.raised is not None:
            raise AssertionError("it was raised out of serve") from served.raised


# Strangers

_HELLO = {"kind": "hello", "nonce": "n", "node_rank": 0}
_FIELDS = ("kind", "nonce", "node_rank", "proof", "challenge", "part", "text")
_STRANGE_LINES = st.one_of(
    st.just(line_of(_HELLO)),
    st.dictionaries(st.sampled_from(_FIELDS), VALUES, max_size=3).map(lambda more: line_of({**_HELLO, **more})),
    st.dictionaries(st.sampled_from(_FIELDS), VALUES, max_size=3).map(lambda more: line_of({"kind": "proof", **more})),
    st.sampled_from(RAW_NUMBERS).map(lambda raw: line_of(f'{{"kind":"hello","nonce":"n","node_rank":{raw}}}')),
    st.sampled_from(HOSTILE_TEXTS).map(lambda text: line_of({**_HELLO, "nonce": text})),
    st.sampled_from([proof(TOKEN, "agent", "n", "c", 0), proof(TOKEN, "conductor", "n", "c", 0)]).map(
        lambda said: line_of({"kind": "proof", "proof": said})
    ),
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n", b"\n", b"\n" * 5_000, b"x" * 20_000]
    ),
    st.sampled_from([PREFIX + b"00000000 {}\n", PREFIX + b"\n", PREFIX * 500 + b"\n", b"{" * 3_000 + b"\n"]),
    st.sampled_from([line_of("[" * 1_900 + "]" * 1_900), line_of('{"a":' * 700 + "1" + "}" * 700), line_of("null")]),
    st.binary(max_size=40),
)
_STRANGERS = st.tuples(st.lists(_STRANGE_LINES, max_size=4), st.booleans(), st.integers(0, 2**16))


def _stranger_of(served: _Served) -> Target[Any]:
    def check(stranger: tuple[list[bytes], bool, int]) -> None:
        lines, cut, seed = stranger
        text = b"".join(lines)
        rng = random.Random(seed)
        with served.connect() as connection, contextlib.suppress(OSError):
            for line in lines:
                count("control messages")
                del line
            if cut:
                at = rng.randrange(len(text) + 1)
                for piece in (text[:at], text[at : at + 1], text[at + 1 :]):
                    connection.sendall(piece)
            else:
                connection.sendall(text)
            if rng.random() < 0.2:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 12):
                    pass
        assert served.raised is None
        assert served.server._peers == {}, "a stranger was admitted"
        assert len(served.server._strangers) <= 256

    return Target(name="control messages", inputs=_STRANGERS, check=check)


def _strangers(examples: int) -> None:
    with _served() as served:
        explore(_stranger_of(served), examples)
        StubAgent(served.server.port).serve()
        served.thread.join(20.0)
        assert [event["outcome"] for event in served.events if event["kind"] == "step_end"] == ["done", "done"]


def test_some_strangers_are_not_admitted_and_disturb_nobody() -> None:
    _strangers(60)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_strangers_are_not_admitted_and_disturb_nobody() -> None:
    _strangers(6_000)


# Agents that were admitted


class _Part(bytes):
    """Lines that show their beginning where they are shown."""

    def __repr__(self) -> str:
        return f"{bytes(self[:200])!r}, {len(self)} bytes"


_KINDS = [
    "status",
    "killed",
    "signal",
    "end",
    "rank",
    "measurements",
    "facts",
    "done",
    "error",
    "stack",
    "exit",
    "left",
    "note",
    "node",
    "part",
    "proof",
    "hello",
]
_WORDS = [
    "gen",
    "step",
    "rank",
    "ranks",
    "src",
    "seq",
    "run",
    "t",
    "share",
    "cause",
    "phase",
    "code",
    "ours",
    "number",
    "text",
    "measurements",
    "facts",
    "severity",
]
_AGENTS_LINES = st.one_of(
    st.builds(
        lambda kind, more: line_of({"kind": kind, "run": RUN, "src": "node0", "seq": 5, "gen": 0, **more}),
        st.sampled_from(_KINDS),
        st.dictionaries(st.sampled_from(_WORDS), VALUES, max_size=4),
    ),
    st.builds(
        lambda number, of, key, size: line_of({"part": [number, of, key], "text": "x" * size}),
        st.sampled_from([0, 1, 4_095, 4_096, 0.5, True, -1]),
        st.sampled_from([1, 2, 4_096, 4_097, 1.5]),
        st.sampled_from(["a", "00000000", "b" * 2_000, ""]),
        st.sampled_from([0, 1_000, 3_000]),
    ),
    st.builds(
        lambda word, raw: line_of(f'{{"kind":"status","run":"{RUN}","ranks":{{"0":["R",{raw},1,"{word}",{raw}]}}}}'),
        st.sampled_from(["x", "y" * 3_000]),
        st.sampled_from([*RAW_NUMBERS, "0", "null", "[]"]),
    ),
    st.sampled_from([line_of('{"kind":"done","a":' + "[" * 900 + "]" * 900 + "}"), b"no line of ours\n", b"\xff\n"]),
    st.binary(max_size=20).map(lambda raw: raw + b"\n"),
).map(_Part)


def _check_agent(lines: list[_Part]) -> None:
    """A right agent, up to the lies that it tells in the middle of a step."""
    with _served(nodes=2) as served:
        liar = StubAgent(served.server.port, 0)
        other = StubAgent(served.server.port, 1)
        other_thread = threading.Thread(target=_serve_agent, args=(other, []))
        other_thread.start()
        _serve_agent(liar, lines)
        served.interrupt = True
        other_thread.join(20.0)
        served.thread.join(20.0)
        assert not served.thread.is_alive()
        for event in served.events:
            if event.get("src") == "conductor" and event["kind"] == "trouble":
                for seen in event["seen"]:
                    assert seen.get("node", 0) == 0, "another node was suspected"
                    assert seen.get("rank", 0) in (0, 1), "a rank of another node was suspected"


def _serve_agent(agent: StubAgent, lies: list[_Part]) -> None:
    """Join as an agent does, and lie in the first step."""
    has_lied = False
    with agent.socket, contextlib.suppress(OSError):
        for message in agent.heard():
            if message["kind"] == "step" and lies and not has_lied:
                for line in lies:
                    count("control messages")
                    agent.send_lines(line)
                has_lied = True
            answers = [message | {"kind": "killed"}] if message["kind"] == "kill" else agent.answers(message)
            agent.send(*answers)
            # Its lies have taken the numbers of its own last words: others would wait 10 s for each of those in vain.
            if has_lied and message["kind"] in ("quit", "stop"):
                return


ADMITTED = Target(name="control messages", inputs=st.lists(_AGENTS_LINES, min_size=20, max_size=90), check=_check_agent)


def test_some_wrong_words_of_an_admitted_agent_are_survived() -> None:
    explore(ADMITTED, 5)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_wrong_words_of_an_admitted_agent_are_survived() -> None:
    explore(ADMITTED, 250)


# How much is kept


def test_parts_of_messages_that_are_never_whole_are_given_up() -> None:
    decoder = Decoder()
    for key in range(40):
        for number in range(400):
            decoder.line(line_of({"part": [number, 4_096, f"k{key}"], "text": "x" * 3_000}))
    held = sum(len(text) for pieces in decoder._partial.values() for text in pieces.values())
    assert held == decoder._partial_chars <= 16 << 20


def test_a_message_that_could_not_be_written_again_is_damage() -> None:
    decoder = Decoder()
    wrong: list[Callable[[], bytes]] = [
        lambda: line_of('{"a":' * 65 + "1" + "}" * 65),
        lambda: line_of('{"a":1e999}'),
        lambda: line_of('{"a":[-1e999]}'),
        lambda: line_of({"part": [0.5, 4_096, "k"], "text": ""}),
        lambda: line_of({"part": [False, 2, "k"], "text": ""}),
    ]
    assert [decoder.line(make()) for make in wrong] == [None] * len(wrong)
    assert decoder.damaged == len(wrong)
    assert decoder.line(line_of('{"a":' * 60 + "1" + "}" * 60)) is not None
