"""Crowds at the control port: of neighbors, who need no secret for a hello, and of agents that join at once."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conductor.served import STEPS, Served
from conductor.served import served as _served
from conductor.stub_agent import RUN, TOKEN, StubAgent

from seatrial.agent import agent_main
from seatrial.conductor import base, server, strangers
from seatrial.conductor.clock import clock_s
from seatrial.conductor.node_addresses import source_of
from seatrial.conductor.peer import Peer
from seatrial.conductor.server import Server
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.errors import SeatrialError
from seatrial.protocol.events import Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder, encode

_HELLO = {"kind": "hello", "nonce": "n", "node_rank": 0}
_MAX_STRANGERS = 256
"""Strangers that a server keeps at once."""


def test_neighbors_that_say_hello_keep_no_agent_out() -> None:
    """A hello needs no secret, and the proof of an agent may take munge a second."""
    hello = b"".join(encode(_HELLO))
    with _served() as served, contextlib.ExitStack() as stack:

        def crowd(num: int) -> None:
            for _ in range(num):
                stranger = stack.enter_context(served.connect())
                stranger.sendall(hello)
                with contextlib.suppress(ConnectionResetError):
                    stranger.recv(1 << 12)

        crowd(_MAX_STRANGERS - 1)
        agent = stack.enter_context(served.connect())
        agent.sendall(hello)
        lines = stack.enter_context(agent.makefile("rb"))
        challenge = (Decoder().line(lines.readline()) or {})["challenge"]
        crowd(_MAX_STRANGERS + 50)
        agent.sendall(b"".join(encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, 0)})))
        assert b"welcome" in lines.readline()


@pytest.mark.parametrize("greets", [True, False])
def test_a_crowd_of_places_keeps_no_agent_out(greets: bool) -> None:
    """A neighbor with a network sends each connection from another address."""
    crowd, now = strangers.Strangers(), 100.0
    with contextlib.ExitStack() as stack:

        def comes(address: str, said_hello_at: float | None) -> Peer:
            peer = Peer(stack.enter_context(socket.socket()), address, address)
            crowd.add(peer)
            if said_hello_at is not None:
                crowd.greeted(peer, said_hello_at)
            return peer

        first = comes("10.1.0.1", now - 5.0 if greets else None)
        for number in range(2, _MAX_STRANGERS):
            comes(f"10.1.0.{number}", now - 4.0 if greets else None)
        assert comes("10.0.0.9", now) is not first
        assert (crowd.one_to_hear() or crowd.one_to_drop(now)) is first


def _greeted(stack: contextlib.ExitStack, served: Served, num: int) -> None:
    """So many strangers who have said hello, and been answered."""
    for _ in range(num):
        stranger = stack.enter_context(served.connect())
        stranger.sendall(b"".join(encode(_HELLO)))
        assert stranger.recv(1 << 12)


def test_an_agent_among_many_that_greet_at_once_joins() -> None:
    """So do all ranks of a job of a launcher; and a neighbor needs no secret for a hello."""
    with _served() as served, contextlib.ExitStack() as stack:
        _greeted(stack, served, _MAX_STRANGERS)
        control = agent_main._connect("127.0.0.1", [served.server.port], TOKEN, 0)
        with control.connection as connection:
            connection.settimeout(10.0)
            assert b"welcome" in (control.received or connection.recv(1 << 12))


def test_an_agent_that_is_sent_away_says_so_once_its_controller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEATRIAL_JOIN_TIMEOUT_S", "3")
    with _served(nodes=2) as served, agent_main._connect("127.0.0.1", [served.server.port], TOKEN, 0).connection:
        ports = [served.server.port, served.server.port]
        closing = threading.Timer(1.0, served.server._listener.close)
        closing.start()
        with pytest.raises(SeatrialError, match="closed the connection after the proof of this agent; see its report"):
            agent_main._connect("127.0.0.1", ports, TOKEN, 0)
        closing.join()


def test_who_has_no_place_is_not_answered_first() -> None:
    """An agent that hears the proof of the controller takes itself for one of those that it waits for."""
    with _served() as served, contextlib.ExitStack() as stack:
        _greeted(stack, served, _MAX_STRANGERS)
        newcomer = stack.enter_context(served.connect())
        with contextlib.suppress(ConnectionResetError):
            newcomer.sendall(b"".join(encode(_HELLO)))
            assert newcomer.recv(1 << 12) == b""


def test_a_crowd_from_one_place_pushes_out_none_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_STRANGERS", 4)
    monkeypatch.setattr(strangers, "_PROOF_S", 0.0)
    monkeypatch.setattr(server, "source_of", str)  # loopback addresses stand for hosts
    hello = b"".join(encode(_HELLO))
    with _served() as served, contextlib.ExitStack() as stack:
        agent = stack.enter_context(
            socket.create_connection(("127.0.0.1", served.server.port), 20.0, source_address=("127.0.0.2", 0))
        )
        lines = stack.enter_context(agent.makefile("rb"))
        agent.sendall(hello)
        challenge = (Decoder().line(lines.readline()) or {})["challenge"]
        for _ in range(20):
            stranger = stack.enter_context(served.connect())
            stranger.sendall(hello)
            with contextlib.suppress(ConnectionResetError):
                stranger.recv(1 << 12)
        agent.sendall(b"".join(encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, 0)})))
        assert b"welcome" in lines.readline()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "127.9.9.9", True),
        ("::1", "127.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("fd00::1", "fd00::2:3", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("fe80::1%lo", "fe80::2%lo", True),
    ],
)
def test_a_host_has_many_addresses(one: str, other: str, same: bool) -> None:
    assert (source_of(one) == source_of(other)) is same


_FLOOD = """
import resource, socket, sys
most = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = []
while True:
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
    kept.append(one)
    if len(kept) > most - 50:
        kept.pop(0).close()
"""


@contextlib.contextmanager
def _flooded(port: int) -> Iterator[None]:
    """A neighbor connects without end and says nothing."""
    with subprocess.Popen([sys.executable, "-c", _FLOOD, str(port)]) as flood:
        try:
            yield
        finally:
            flood.kill()


def test_an_agent_joins_while_a_neighbor_connects_without_end() -> None:
    with _served() as served, _flooded(served.server.port):
        time.sleep(2.0)
        agent_main._connect("127.0.0.1", [served.server.port], TOKEN, 0).connection.close()  # or gives up after 10 s


def test_a_deadline_passes_while_a_neighbor_connects_without_end() -> None:
    with _served() as served:
        conductor = TrialConductor(dataclasses.replace(served.config, join_timeout_s=3.0), clock_s())
        other = Server("127.0.0.1", lambda node: TOKEN, served.events.append)
        with _flooded(other.port):
            began = time.monotonic()
            other.serve(conductor, 1, Source(RUN, "conductor"), lambda connected: None)
        assert time.monotonic() - began < 15.0
    assert any("did not join within 3 s" in event.get("text", "") for event in served.events)


def test_room_for_a_newcomer_costs_no_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round took 2 s where strangers came from many networks of IPv6."""
    asked: list[str] = []

    def source(address: str) -> str:
        asked.append(address)
        return f"network {len(asked) % 200}"

    monkeypatch.setattr(server, "source_of", source)
    served = Served(1, STEPS)
    with contextlib.ExitStack() as stack:
        for _ in range(450):
            stack.enter_context(served.connect())
        for _ in range(10):
            served.server._accept()
        assert len(asked) <= 450
    served.server.close()
    served.display.close()


@pytest.mark.parametrize("limit", [5, 40])
def test_an_agent_joins_where_no_more_files_can_be_opened(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files as this process may open are taken by strangers; accepting one more fails until one is closed."""
    with _served() as served, contextlib.ExitStack() as stack:
        listener = _FewFiles(served.server, limit)
        monkeypatch.setattr(served.server, "_listener", listener)
        for _ in range(1_000):
            stack.enter_context(served.connect())
        began = time.monotonic()
        agent_main._connect("127.0.0.1", [served.server.port], TOKEN, 0).connection.close()
        assert time.monotonic() - began < 5.0
        assert listener.num_refused > 500


class _FewFiles:
    """The listener of a process that cannot open more than so many files for strangers."""

    def __init__(self, at: Server, limit: int) -> None:
        self._server, self._limit, self._inner = at, limit, at._listener
        self.num_refused = 0

    def accept(self) -> Any:
        if len(self._server._strangers) >= self._limit:
            self.num_refused += 1
            raise OSError(errno.EMFILE, "too many open files")
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_agents_join_at_once_while_one_sends_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection in each round, and rounds of a tenth of a second: those who came last had waited too long."""
    monkeypatch.setattr(base, "END_S", 1.0)
    num = 40
    with _served(nodes=num + 1) as served, contextlib.ExitStack() as stack:
        served.server._on_message = lambda message: time.sleep(0.1)
        busy = stack.enter_context(StubAgent(served.server.port, num).socket)
        busy.setblocking(False)
        agent = StubAgent(served.server.port, 0)
        stack.enter_context(agent.socket)
        agent.send_lines(b"".join(encode({"kind": "output"}) * 100))
        began = time.monotonic()
        connections = [stack.enter_context(served.connect()) for _ in range(num)]
        for node, connection in enumerate(connections):
            connection.sendall(b"".join(encode({**_HELLO, "node_rank": node})))
        for connection in connections:
            assert connection.recv(1 << 12)
        assert time.monotonic() - began < 2.0
