"""How an agent finds that its controller is silent, or reads nothing, and what it does for one that goes on."""

from __future__ import annotations

import base64
import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import AnyJob, StubConductor

from seatrial.agent import supervisor
from seatrial.agent.control_connection import ControlConnection
from seatrial.agent.rank_process import RankProcess
from seatrial.agent.supervisor import Agent
from seatrial.probe.process import read_process
from seatrial.protocol.wire import Decoder, encode

pytestmark = pytest.mark.usefixtures("keeps_children")

_OUTPUT_BYTES = 4 << 20
_PRINTS = f"""import os, sys, time
for _ in range({_OUTPUT_BYTES >> 14}):
    print(os.urandom(1 << 13).hex(), end="", flush=True)
"""
"""A script whose output exceeds what the connection holds, compressed, too."""
_REPORTS = """import os, sys
for number in range(6000):
    os.write(int(os.environ["SEATRIAL_EVENT_FD"]), b"%05d %s\\n" % (number, b"x" * 3500))
    os.pwrite(int(sys.argv[1]), b"%05d" % number, 0)
"""
_PROGRAM: dict[str, Any] = {"watched": False, "shown": [], "world_size": 1, "group_rank": 0, "nnodes": 1}
_PROGRAM |= {"master_addr": "10.0.0.1", "master_port": 5000, "spawns": 0, "cwd": "/", "max_restarts": 0}
_NOBODY: dict[str, list[object]] = {"owners": [], "mounters": [], "open_places": []}
_PROGRAM |= {"script": "", "cwd_trust": _NOBODY, "script_trust": _NOBODY}


class Peer:
    """The other end of the connection of an agent of this process: it sends heartbeats, and reads when it is asked."""

    def __init__(self, folder: Path | None = None) -> None:
        ours, self._socket = socket.socketpair()
        control = ControlConnection(connection=ours, received=b"", tags_sent=None, tags_received=None)
        kept = None if folder is None else str(folder)
        self.agent = Agent(control=control, address="127.0.0.1", node_rank=0, cores=1, folder=kept, job=AnyJob())
        self._data = b""
        self._ends = threading.Event()
        self._beats = threading.Thread(target=self._beat)
        self.send({"kind": "welcome", "run": "x"})

    def send(self, command: dict[str, Any]) -> None:
        self._socket.sendall(b"".join(encode(command)))

    def begin(self) -> None:
        self._beats.start()

    def _beat(self) -> None:
        while not self._ends.wait(0.05):
            self.send({"kind": "heartbeat"})

    def read(self) -> None:
        while piece := self._socket.recv(1 << 16):
            self._data += piece
        self._ends.set()
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._ends.set()
        if self._beats.is_alive():
            self._beats.join()
        self._socket.close()
        for spool in self.agent._output.spools._spools:
            spool.free()

    def heard(self) -> list[dict[str, Any]]:
        return list(Decoder().lines(self._data))


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def _start_program(code: str, *args: str, watched: bool = False) -> dict[str, Any]:
    program = {**_PROGRAM, "argv": [sys.executable, "-c", code], "args": list(args), "watched": watched}
    return {"kind": "start_program", "run": "x", "gen": 0, "places": [[0, 0]], "env": {}, "program": program}


def _output(messages: list[dict[str, Any]]) -> tuple[int, bool]:
    """How many bytes arrived without a gap, and whether that was all."""
    num_bytes, last = 0, False
    for message in messages:
        if message["kind"] == "log":
            assert message["at"] == num_bytes
            num_bytes += len(zlib.decompress(base64.b64decode(message["data"])))
            last = message["last"]
    return num_bytes, last


def _fill(agent: Agent, num_bytes: int) -> None:
    """Have the agent send and print more than its connection holds."""
    agent._output.spools.open(0, 0).write(os.urandom(num_bytes))
    for _ in range(num_bytes >> 10):
        agent._channel.write(b"x" * 1_000 + b"\n")


def test_slow_work_of_its_own_hides_no_silent_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody in the path who takes a line now and then makes each round of its loop that slow."""
    monkeypatch.setattr(supervisor, "_PAUSED_S", 0.1)
    monkeypatch.setattr(supervisor, "CONDUCTOR_SILENT_S", 0.5)
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    os.write(write, b"work")
    control = ControlConnection(connection=ours, received=b"", tags_sent=None, tags_received=None)
    agent = Agent(control=control, address="127.0.0.1", node_rank=0, cores=1, folder=None, job="")
    agent._selector.register(read, selectors.EVENT_READ, lambda: time.sleep(0.2))
    with theirs:
        assert agent.serve([], []) == 3
    os.close(read)
    os.close(write)


def test_an_agent_that_can_start_no_rank_says_what_its_host_lacks(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    noted: list[str] = []
    monkeypatch.setattr(Agent, "_note", lambda agent, text: noted.append(text))
    monkeypatch.setattr(subprocess, "Popen", no_process)
    peer.send(_start_program("pass"))
    peer.begin()
    reader = threading.Thread(target=peer.read)
    reader.start()
    assert peer.agent.serve([], []) == 3
    peer.agent._connection.close()
    reader.join()
    error = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert noted == [f"the agent of node 0 got no further thread or process from its host: {error}"]


def test_a_controller_that_sends_and_reads_nothing_ends_it(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CONDUCTOR_SILENT_S", 0.5)
    noted: list[str] = []
    monkeypatch.setattr(Agent, "_note", lambda agent, text: noted.append(text))
    _fill(peer.agent, 1 << 20)
    peer.begin()
    assert peer.agent.serve([], []) == 3
    assert noted == ["node 0 could send nothing to the controller for 0 s; its ranks were ended"]


def _reads_after(pause_s: float, peer: Peer) -> threading.Thread:
    """Return a controller that goes on after this time, once it is started."""

    def goes_on() -> None:
        time.sleep(pause_s)
        peer.read()

    return threading.Thread(target=goes_on)


def test_a_controller_that_goes_on_in_time_loses_nothing(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing until long after its last command."""
    monkeypatch.setattr(supervisor, "CONDUCTOR_SILENT_S", 20.0)

    def goes_on() -> None:
        time.sleep(0.5)
        peer.send({"kind": "stop"})
        time.sleep(0.5)
        peer.read()

    reader = threading.Thread(target=goes_on)
    _fill(peer.agent, _OUTPUT_BYTES)
    peer.begin()
    reader.start()
    assert peer.agent.serve([], []) == 0
    reader.join()
    assert peer.heard()[-1]["kind"] == "end"
    assert _output(peer.heard()) == (_OUTPUT_BYTES, True)


def test_a_controller_that_goes_on_too_late_hears_why(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks have ended then; without a reason this node would count as lost."""
    monkeypatch.setattr(supervisor, "CONDUCTOR_SILENT_S", 1.0)

    reader = _reads_after(1.6, peer)
    _fill(peer.agent, 1 << 20)
    peer.begin()
    reader.start()
    assert peer.agent.serve([], []) == 3
    reader.join()
    assert [message["text"] for message in peer.heard() if message["kind"] == "note"] == [
        "node 0 could send nothing to the controller for 1 s; its ranks were ended"
    ]
    assert peer.heard()[-1]["kind"] == "end"


def test_news_of_a_signal_comes_before_the_end_of_ranks(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_HURRY_S", 20.0)
    all_was_taken: list[bool] = []
    monkeypatch.setattr(Agent, "_end_ranks", lambda agent, stacks: all_was_taken.append(agent._channel.is_free()))

    reader = _reads_after(0.5, peer)
    _fill(peer.agent, 1 << 20)
    reader.start()
    assert peer.agent.serve([signal.SIGTERM], []) == 3
    reader.join()
    assert all_was_taken == [True]


def test_news_of_a_signal_comes_before_any_later_exit(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that gets the signal as well may answer it by any exit code."""
    signals: list[int] = []
    reap = Agent._reap_one

    def reap_one(agent: Agent, process: RankProcess) -> None:
        signals.append(signal.SIGTERM)
        reap(agent, process)
        agent._over = True

    monkeypatch.setattr(Agent, "_reap_one", reap_one)
    peer.send(_start_program("raise SystemExit(1)"))
    reader = _reads_after(0.0, peer)
    reader.start()
    peer.agent.serve(signals, [])
    reader.join()
    kinds = [message["kind"] for message in peer.heard()]
    assert kinds.index("signal") < kinds.index("exit")


def test_a_second_signal_waits_for_no_last_words(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_HURRY_S", 0.2)
    _fill(peer.agent, 1 << 20)
    began = time.monotonic()
    assert peer.agent.serve([signal.SIGINT, signal.SIGINT], []) == 3
    assert time.monotonic() - began < 20


@pytest.fixture
def conductor() -> Iterator[StubConductor]:
    stub = StubConductor(Path("/no/such/folder"))
    stub.send({"kind": "welcome", "run": "x"})
    yield stub
    stub.close()


def test_events_that_nobody_reads_wait_in_the_rank(conductor: StubConductor, tmp_path: Path) -> None:
    """A rank that floods its agent costs it no memory without end, and its events keep their order."""
    count = tmp_path / "count"
    code = _REPORTS.replace("int(sys.argv[1])", "os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)")
    conductor.send(_start_program(code, str(count), watched=True))
    before = b""
    while not count.exists() or count.read_bytes() != before:
        before = count.read_bytes() if count.exists() else b""
        time.sleep(0.7)
    assert int(before) < 5999
    lines = []
    for received in conductor._lines:
        line = conductor._tags_heard.remove(received.rstrip(b"\n")) if conductor._tags_heard else received
        assert line is not None
        if line.endswith(b"x" * 3500):
            lines.append(int(line[:5]))
        if b'"kind":"exit"' in line:
            break
    assert lines == list(range(6000))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_controller_that_stands_still_for_15_s_loses_nothing(conductor: StubConductor) -> None:
    conductor.send(_start_program(_PRINTS))
    conductor.until_kind("log")
    for _ in range(7):
        time.sleep(2.0)
        assert read_process(conductor.agent_pid) is not None
    time.sleep(1.0)
    conductor.until_kind("exit")
    conductor.until(lambda message: message["kind"] == "log" and message["last"])
    conductor.send({"kind": "stop"})
    assert conductor.hear_out() == 0
    assert _output(conductor.heard) == (_OUTPUT_BYTES, True)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_controller_that_stands_still_for_good_ends_all_ranks(conductor: StubConductor) -> None:
    conductor.send(_start_program(_PRINTS + "time.sleep(600)"))
    conductor.until_kind("log")
    began = time.monotonic()
    (rank,) = conductor.ranks()
    while (seen := read_process(rank)) is not None and seen.state not in ("X", "Z"):
        assert time.monotonic() - began < 45
        time.sleep(0.2)
    assert time.monotonic() - began > 25
    conductor.hear_out()
    assert any("received nothing from the controller for 30 s" in note["text"] for note in conductor.of("note"))
