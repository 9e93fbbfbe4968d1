"""The calling end of a connection of the network check, and peers that answer wrongly or not at all, on loopback."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest

from seatrial.checks.network import endpoint, waits
from seatrial.checks.network import measure as measurement
from seatrial.checks.network.measure import Peer, _Calls, leads_elsewhere
from seatrial.checks.network.params import PAYLOAD_BYTES, Params
from seatrial.protocol.commands import NodeStep
from seatrial.rank.node_context import NodeContext

OURS, OTHER = bytes(range(32)), bytes(32)
OUR_ANSWER = endpoint._words(OURS)[1]
_WITH_FEW_DESCRIPTORS = """
import resource, sys
from seatrial.checks.network.endpoint import Endpoint

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
listener = Endpoint()
print(listener.run(listener.listen("127.0.0.1"), 10.0), listener.identity.hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("payload_bytes", [PAYLOAD_BYTES, 0])
@pytest.mark.parametrize(("answer", "failure"), [(OURS, "silent"), (b"", "silent"), (OTHER, "another answers")])
def test_a_connection_that_is_accepted_and_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, failure: str, payload_bytes: int
) -> None:
    """A load balancer accepts, and reads what it gets, while its other side is dead."""
    gone = asyncio.Event()
    monkeypatch.setattr(endpoint, "_PATIENCE_S", 0.3)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(endpoint._words(answer)[1] if answer else b"")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    async def call() -> endpoint.Reached:
        server = await asyncio.start_server(accept, "127.0.0.1")
        async with server:
            port = server.sockets[0].getsockname()[1]
            reached = await endpoint.reach("127.0.0.1", port, OURS, 0.3, payload_bytes=payload_bytes)
            await gone.wait()
            return reached

    assert asyncio.run(call()).failure == failure


def test_no_byte_of_a_callers_word_is_the_choice_of_the_other_node() -> None:
    """The place that it shares may be a service of this machine, which would take the word for its commands."""
    first = asyncio.Queue[bytes]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await first.put(await reader.read(100))
        writer.close()

    async def call(identity: bytes) -> bytes:
        server = await asyncio.start_server(accept, "127.0.0.1")
        async with server:
            await endpoint.reach("127.0.0.1", server.sockets[0].getsockname()[1], identity, 1.0)
            return await first.get()

    for identity in (b"FLUSHALL\r\nQUIT\r\n" * 2, b"\n" * 32, b""):
        word = asyncio.run(call(identity))
        assert len(word) == 16
        assert word.startswith(b"\0seatrial")
        assert word[9:].isalnum()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[endpoint.Endpoint]:
    """A node's own end; what it opened and its thread end with the test."""
    servers: list[asyncio.Server] = []
    start_server = asyncio.start_server

    async def start(*args: Any, **options: Any) -> asyncio.Server:
        servers.append(await start_server(*args, **options))
        return servers[-1]

    async def close() -> asyncio.AbstractEventLoop:
        for server in servers:
            server.close()
        while any("_answer" in repr(task) for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop()

    monkeypatch.setattr(asyncio, "start_server", start)
    listener = endpoint.Endpoint()
    yield listener
    loop = listener.run(close(), 10.0)
    loop.call_soon_threadsafe(loop.stop)
    while loop.is_running():
        time.sleep(0.01)
    loop.close()


@pytest.mark.parametrize("knows_identity", [False, True])
def test_idle_connections_of_others_close_no_node(
    monkeypatch: pytest.MonkeyPatch, listener: endpoint.Endpoint, knows_identity: bool
) -> None:
    """Anybody can hold connections to a port; a node of the job that is broken or lies knows the identity too."""
    monkeypatch.setattr(endpoint, "_MAX_VISITORS", 8)
    port = listener.run(listener.listen("127.0.0.1"), 10.0)
    assert port is not None
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0)) for _ in range(8)]
        for connection in idle if knows_identity else ():
            word, answer = endpoint._words(listener.identity)
            connection.sendall(word)
            assert connection.recv(16, socket.MSG_WAITALL) == answer
        assert asyncio.run(endpoint.reach("127.0.0.1", port, listener.identity, 3.0)).failure is None
        assert idle[0].recv(16, socket.MSG_WAITALL) == b"busy" * 4
        # A caller of any place may have waited meanwhile, although the kernel has dropped nothing.
        other = listener.run(listener.listen("127.0.0.1"), 10.0)
        assert other is not None
        assert listener.crowded() == {("127.0.0.1", port), ("127.0.0.1", other)}


def test_a_listener_knows_that_the_kernel_dropped_calls(
    monkeypatch: pytest.MonkeyPatch, listener: endpoint.Endpoint
) -> None:
    """Whoever fills its queue faster than it is emptied makes it look closed: any user of its machine can.

    Its node tells so in the last stage, when all have made their calls.
    """
    monkeypatch.setattr(endpoint, "_MOST_WAITING", 1)
    monkeypatch.setattr(measurement, "Endpoint", lambda: listener)
    events: list[Any] = []
    step: dict[str, Any] = {"node": 1, "check": "network", "stage": "listen", "gen": 0, "step": 0, "given": {}}
    step |= {"backend": "gloo", "device": "cpu", "address": "127.0.0.1", "env": {}}
    context = NodeContext(step=cast(NodeStep, step), emit=events.append)
    measurement.measure(context, Params())
    context.step = cast(NodeStep, {**step, "stage": "count"})
    measurement.measure(context, Params())
    ((role, address, port), *_) = context.shared[2]
    said = {event["facts"][0]["name"]: event["facts"][0]["value"] for event in events}
    assert (role, said["crowded"], listener.crowded()) == ("data", [], set())
    with ExitStack() as stack:
        stack.enter_context(_held_up(listener))
        until = time.monotonic() + 10
        while not listener.crowded():
            assert time.monotonic() < until
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((address, port))
        while not listener.kept_waiting():
            assert time.monotonic() < until
    measurement.measure(context, Params())
    told = [event["facts"][0] for event in events[-2:]]
    assert [(fact["name"], fact["value"], fact["stage"]) for fact in told] == [
        ("crowded", ["data"], "count"),
        ("kept_waiting", ["data"], "count"),
    ]


@contextmanager
def _held_up(listener: endpoint.Endpoint) -> Iterator[None]:
    """Keep the loop of a listener from everything, as others who take its core do."""
    is_over = threading.Event()
    listener._loop.call_soon_threadsafe(is_over.wait, 20)
    try:
        yield
    finally:
        is_over.set()


@pytest.mark.parametrize("loop_runs", [True, False], ids=["it accepts none", "it stands still"])
def test_a_listener_knows_that_callers_waited(listener: endpoint.Endpoint, loop_runs: bool) -> None:
    """Few visitors at once, and a queue that is never full: each says something wrong, and its visit is over."""
    port = listener.run(listener.listen("127.0.0.1"), 10.0)
    other = listener.run(listener.listen("127.0.0.1"), 10.0)
    assert port is not None
    assert other is not None
    own = listener._listeners["127.0.0.1", port][0]
    with ExitStack() as stack:
        if loop_runs:  # as without a descriptor for the next connection
            listener._loop.call_soon_threadsafe(listener._loop.remove_reader, own.fileno())
        else:
            stack.enter_context(_held_up(listener))
        for _ in range(40):
            visitor = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
            visitor.sendall(bytes(16))
        until = time.monotonic() + 10
        while ("127.0.0.1", port) not in listener.kept_waiting():
            assert time.monotonic() < until
            time.sleep(0.01)
    if not loop_runs:
        assert asyncio.run(endpoint.reach("127.0.0.1", port, listener.identity, 3.0)).failure is None
        assert listener.kept_waiting() == {("127.0.0.1", port), ("127.0.0.1", other)}
    assert ("127.0.0.1", port) in listener.kept_waiting()
    assert listener.crowded() == set()


def test_nobody_waits_at_a_listener_of_many_honest_callers(
    monkeypatch: pytest.MonkeyPatch, listener: endpoint.Endpoint
) -> None:
    monkeypatch.setattr(waits, "_LONG_S", 5.0)
    port = listener.run(listener.listen("127.0.0.1"), 10.0) or 0
    waiting = listener._listeners["127.0.0.1", port][2]

    async def storm() -> list[endpoint.Reached]:
        calls = [endpoint.reach("127.0.0.1", port, listener.identity, 3.0) for _ in range(64)]
        return await asyncio.gather(*calls)

    assert {reached.failure for reached in asyncio.run(storm())} == {None}
    ended, until = time.monotonic(), time.monotonic() + 10
    while waiting._none_at < ended:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert (listener.crowded(), listener.kept_waiting()) == (set(), set())


def test_a_listener_without_descriptors_writes_no_tracebacks(
    listener: endpoint.Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may hold connections until the next one cannot be taken: asyncio would tell of each attempt."""
    error = OSError(errno.EMFILE, "")
    listener._loop.call_exception_handler({"message": "out of resources", "exception": error})
    assert caplog.records == []
    listener._loop.call_exception_handler({"message": "a mistake of ours", "exception": ValueError()})
    assert len(caplog.records) == 1


def test_idle_connections_leave_descriptors_to_a_node_with_few() -> None:
    words, pipe = [sys.executable, "-c", _WITH_FEW_DESCRIPTORS], subprocess.PIPE
    with subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as node, ExitStack() as stack:
        assert node.stdout is not None
        port, identity = node.stdout.readline().split()
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", int(port)), timeout=10.0))
        failure = asyncio.run(endpoint.reach("127.0.0.1", int(port), bytes.fromhex(identity), 10.0)).failure
        _, errors = node.communicate(timeout=20)
    assert (failure, errors) == (None, "")


def test_a_caller_that_stood_still_says_nothing_of_the_other_node(listener: endpoint.Endpoint) -> None:
    """Its own clock is over before it looks whether somebody has answered."""
    port = listener.run(listener.listen("127.0.0.1"), 10.0) or 0
    own, peer = (
        Peer(node=node, machine=str(node), place="", identity=listener.identity, places=(("data", address, port),))
        for node, address in enumerate(("127.0.0.2", "127.0.0.1"))
    )

    async def hold_up() -> None:
        for _ in range(4):
            time.sleep(0.7)
            await asyncio.sleep(0)

    async def call() -> dict[str, Any]:
        calls = _Calls({0: None, 1: peer}, own, Params(connect_timeout_s=0.3), "")
        calls.begun, _ = await asyncio.gather(calls.run(30.0), hold_up())
        return calls.to_json()

    report = asyncio.run(call())
    assert (report["failed"], report["untried"]) == ([], [[1, 1]])


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_call_that_the_own_kernel_may_have_dropped_says_nothing(
    monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    """A neighbor can fill the table of connections, without which no call leaves this node."""
    counted = itertools.count(7, dropped)
    monkeypatch.setattr(measurement, "unplaced", lambda: next(counted))

    async def unanswered(*place: Any, **options: Any) -> endpoint.Reached:
        return endpoint.Reached(failure="no answer")

    monkeypatch.setattr(measurement, "reach", unanswered)
    own, peer = (
        Peer(node=node, machine=str(node), place="", identity=OURS, places=(("data", f"127.0.0.{2 - node}", 2_000),))
        for node in (0, 1)
    )

    async def call() -> dict[str, Any]:
        calls = _Calls({0: None, 1: peer}, own, Params(connect_timeout_s=0.3), "")
        calls.begun = await calls.run(30.0)
        return calls.to_json()

    report = asyncio.run(call())
    assert (report["untried"], len(report["failed"])) == (([[1, 1]], 0) if dropped else ([], 1))


def test_a_listener_is_another_one_to_strangers(
    listener: endpoint.Endpoint,
) -> None:
    port = listener.run(listener.listen("127.0.0.1"), 10.0)
    assert port is not None
    assert asyncio.run(endpoint.reach("127.0.0.1", port, OURS, 3.0)).failure == "another answers"


@pytest.mark.parametrize("before", [b"", OUR_ANSWER], ids=["unknown", "known"])
def test_a_listener_that_says_it_is_busy_is_not_closed(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """A double of a listener under a flood: each caller is dropped before or after it was known."""
    monkeypatch.setattr(endpoint, "_BUSY_PAUSE_S", 0.01)
    calls = []

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(writer)
        writer.write(before + b"busy" * 4)
        writer.close()

    async def call() -> endpoint.Reached:
        server = await asyncio.start_server(drop, "127.0.0.1")
        async with server:
            return await endpoint.reach("127.0.0.1", server.sockets[0].getsockname()[1], OURS, 0.5)

    assert asyncio.run(call()).failure == "busy"
    assert len(calls) > 1


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.ECONNREFUSED, "refused"),
        (errno.ECONNRESET, "refused"),
        (errno.EHOSTUNREACH, "no route"),  # an unreachable route, or no neighbor
        (errno.EACCES, "no route"),  # a route that prohibits
        (errno.EINVAL, "no route"),  # a blackhole route
        (errno.EADDRNOTAVAIL, "not tried"),  # no port left
        (errno.ETIMEDOUT, "no answer"),
    ],
)
def test_an_error_of_the_kernel_has_its_word(monkeypatch: pytest.MonkeyPatch, number: int, failure: str) -> None:
    """A double of the kernel's answer: routes cannot be changed here."""

    async def refuse(loop: object, connection: object, place: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", refuse)
    assert asyncio.run(endpoint.reach("127.0.0.1", 1, OURS, 0.1)).failure == failure


@pytest.mark.parametrize("word", [b"", OUR_ANSWER], ids=["silent", "half an answer"])
def test_a_node_that_answers_slowly_does_not_take_the_report_of_others(word: bytes) -> None:
    """It answers in part, after a long time, or never; the step of the caller ends before that."""
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def call() -> dict[str, Any]:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        place = ("data", "127.0.0.1", server.sockets[0].getsockname()[1])
        own, peer = (
            Peer(node=node, machine=str(node), place="", identity=OURS, places=(at,))
            for node, at in enumerate((("data", "127.0.0.2", 2_000), place))
        )
        calls = _Calls({0: None, 1: peer}, own, Params(connect_timeout_s=0.1), "")
        calls.begun = await calls.run(0.5)
        server.close()
        await ended.wait()
        return calls.to_json()

    report = asyncio.run(asyncio.wait_for(call(), 5.0))
    assert report["untried"] == []
    assert [(entry["how"], entry["nodes"]) for entry in report["failed"]] == [("silent", [[1, 1]])]


@pytest.mark.parametrize(
    ("address", "own", "failure"),
    [
        ("127.0.0.1", "10.0.0.1", "no route"),
        ("127.9.9.9", "127.0.0.1", "no route"),
        ("::1", "10.0.0.1", "no route"),
        ("::ffff:127.0.0.1", "10.0.0.1", "no route"),
        ("0.0.0.0", "10.0.0.1", "no route"),
        ("::", "10.0.0.1", "no route"),
        ("224.0.0.1", "10.0.0.1", "no route"),
        ("ff02::1", "10.0.0.1", "no route"),
        ("169.254.169.254", "10.0.0.1", "no route"),
        ("fe80::1%lo", "10.0.0.1", "no route"),
        ("127.0.0.1", "127.0.0.1", "another answers"),
    ],
)
def test_an_address_that_means_this_machine_or_many_is_not_called(address: str, own: str, failure: str) -> None:
    """The other node may share any address: nothing that listens on this machine hears from us because of it."""

    async def call() -> tuple[dict[str, Any], int]:
        heard = []
        async with await asyncio.start_server(lambda *ends: heard.append(ends), address) as server:
            return await report(server.sockets[0].getsockname()[1]), len(heard)

    async def report(port: int) -> dict[str, Any]:
        ours = Peer(node=0, machine="0", place="host0", identity=OURS, places=(("data", own, 2_000),))
        other = Peer(node=1, machine="1", place="host1", identity=OTHER, places=(("data", address, port),))
        calls = _Calls({0: None, 1: other}, ours, Params(connect_timeout_s=0.5), "")
        calls.begun = await calls.run(5.0)
        return calls.to_json()

    told, heard = asyncio.run(call()) if address.startswith("127") else (asyncio.run(report(40_000)), 0)
    assert heard == 0
    assert [(entry["how"], entry["nodes"]) for entry in told["failed"]] == [(failure, [[1, 1]])]


@pytest.mark.parametrize(
    ("address", "own", "place"),
    [("127.0.0.1", "127.0.0.2", "host0"), ("169.254.7.2", "169.254.7.1", "host1"), ("10.9.0.2", "10.0.0.1", "host1")],
)
def test_an_address_that_the_node_may_have_is_called(address: str, own: str, place: str) -> None:
    ours = Peer(node=0, machine="0", place="host0", identity=OURS, places=(("data", own, 2_000),))
    other = Peer(node=1, machine="1", place=place, identity=OTHER, places=(("data", address, 2_000),))
    assert leads_elsewhere(address, ours, other) is None


def test_a_burst_of_strangers_takes_few_descriptors(
    monkeypatch: pytest.MonkeyPatch, listener: endpoint.Endpoint
) -> None:
    """The kernel has accepted them all; they are taken from it a few at a time, and the oldest give way."""
    monkeypatch.setattr(endpoint, "_MAX_VISITORS", 8)
    port = listener.run(listener.listen("127.0.0.1"), 10.0)
    most = [0]

    async def stop() -> None:
        time.sleep(1.0)  # the burst comes meanwhile

    def count() -> None:
        most[0] = max(most[0], len(os.listdir("/proc/self/fd")))
        listener._loop.call_soon(count)

    before = len(os.listdir("/proc/self/fd"))
    stopped = asyncio.run_coroutine_threadsafe(stop(), listener._loop)
    listener._loop.call_soon_threadsafe(count)
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port or 0), timeout=10.0))
        stopped.result(10.0)
        assert asyncio.run(endpoint.reach("127.0.0.1", port or 0, listener.identity, 5.0)).failure is None
    assert most[0] - before < 300 + 200
