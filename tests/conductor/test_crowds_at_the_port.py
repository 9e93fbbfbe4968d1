"""Crowds at the control port: of neighbors, who need no secret for a hello, and of agents that join at once."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from conductor.served import served as _served
from conductor.stub_agent import TOKEN, StubAgent

from seatrial.conductor import server
from seatrial.conductor.node_addresses import source_of
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


def test_a_crowd_from_one_place_pushes_out_none_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_STRANGERS", 4)
    monkeypatch.setattr(server, "_PROOF_S", 0.0)
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


def test_agents_join_at_once_while_one_sends_without_end() -> None:
    """One connection in each round, and rounds of a tenth of a second: those who came last had waited too long."""
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
