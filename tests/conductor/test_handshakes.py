"""Handshakes that neighbors and agents disturb: at the server, and at the agent that looks for it."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from conductor.served import served
from conductor.stub_agent import TOKEN, StubAgent

from seatrial.agent import agent_main
from seatrial.conductor.clock import clock_s
from seatrial.conductor.server import Server
from seatrial.errors import SeatrialError
from seatrial.probe import address_search
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder, encode

_HELLO = {"kind": "hello", "nonce": "n", "node_rank": 0}


def _server(addresses: dict[int, set[str]], host: str = "127.0.0.1", port: int = 0) -> Server:
    server = Server(host, lambda node: TOKEN, lambda event: None, (port,), addresses=addresses)
    server._nodes = 1
    return server


def _hear(server: Server) -> None:
    server._selector.select(timeout=20.0)
    server._read_round(clock_s())


@pytest.mark.parametrize("addresses", [{}, {0: {"127.0.0.1"}}], ids=["any address", "its own address"])
def test_an_agent_that_resets_its_connection_after_its_proof_is_dropped(addresses: dict[int, set[str]]) -> None:
    server = _server(addresses)
    try:
        agent = socket.create_connection(("127.0.0.1", server.port), timeout=20.0)
        agent.sendall(b"".join(encode(_HELLO)))
        for _ in range(2):
            _hear(server)
        challenge = (Decoder().line(agent.recv(1 << 12)) or {})["challenge"]
        agent.sendall(b"".join(encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, 0)})))
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        agent.close()
        _hear(server)
        assert not server._peers
        assert not server._strangers
    finally:
        server.close()


@contextlib.contextmanager
def _answered(server: Server) -> Iterator[None]:
    def answer() -> None:
        with contextlib.suppress(AttributeError):  # it has no conductor that an agent could join
            while True:
                _hear(server)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        thread.join(30.0)
        server.close()


def _pass_on(listener: socket.socket, port: int) -> None:
    """Between one agent and that port, until one of them closes its connection."""
    agent, _ = listener.accept()
    with agent, socket.create_connection(("127.0.0.1", port), timeout=20.0) as conductor:
        other = {agent: conductor, conductor: agent}
        while True:
            for end in select.select([*other], [], [], 20.0)[0]:
                if not (said := end.recv(1 << 12)):
                    return
                other[end].sendall(said)


def test_a_neighbor_at_the_first_port_gets_into_no_connection() -> None:
    """It can change nothing there, but could cut the connection at any time, and the node would count as lost."""
    server = _server({})
    with socket.create_server(("127.0.0.1", 0)) as listener, _answered(server):
        first_port = listener.getsockname()[1]
        neighbor = threading.Thread(target=_pass_on, args=(listener, server.port))
        neighbor.start()
        control = agent_main._connect("127.0.0.1", [first_port, server.port], TOKEN, 0)
        assert control.connection.getpeername()[1] == server.port
        control.connection.close()
        neighbor.join(30.0)


def test_silent_strangers_at_the_first_ports_keep_no_agent_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ports of a job that another launcher has started follow from its number, which others can see."""
    monkeypatch.setattr(agent_main, "_FIRST_ANSWER_S", 0.1)
    monkeypatch.setattr(agent_main, "_ANSWER_TIMEOUT_S", 3_600.0)
    server = _server({})
    with contextlib.ExitStack() as stack, _answered(server):
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in silent]
        agent_main._connect("127.0.0.1", [*ports, server.port], TOKEN, 0).connection.close()


def _cut_once(listener: socket.socket, port: int) -> socket.socket:
    """Reset the connection of an agent once its proof was passed on and the welcome has come; return the other side."""
    agent, _ = listener.accept()
    conductor = socket.create_connection(("127.0.0.1", port), timeout=20.0)
    with agent:
        for one, other in ((agent, conductor), (conductor, agent), (agent, conductor)):
            other.sendall(one.recv(1 << 12))
        assert conductor.recv(1 << 12)
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return conductor


def test_an_agent_that_was_cut_off_after_its_proof_is_lost_and_no_liar() -> None:
    """Who resets its side of the connection keeps that of the controller open, and the agent tries again."""
    with served(nodes=2) as run, socket.create_server(("127.0.0.2", run.server.port)) as listener:
        kept: list[socket.socket] = []

        def pass_on() -> None:
            kept.append(_cut_once(listener, run.server.port))
            _pass_on(listener, run.server.port)
            listener.close()

        path = threading.Thread(target=pass_on)
        path.start()
        with pytest.raises(SeatrialError, match="closed the connection"):
            agent_main._connect("127.0.0.2", [run.server.port], TOKEN, 0)
        path.join(20.0)
        kept[0].close()
        run.over()
    (note,) = (event for event in run.events if event["kind"] == "note")
    assert note["text"] == "node 0 was lost before the ranks were started: the control connection was closed"


@pytest.mark.parametrize(
    ("first", "second", "are_two"),
    [("a", "a", False), ("a", "b", True), ("a", "", True), ("", "a", True), ("", "", True)],
)
def test_a_second_claim_is_of_another_process_unless_both_have_one_text(first: str, second: str, are_two: bool) -> None:
    with served(nodes=2) as run, StubAgent(run.server.port, process=first).socket as one:
        assert one.recv(1)
        with StubAgent(run.server.port, process=second).socket as other:
            assert _is_closed(other)
        if not are_two:
            assert _is_closed(one)
    assert [event["untrusted"] for event in run.events if "untrusted" in event] == ([[0]] if are_two else [])


@pytest.mark.parametrize("said", ["b", "", None, 1, ["a"]])
def test_nobody_in_the_path_changes_the_text_of_an_agent(said: object) -> None:
    """Its proof covers it: a stranger who passes on the claim of another process would have it taken for this one."""
    with served(nodes=2) as run:
        with run.connect() as agent, agent.makefile("rb") as lines:
            agent.sendall(b"".join(encode(_HELLO)))
            challenge = (Decoder().line(lines.readline()) or {})["challenge"]
            own = proof(TOKEN, "agent", "n", challenge, 0, process="a")
            agent.sendall(b"".join(encode({"kind": "proof", "proof": own, "process": said})))
            assert _is_closed(agent)
        assert not run.server.members


def _is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 12):
            pass
    return True


def _joined_at(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> str:
    """Return at which address an agent joins a controller whose name has two."""
    monkeypatch.setattr(address_search, "resolve_in_thread", lambda name: ["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(agent_main, "_FIRST_ANSWER_S", 0.1)
    control = agent_main._connect("controller", ports, TOKEN, 0)
    with control.connection as connection:
        return str(connection.getpeername()[0])


@pytest.mark.parametrize("listens", [True, False], ids=["it did not answer", "it did not listen"])
def test_an_agent_keeps_to_the_first_address(monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    """Else agents of one machine join from its addresses of both families, and count as those of two machines."""
    with socket.create_server(("127.0.0.2", 0)) as second, contextlib.ExitStack() as stack:
        port = second.getsockname()[1]
        early = [_server({}, port=port)] if listens else []

        def begin_once_the_agent_is_at_the_second_address() -> None:
            select.select([second], [], [], 20.0)
            stack.enter_context(_answered(early[0] if early else _server({}, port=port)))
            _pass_on(second, port)

        controller = threading.Thread(target=begin_once_the_agent_is_at_the_second_address)
        controller.start()
        try:
            assert _joined_at(monkeypatch, [port, _unused_port()]) == "127.0.0.1"
        finally:
            controller.join(30.0)


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_agent_joins_where_only_a_later_address_answers(monkeypatch: pytest.MonkeyPatch, is_silent: bool) -> None:
    server = _server({}, "127.0.0.2")
    with contextlib.ExitStack() as stack, _answered(server):
        if is_silent:
            stack.enter_context(socket.create_server(("127.0.0.1", server.port)))
        assert _joined_at(monkeypatch, [_unused_port(), server.port]) == "127.0.0.2"


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
