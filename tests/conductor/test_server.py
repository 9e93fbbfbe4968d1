"""The server on real sockets, with strangers, liars and agents that leave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from conductor.served import STEPS, Served
from conductor.served import served as _served
from conductor.stub_agent import RUN, TOKEN, StubAgent
from event_streams import event_of
from foreign_lines import line_of

from seatrial.agent import agent_main
from seatrial.conductor import server
from seatrial.conductor.server import Server
from seatrial.conductor.steps import StepPlan
from seatrial.errors import SeatrialError
from seatrial.protocol.events import THIS_MACHINE
from seatrial.protocol.handshake import node_token, proof, proves
from seatrial.protocol.line_tags import CHANGED
from seatrial.protocol.wire import MAX_LINE_BYTES, Decoder, encode

_HELLO = {"kind": "hello", "nonce": "n", "node_rank": 0}
_MAX_STRANGERS = 256
"""Strangers that a server keeps at once."""


def _is_closed(stranger: socket.socket) -> bool:
    """Wait until it is sent away; it may have been shown a proof, and nothing else."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := stranger.recv(1 << 12):
            heard += piece
    return b"welcome" not in heard


def test_a_trial_goes_through() -> None:
    with _served(nodes=2) as served:
        second = threading.Thread(target=StubAgent(served.server.port, 1).serve)
        second.start()
        StubAgent(served.server.port).serve()
        second.join()
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert served.server.damaged == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_ipv6_too(address: str) -> None:
    server = Server("", lambda node: TOKEN, lambda event: None)
    try:
        socket.create_connection((address, server.port), timeout=20.0).close()
    finally:
        server.close()


@pytest.mark.parametrize(
    "said",
    [
        encode({**_HELLO, "nonce": None}),
        encode({"kind": "hello", "node_rank": 0}),
        encode({**_HELLO, "node_rank": 1}),
        encode({**_HELLO, "node_rank": False}),
        [line_of('{"part":[0,1,"x"],"text":"\\ud800"}')],
        encode(_HELLO) * 2,
        encode(_HELLO) + encode({"kind": "proof", "proof": proof(TOKEN, "agent", "n", "guessed", 0)}),
        encode({**_HELLO, "nonce": "\ud800"}) + encode({"kind": "proof"}),
        encode({**_HELLO, "node_rank": -1}),
        encode({**_HELLO, "node_rank": "0"}),
        encode({**_HELLO, "kind": "status"}),
        [line_of({**_HELLO, "node_rank": float("nan")})],
        [b"x" * (MAX_LINE_BYTES * 4)],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [bytes(range(256)) * 8, b"\n"],
        encode({**_HELLO, "more": "x" * 20_000}),
    ],
    ids=lambda said: repr(said[0][:60]),
)
def test_a_wrong_hello_is_dropped(said: list[bytes]) -> None:
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
def test_a_wrong_proof_is_dropped(wrong: Callable[[str], object]) -> None:
    with _served() as served:
        with served.connect() as stranger, stranger.makefile("rb") as lines:
            stranger.sendall(b"".join(encode(_HELLO)))
            answer = Decoder().line(lines.readline())
            assert answer is not None
            assert proves(answer["proof"], TOKEN, "conductor", "n", answer["challenge"], 0, served.server.port)
            stranger.sendall(b"".join(encode({"kind": "proof", "proof": wrong(answer["challenge"])})))
            assert _is_closed(stranger)
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


def test_a_recorded_handshake_opens_no_connection() -> None:
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


def test_a_second_agent_of_a_node_is_dropped() -> None:
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


def test_a_second_process_that_proves_to_be_a_node_is_a_finding() -> None:
    with _served() as served:
        first = StubAgent(served.server.port)
        heard = first.heard()
        first.send(*first.answers(next(heard)))
        for _ in range(3):
            with StubAgent(served.server.port).socket as second:
                assert _is_closed(second)
        for message in heard:
            first.send(*first.answers(message))
        first.socket.close()
        served.over()
    (note,) = (event for event in served.events if event["kind"] == "note")
    assert note["severity"] == "error"
    assert note["text"].startswith("two processes claim to be node 0: the first one from 127.0.0.1 joined")
    assert note["untrusted"] == [0]


def test_the_next_command_of_a_job_step_disturbs_no_trial_that_ends() -> None:
    """Its agent has the same secret, and comes while another agent of this trial still ends. Unanswered, it goes on
    looking for its own controller."""
    with _served(nodes=2) as served:
        slow, fast = StubAgent(served.server.port, 0), StubAgent(served.server.port, 1)
        has_stopped = threading.Event()

        def serve(agent: StubAgent, waits: bool) -> None:
            with agent.socket:
                for message in agent.heard():
                    if message["kind"] == "stop" and waits:
                        assert has_stopped.wait(20.0)
                    agent.send(*agent.answers(message))
                    if message["kind"] == "stop":
                        return

        thread = threading.Thread(target=serve, args=(slow, True))
        thread.start()
        serve(fast, False)
        while not any(event["kind"] == "end" and event["src"] == "node1" for event in served.events):
            time.sleep(0.01)
        with served.connect() as following:
            following.sendall(b"".join(encode({"kind": "hello", "nonce": "n", "node_rank": 1})))
            assert following.recv(1) == b""
        has_stopped.set()
        thread.join(20.0)
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert not any(event["kind"] == "note" for event in served.events)


def test_a_node_joins_from_its_own_address_only() -> None:
    """All agents of mpirun have one token, with which each could prove to be any other node."""
    with _served() as served:
        served.server._addresses = {0: {"127.0.0.1"}}
        for _ in range(2):
            with StubAgent(served.server.port, source="127.0.0.2").socket as impostor:
                assert _is_closed(impostor)
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]
    (note,) = (event for event in served.events if event["kind"] == "note")
    assert note["severity"] == "error"
    assert note["text"].startswith("a process from 127.0.0.2 claims to be node 0, which is at 127.0.0.1, and was sent")


@pytest.mark.parametrize(
    ("known", "severities"),
    [
        ({0: {"127.0.0.1"}, 1: {"127.0.0.2"}}, []),
        ({0: {"127.0.0.2"}, 1: {"127.0.0.1"}}, ["error", "error"]),
        # One of the two is what it says.
        ({0: {"127.0.0.3"}, 1: {"127.0.0.2"}}, ["info"]),
        ({0: {"127.0.0.2"}, 1: {"127.0.0.2"}}, ["info"]),
        ({0: {"127.0.0.3"}, 1: {"127.0.0.1", "192.0.2.7"}}, ["error", "info"]),
        # Two nodes of one machine; a node without a known address may be on the machine of another one, or be that one.
        ({0: {"127.0.0.1", "127.0.0.2"}, 1: {"127.0.0.1", "127.0.0.2"}}, []),
        ({1: {"127.0.0.2", "127.0.0.1"}}, ["info"]),
        ({}, ["info"]),
        ({0: {THIS_MACHINE, "192.0.2.7"}, 1: {"127.0.0.2"}}, []),
        ({0: {"127.0.0.1"}, 1: {THIS_MACHINE, "192.0.2.7"}}, []),
    ],
)
def test_a_node_at_the_address_of_another_one_is_a_finding(known: dict[int, set[str]], severities: list[str]) -> None:
    """All agents of srun have one token, and where they should be is known only when they have joined."""
    with _served(nodes=2) as served:
        second = threading.Thread(target=StubAgent(served.server.port, 1, source="127.0.0.2").serve)
        second.start()
        StubAgent(served.server.port, 0).serve()
        second.join()
        served.over()
    notes = served.server.address_notes(known)
    assert [note["severity"] for note in notes] == severities
    if severities[:1] == ["error"]:
        assert notes[0]["text"].startswith("node 0 joined from 127.0.0.1, which is the address of node 1, and node 0")
        assert notes[0]["untrusted"] == [0]


def test_the_machine_of_the_controller_excuses_no_address_of_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "place_of", lambda connection: "192.0.2.9")
    with _served() as served:
        StubAgent(served.server.port).serve()
        served.over()
    (note,) = served.server.address_notes({0: {THIS_MACHINE, "192.0.2.7"}})
    assert note["text"].startswith("node 0 joined from an address that the launcher does not give")


def test_a_stranger_without_the_token_is_no_finding() -> None:
    with _served() as served:
        served.server._addresses = {0: {"127.0.0.1"}}
        with socket.create_connection(("127.0.0.1", served.server.port), 20.0, ("127.0.0.2", 0)) as stranger:
            stranger.sendall(b"".join([*encode(_HELLO), *encode({"kind": "proof", "proof": "0" * 64})]))
            assert _is_closed(stranger)
        StubAgent(served.server.port).serve()
        served.over()
    assert not [event for event in served.events if event["kind"] == "note"]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line * 2,
        pytest.param(lambda line: b"", marks=pytest.mark.nightly),
        lambda line: line.replace(b"node0", b"node1"),
        pytest.param(lambda line: b"x" * 5_000, marks=pytest.mark.nightly),  # without end
    ],
)
def test_a_line_that_is_changed_on_the_way_ends_its_agent(change: Callable[[bytes], bytes]) -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        heard = agent.heard()
        assert agent.tags is not None
        for message in agent.answers(next(heard)):
            agent.socket.sendall(b"".join(change(agent.tags.add(line)) for line in encode(message)))
        with contextlib.suppress(OSError):
            agent.send({"kind": "status", "ranks": {}})
        assert _is_closed(agent.socket)
        agent.socket.close()
        served.over()
    seen = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert seen[0]["detail"] == CHANGED


def test_a_connection_that_we_made_is_for_its_node_only() -> None:
    with _served(nodes=2) as served:
        ours, theirs = socket.socketpair()
        served.server.attach(ours, b"", 0)
        theirs.settimeout(20.0)
        with theirs:
            theirs.sendall(b"".join(encode({**_HELLO, "node_rank": 1})))
            assert _is_closed(theirs)


def test_an_agent_with_another_secret_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_main, "_ANSWER_TIMEOUT_S", 0.3)
    with _served() as served, pytest.raises(SeatrialError, match="does not know the secret of this job"):
        agent_main._connect("127.0.0.1", [served.server.port], "another", 0)


def test_the_token_of_one_node_proves_no_other() -> None:
    with _served(nodes=2) as served:
        served.server._token_of = partial(node_token, TOKEN)
        own_token = node_token(TOKEN, 0)
        for node, welcome in ((1, False), (0, True)):
            with served.connect() as host, host.makefile("rb") as lines:
                host.sendall(b"".join(encode({**_HELLO, "node_rank": node})))
                challenge = (Decoder().line(lines.readline()) or {})["challenge"]
                host.sendall(
                    b"".join(encode({"kind": "proof", "proof": proof(own_token, "agent", "n", challenge, node)}))
                )
                assert (b"welcome" in lines.readline()) is welcome


def test_hundreds_of_strangers_keep_no_agent_out() -> None:
    with _served() as served, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(served.connect()) for _ in range(_MAX_STRANGERS + 50)]
        for stranger in strangers[:50]:
            stranger.settimeout(5.0)  # less than the time that a stranger has for its hello
            assert _is_closed(stranger), "the oldest make room"
        StubAgent(served.server.port).serve()
        served.over()
        assert all(_is_closed(stranger) for stranger in strangers)
    assert served.outcomes() == ["done", "done"]


def test_strangers_that_send_while_they_are_dropped() -> None:
    with _served() as served, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(served.connect()) for _ in range(_MAX_STRANGERS)]
        for number, stranger in enumerate(strangers):
            # One that is dropped for a newcomer may have words waiting in the same round.
            stack.enter_context(served.connect())
            with contextlib.suppress(OSError):
                stranger.sendall(b"x\n" if number % 2 else b"x")
        StubAgent(served.server.port).serve()
        served.over()
    assert served.outcomes() == ["done", "done"]


def test_a_hello_that_has_come_is_read_before_a_newcomer_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_STRANGERS", 1)
    served = Served(1, STEPS)
    with served.connect() as agent:
        served.server._accept()
        with served.connect():
            agent.sendall(b"".join(encode(_HELLO)))
            served.thread.start()
            with agent.makefile("rb") as lines:
                assert b'"proof"' in lines.readline()
            served.news.append("the test is over")
            served.thread.join(20.0)
            served.display.close()


@pytest.mark.parametrize(("leave_at", "outcomes"), [("start_workers", []), ("step", ["trouble"])])
def test_an_agent_that_leaves_half_way_is_recorded(leave_at: str, outcomes: list[str]) -> None:
    with _served() as served:
        StubAgent(served.server.port).serve(leave_at)
        served.over()
    assert served.outcomes() == outcomes
    seen = [event["seen"] for event in served.events if event["kind"] == "trouble"]
    assert [(entry["node"], entry["how"]) for entry in seen[0]] == [(0, "lost")]


def test_ranks_are_ended_before_what_happened_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """To keep an event may take longer than nodes have to end their ranks."""
    asked = threading.Event()
    kept_first: list[str] = []
    keep = Served._keep

    def slow(self: Served, event: dict[str, Any]) -> None:
        if event["kind"] == "trouble" and not asked.wait(5.0):
            kept_first.append(event["kind"])
        keep(self, event)

    monkeypatch.setattr(Served, "_keep", slow)
    what = {"cause": "own", "type": "RuntimeError", "message": "planted", "stack": "", "phase": "compute"}
    with _served() as running, contextlib.ExitStack() as stack:
        agent = StubAgent(running.server.port)
        stack.enter_context(agent.socket)
        for message in agent.heard():
            if message["kind"] == "kill":
                asked.set()
                break
            if message["kind"] == "step":
                agent.send(event_of(agent._ranks[0], "error", gen=0, step=message["step"], rank=0, **what))
            else:
                agent.send(*agent.answers(message))
    assert asked.is_set()
    assert kept_first == []


def test_malformed_messages_of_an_agent_are_counted() -> None:
    wrong: list[Any] = [
        {"kind": "done", "gen": 0, "seq": 9},
        {"kind": "status", "ranks": 3},
        {"kind": "status", "ranks": {"0": ["R", 10**400, 1, "x", 0.0]}},
        {"kind": "error", "gen": 0, "rank": 77, "phase": "x", "cause": "own"},
    ]
    wrong += [{"seq": 1}]
    unknown: list[Any] = [{"kind": "killed"}, {"kind": "weather", "gen": 0}]
    damaged = [
        line_of('{"kind":"status","ranks":{"0":["R",Infinity,Infinity,"x",0.0]}}'),
        line_of('{"kind":"measurements","gen":0,"src":"rank0.0","seq":7,"measurements":[{"value":NaN}]}'),
        b"@seatrial1 00000000 {}\n",
    ]
    with _served() as served:
        agent = StubAgent(served.server.port)
        for message in agent.heard():
            if message["kind"] == "step":
                agent.send(*wrong, *unknown)
                agent.send_lines(b"".join([*damaged, b"no line of ours\n"]))
            agent.send(*agent.answers(message))
        agent.socket.close()
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert served.server.damaged == len(STEPS) * (len(wrong) + len(damaged))
    # Told once, with the node: it must not end everybody's trial unnamed.
    (note,) = [event for event in served.events if event["kind"] == "note"]
    assert (note["src"], note["severity"]) == ("conductor", "error")
    assert note["text"].startswith("node 0 sent a message in the name of another node or rank")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"kind": "error", "gen": 0, "rank": 2, "phase": "x", "cause": "own"}, "in the name of another node or rank"),
        ({"kind": "run", "src": "node0", "seq": 99, "run": RUN, "t": 0.0}, "or of the controller"),
    ],
)
def test_a_node_that_speaks_for_others_is_named(message: dict[str, Any], words: str) -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        for heard in agent.heard():
            if heard["kind"] == "step":
                agent.send(message)
            agent.send(*agent.answers(heard))
        agent.socket.close()
        served.over()
    (note,) = [event for event in served.events if event["kind"] == "note"]
    assert note["text"].startswith("node 0 sent ")
    assert words in note["text"]


def test_an_event_out_of_order_counts_for_nothing_and_its_node_is_named() -> None:
    """The report sorts events by their numbers: it would show something else than what the conductor acted on."""
    header = {"run": RUN, "src": "rank0.7", "t": 0.0, "kind": "note", "gen": 7, "severity": "info", "text": "late"}
    with _served() as served:
        agent = StubAgent(served.server.port)
        for heard in agent.heard():
            if heard["kind"] == "step":
                agent.send(*({**header, "seq": number} for number in (5, 4, 5, 6)))
            agent.send(*agent.answers(heard))
        agent.socket.close()
        served.over()
    assert [event["seq"] for event in served.events if event["src"] == "rank0.7"] == [5, 6]
    (note,) = [event for event in served.events if event["src"] == "conductor" and event["kind"] == "note"]
    assert note["text"].startswith("node 0 sent an event that came after one with its number")


_PROGRESS = {
    "kind": "progress",
    "step": 1,
    "num_steps": 2,
    "epoch": 0,
    "num_epochs": 1,
    "loss": 0.5,
    "samples_per_s": 1,
}


@pytest.mark.parametrize("field", sorted(_PROGRESS.keys() - {"kind"}))
def test_an_endless_number_of_an_agent_is_damage(field: str) -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        for message in agent.heard():
            if message["kind"] == "step":
                agent.send({**_PROGRESS, field: 10**400})
            agent.send(*agent.answers(message))
        agent.socket.close()
        served.over()
    assert served.outcomes() == ["done", "done"]
    assert served.server.damaged == len(STEPS)


def test_an_error_while_one_agent_is_heard_ends_that_agent_only() -> None:
    def fail(message: dict[str, Any]) -> None:
        raise RuntimeError("planted")

    with _served() as served:
        served.server._on_message = fail
        agent = StubAgent(served.server.port)
        with agent.socket:
            for message in agent.heard():
                if message["kind"] == "step":
                    # Many in one piece: those after the first one come from a connection that is gone.
                    agent.send_lines(b"".join(encode(_PROGRESS)) * 100)
                    break
                agent.send(*agent.answers(message))
            served.over()
    seen = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert [(entry["node"], entry["how"]) for entry in seen] == [(0, "lost")]
    assert "RuntimeError: planted" in seen[0]["detail"]


def test_the_time_is_answered_at_once() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        heard = agent.heard()
        agent.send(*agent.answers(next(heard)))
        before = time.time()
        agent.send({"kind": "time", "number": 7}, {"kind": "time"}, {"kind": "time", "number": "8"})
        answers = []
        for message in heard:
            answers += [message] if message["kind"] == "time" else []
            agent.send(*agent.answers(message))
        agent.socket.close()
        served.over()
    (answer,) = answers
    assert answer["number"] == 7
    assert before <= answer["at"] <= time.time()
    assert served.server.damaged == 2
    assert served.outcomes() == ["done", "done"]
    assert not any(event["kind"] == "time" for event in served.events)


def test_an_agent_that_asks_for_the_time_without_end_is_cut_off() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket:
            for message in agent.heard():
                if message["kind"] == "step":
                    agent.send_lines(b"".join(encode({"kind": "time", "number": 7})) * 500)
                    break
                agent.send(*agent.answers(message))
            served.over()
    seen = [entry for event in served.events if event["kind"] == "trouble" for entry in event["seen"]]
    assert [(entry["node"], entry["how"]) for entry in seen] == [(0, "lost")]
    assert "asked for the time more than" in seen[0]["detail"]


def test_an_agent_that_sends_without_end_is_cut_off() -> None:
    with _served() as served:
        agent = StubAgent(served.server.port)
        with agent.socket, contextlib.suppress(OSError):
            while True:
                agent.socket.sendall(b"x" * (1 << 16))
        served.over()
    assert "trouble" in served.own()


def test_bytes_that_an_agent_does_not_read_are_dropped() -> None:
    steps = tuple(StepPlan(check="compute", scope="alone", params={"ballast": "x" * (1 << 20)}) for _ in range(24))
    with _served(steps=steps) as served:
        agent = StubAgent(served.server.port)
        most_kept = 0
        kinds: list[dict[str, Any]] = [{"kind": "welcome"}, {"kind": "start_workers"}]
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
def test_news_from_outside_end_a_gathering_trial(news: str | tuple[int, str]) -> None:
    with _served() as served:
        served.news.append(news)
        served.over()
    event = next(event for event in served.events if event["kind"] in ("interrupted", "note"))
    assert (news if isinstance(news, str) else news[1]) in event.get("by", "") + event.get("text", "")
