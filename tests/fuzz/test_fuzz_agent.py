"""The agent's end of the control connection: a wrong conductor is never obeyed, and wrong commands end in an order."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from agent.stub_conductor import AnyJob
from foreign_lines import line_of
from fuzz.harness import Target, count, explore
from fuzz.hostile_values import HOSTILE_TEXTS, VALUES
from hypothesis import strategies as st

from seatrial.agent import agent_main as agent_main
from seatrial.agent import event_channel as agent_channel
from seatrial.agent import supervisor as agent_serve
from seatrial.agent.control_connection import ControlConnection
from seatrial.agent.supervisor import Agent
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder

_TOKEN = "the-token"

# A stranger in the place of the conductor

_ANSWERS = st.one_of(
    st.dictionaries(st.sampled_from(["kind", "proof", "challenge", "nonce"]), VALUES, max_size=4).map(line_of),
    st.sampled_from(["agent", "conductor"]).map(
        lambda role: line_of({"challenge": "c", "proof": proof(_TOKEN, role, "overheard", "c", 0)})
    ),
    st.just(line_of({"challenge": "c", "proof": proof("another token", "conductor", "n", "c", 0)})),
    st.sampled_from(HOSTILE_TEXTS).map(lambda text: line_of({"challenge": text, "proof": text})),
    st.sampled_from([b"", b"\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 9_000, b"\xff" * 50, line_of("[]")]),
    st.binary(max_size=30),
)


def _check_stranger(answer: bytes) -> None:
    ours, strangers = socket.socketpair()
    with ours, strangers:
        count("control messages")
        strangers.sendall(answer)
        strangers.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            assert agent_main._shake_hands(ours, _TOKEN, 0) is None, "a stranger is obeyed"
        ours.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: strangers.recv(1 << 12), b""))
        assert said.count(b"\n") == 1, "it was given the agent's proof"
        assert _TOKEN.encode() not in said


STRANGERS = Target(name="control messages", inputs=_ANSWERS, check=_check_stranger)


def test_some_strangers_in_the_place_of_the_conductor_are_not_obeyed() -> None:
    explore(STRANGERS, 60)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_strangers_in_the_place_of_the_conductor_are_not_obeyed() -> None:
    explore(STRANGERS, 4_000)


def test_a_dripping_peer_delays_an_agent_no_longer_than_a_silent_one() -> None:
    ours, strangers = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                strangers.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with ours, pytest.raises(TimeoutError):
            agent_main._shake_hands(ours, _TOKEN, 0, 0.5)
    finally:
        over.set()
        thread.join()
        strangers.close()


# A conductor that knows the token and talks nonsense


class _FakeRankProcess:
    """A rank that is no process: two silent pipes, gone on demand."""

    def __init__(
        self,
        rank: int,
        generation: int,
        environ: dict[str, str],
        log: Any,
        *,
        start: dict[str, Any] | None = None,
        argv: list[str] | None = None,
        watched: bool = True,
        cwd: str | None = None,
    ) -> None:
        self.watched = watched
        assert argv is None or all(isinstance(word, str) for word in argv)
        self.end_fd: int | None = None
        self.rank, self.generation = rank, generation
        self.pid = 0
        self.exit_code: int | None = None
        assert all(isinstance(word, str) for pair in environ.items() for word in pair)
        self.event_fd, self._event_end = os.pipe()
        self.output_fd, self._output_end = os.pipe()
        self.buffers = {self.event_fd: b"", self.output_fd: b""}
        for fd in (self.event_fd, self.output_fd):
            os.set_blocking(fd, False)

    def send(self, command: dict[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def read(self, fd: int, *, everything: bool = False) -> tuple[list[bytes], bool]:
        return [], False

    def status(self) -> list[Any]:
        return ["S", 0.0, 1, "start-up", 0.0]

    def poll(self) -> int | None:
        return self.exit_code

    def exit_event(self) -> dict[str, Any]:
        return {"kind": "exit", "gen": self.generation, "rank": self.rank, "code": self.exit_code, "ours": True}

    def ask_stack(self) -> None: ...

    def stack_event(self, until: float) -> dict[str, Any]:
        return {"kind": "stack", "gen": self.generation, "rank": self.rank, "text": ""}

    def quit(self) -> None:
        self.exit_code = 0

    def terminate(self) -> None:
        self.exit_code = -15

    def kill(self) -> None:
        self.exit_code = -9

    def kill_group(self) -> None: ...

    def wait(self, timeout_s: float) -> bool:
        return self.exit_code is not None

    def close(self) -> None:
        for fd in (self.event_fd, self._event_end, self.output_fd, self._output_end):
            os.close(fd)


_START = {
    "kind": "start_workers",
    "run": "r",
    "gen": 0,
    "ranks": [[0, 1]],
    "places": [[0, 0], [1, 1]],
    "device": "cpu",
    "backend": "auto",
    "interface": "",
    "env": {},
}
_PROGRAM = {
    "kind": "start_program",
    "run": "r",
    "gen": 0,
    "places": [[0, 0], [1, 1]],
    "env": {},
    "program": {
        "argv": ["x"],
        "args": ["{rank}"],
        "spawns": 0,
        "nnodes": 1,
        "cwd": "",
        "script": "",
        "cwd_trust": {"owners": [], "mounters": [], "open_places": []},
        "script_trust": {"owners": [], "mounters": [], "open_places": []},
        "watched": True,
        "shown": [0],
        "world_size": 2,
        "master_addr": "127.0.0.1",
        "master_port": 1,
        "group_rank": 0,
        "max_restarts": 0,
    },
}
_COMMANDS: list[dict[str, Any]] = [
    {"kind": "welcome", "run": "r"},
    {"kind": "heartbeat"},
    _START,
    _PROGRAM,
    {"kind": "port", "gen": 0},
    {"kind": "terminate", "gen": 0},
    {"kind": "step", "gen": 0, "step": 0, "check": "compute", "stage": "measure", "ranks": [0, 1], "given": {}},
    {"kind": "dump_stack", "number": 1, "ranks": [0, 7]},
    {"kind": "kill", "gen": 0, "stacks": [0]},
    {"kind": "quit"},
    {"kind": "stop"},
    {"kind": "of a later version", "gen": 0},
]


@st.composite
def _commands(draw: st.DrawFn) -> bytes:
    message = dict(draw(st.sampled_from(_COMMANDS)))
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(message)))
        if draw(st.booleans()):
            message[key] = draw(VALUES)
        elif key != "kind":
            del message[key]
    line = line_of(message)
    return line if draw(st.integers(0, 5)) else line[: draw(st.integers(0, len(line)))] + b"\n"


@contextlib.contextmanager
def _without_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_serve, "RankProcess", _FakeRankProcess)
        patch.setattr(agent_channel, "_DRAIN_S", 0.0)
        patch.setattr(agent_serve, "_STACK_WAIT_S", 0.0)
        # An agent sets variables for its ranks; here they would be those of all later tests.
        patch.setattr(os, "environ", dict(os.environ))
        yield


_STOP = line_of({"kind": "stop"})


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def _check_commands(lines: list[bytes]) -> None:
    ours, conductors = _connected()
    with conductors, _without_processes():
        agent = Agent(
            control=ControlConnection(
                connection=ours, received=b"".join([*lines, _STOP]), tags_sent=None, tags_received=None
            ),
            address="127.0.0.1",
            node_rank=0,
            cores=2,
            folder=None,
            job=AnyJob(),
        )
        for line in lines:
            count("control messages")
            del line
        code = agent.serve([], [])
        assert code in (0, 3)
        said = list(Decoder().lines(b"".join(iter(lambda: conductors.recv(1 << 16), b""))))
        notes = [message for message in said if message["kind"] == "note"]
        begun = any(message["kind"] == "node" for message in said)
        assert not begun or code == 0 or notes, "it ended before its time and did not say why"
        assert agent._ranks == {}


COMMANDS = Target(name="control messages", inputs=st.lists(_commands(), max_size=8), check=_check_commands)


def test_some_wrong_commands_end_an_agent_in_order() -> None:
    explore(COMMANDS, 60)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_wrong_commands_end_an_agent_in_order() -> None:
    explore(COMMANDS, 3_000)


def test_an_interface_that_is_no_name_sets_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    _check_commands([line_of({"kind": "welcome", "run": "r"}), line_of({**_START, "interface": {"node": 1}})])
    assert "GLOO_SOCKET_IFNAME" not in os.environ
