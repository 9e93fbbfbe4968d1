"""The processes that we started, and the signals that we are sent."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import threading
import zlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from targets.jobs import A_JOB

from seatrial.conductor.server import Server
from seatrial.errors import SeatrialError
from seatrial.protocol.munge import MungeError
from seatrial.run import conduct as module
from seatrial.run import munge_hosts, node_hosts
from seatrial.run.conduct import catch_questions, catch_signals, conduct
from seatrial.run.external_launcher import Rendezvous
from seatrial.targets.command import Command
from seatrial.targets.host_of_node import HostOfNode
from seatrial.targets.processes import Agents, Attach


class UnkillableProcessDouble:
    """A process in state D: signals do nothing, and who waits without a deadline waits for ever."""

    pid = 4242

    def poll(self) -> None:
        return None

    def send_signal(self, number: int) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "would wait for ever"
        raise subprocess.TimeoutExpired("agent", timeout)


def test_an_agent_that_outlives_its_kill_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(agents: Agents, commands: tuple[Command, ...], folder: Path, *others: Any) -> None:
        agents.processes[0] = UnkillableProcessDouble()  # type: ignore[assignment]

    monkeypatch.setattr(Agents, "submit", submit)
    monkeypatch.setattr(Server, "serve", lambda *arguments: None)
    events: list[dict[str, Any]] = []
    conduct(A_JOB, tmp_path, events.append, [])
    note, end = [event for event in events if event["src"] == "launch"]
    assert (note["severity"], end["kind"]) == ("warn", "end")
    assert "node 0: process 4242" in note["text"]


def test_a_failed_start_closes_the_server_and_ends_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Agents] = []

    def ends(agents: Agents) -> list[tuple[int, str]]:
        ended.append(agents)
        return []

    def breaks(agents: Agents, commands: tuple[Command, ...], folder: Path, *others: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Agents, "submit", breaks)
    monkeypatch.setattr(Agents, "cleanup", ends)
    events: list[dict[str, Any]] = []
    with pytest.raises(OSError, match="no more processes"):
        conduct(A_JOB, tmp_path, events.append, [])
    assert len(ended) == 1
    assert [event["kind"] for event in events] == ["run"], "what was asked is known to the report"


def test_without_a_free_port_the_request_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: Any) -> Server:
        raise SeatrialError("no free port")

    monkeypatch.setattr(module, "Server", refuses)
    events: list[dict[str, Any]] = []
    with pytest.raises(SeatrialError):
        conduct(A_JOB, tmp_path, events.append, [])
    assert [event["kind"] for event in events] == ["run"]


@pytest.mark.parametrize("is_one", [True, False])
def test_the_first_event_says_whether_the_controller_is_in_a_container(
    is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*arguments: Any) -> Server:
        raise SeatrialError("no free port")

    monkeypatch.setattr(module, "Server", refuses)
    monkeypatch.setattr(module, "is_in_container", lambda environ: is_one)
    events: list[dict[str, Any]] = []
    with pytest.raises(SeatrialError):
        conduct(A_JOB, tmp_path, events.append, [])
    assert events[0].get("in_container", False) is is_one


def test_a_host_that_no_address_binds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its resolver does not answer, or only ssh knows the name."""
    monkeypatch.setattr(module, "addresses_of", lambda hosts: {0: {"192.0.2.7"}})
    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Server, "serve", lambda *arguments: None)
    events: list[dict[str, Any]] = []
    job = replace(A_JOB, nodes=3, hosts=("gpu-0", "gpu-1", "gpu-2"))
    conduct(job, tmp_path, events.append, [])
    (note,) = [event for event in events if event["kind"] == "note"]
    assert note["severity"] == "info"
    assert note["text"].startswith("no address of hosts gpu-1 and gpu-2 is known here")


def test_a_reason_why_hosts_are_not_known_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hosts(agents: Agents) -> None:
        raise SeatrialError("two steps have this name")

    def serve(server: Server, conductor: Any, nodes: int, source: Any, on_idle: Any) -> None:
        monkeypatch.setattr(Server, "members", range(nodes))
        on_idle(())

    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Agents, "hosts", hosts)
    monkeypatch.setattr(Server, "serve", serve)
    events: list[dict[str, Any]] = []
    conduct(A_JOB, tmp_path, events.append, [])
    note, end = [event for event in events if event["src"] == "hosts"]
    assert (note["severity"], note["text"], end["kind"]) == ("error", "two steps have this name", "end")
    assert note["untrusted"] == [*range(A_JOB.nodes)], "one of them can have ended the comparison"


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_nodes_that_nobody_could_ask_for_are_not_called_compared(
    is_interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this user has no process left the report says from where nobody knows the nodes to be."""
    start = threading.Thread.start

    def start_all_but_the_search(thread: threading.Thread) -> None:
        if thread.name == "hosts":
            raise RuntimeError("can't start new thread")
        start(thread)

    def serve(server: Server, conductor: Any, nodes: int, source: Any, on_idle: Any) -> None:
        monkeypatch.setattr(Server, "members", range(nodes))
        monkeypatch.setattr(Server, "credentials", {0: ("proof", "MUNGE:x:"), 1: ("proof", "MUNGE:x:")})
        on_idle(())

    def does_not_answer(purpose: str, credential: str) -> None:
        raise MungeError("unmunge did not answer within 10 s")

    monkeypatch.setattr(threading.Thread, "start", start_all_but_the_search)
    monkeypatch.setattr(munge_hosts, "read_credential", does_not_answer)
    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Server, "serve", serve)
    events: list[dict[str, Any]] = []
    conduct(replace(A_JOB, nodes=2), tmp_path, events.append, [signal.SIGINT] * is_interrupted)
    told = [event for event in events if event["src"] == "hosts"]
    assert [event["kind"] for event in told] == ([] if is_interrupted else ["note", "end"])
    for note in told[:-1]:
        assert note["severity"] == "info"
        assert note["text"].startswith("what munge says of nodes 0 and 1 could not be read (unmunge did not answer")


def test_a_munge_that_fails_once_more_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had worked when this process looked for a secret."""
    monkeypatch.setenv("PATH", str(tmp_path))
    rendezvous = Rendezvous(
        host="127.0.0.1", ports=(0,), token="", protected=True, launcher="slurm", number=0, agents=2
    )
    with pytest.raises(SeatrialError, match="carry the secret of this job: munge is not installed; make a secret in a"):
        conduct(replace(A_JOB, nodes=2), tmp_path, lambda event: None, [], rendezvous)


@pytest.mark.parametrize("is_answered", [True, False])
def test_after_ctrl_c_nobody_calls_nodes_compared_that_were_not(
    is_answered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = threading.Event(), threading.Event()

    def hosts(agents: Agents) -> None:
        asked.set()
        assert answer.wait(20.0)

    def serve(server: Server, conductor: Any, nodes: int, source: Any, on_idle: Any) -> None:
        monkeypatch.setattr(Server, "members", range(nodes))
        on_idle(())
        assert asked.wait(20.0)
        if is_answered:
            answer.set()
            (thread,) = (thread for thread in threading.enumerate() if thread.name == "hosts")
            thread.join(20.0)

    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Agents, "hosts", hosts)
    monkeypatch.setattr(Server, "serve", serve)
    events: list[dict[str, Any]] = []
    conduct(replace(A_JOB, nodes=2), tmp_path, events.append, [signal.SIGINT])
    answer.set()
    assert events[0]["sources"] == ["hosts"]
    assert [event["kind"] for event in events if event["src"] == "hosts"] == (["end"] if is_answered else [])


@pytest.mark.parametrize("name", ["", "n"])
def test_after_ctrl_c_names_alone_are_no_comparison(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def addresses_of(hosts: Sequence[str], **limits: float) -> dict[int, set[str]]:
        asked.set()
        assert answer.wait(20.0)
        return {}

    def serve(server: Server, conductor: Any, nodes: int, source: Any, on_idle: Any) -> None:
        monkeypatch.setattr(Server, "members", range(nodes))
        on_idle(())
        assert asked.wait(20.0)

    monkeypatch.setattr(node_hosts, "addresses_of", addresses_of)
    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Agents, "hosts", lambda agents: [HostOfNode(f"{i}.example", name and f"n{i}") for i in (0, 1)])
    monkeypatch.setattr(Server, "serve", serve)
    events: list[dict[str, Any]] = []
    conduct(replace(A_JOB, nodes=2), tmp_path, events.append, [signal.SIGINT])
    answer.set()
    assert [event["kind"] for event in events if event["src"] == "hosts"] == (["slurm_nodes"] if name else [])


_OUTPUT = {"kind": "output", "rank": 0, "gen": 0, "lines": ["x"], "left_out": 0}
_PIECE = {
    "kind": "log",
    "rank": 0,
    "gen": 0,
    "at": 0,
    "data": base64.b64encode(zlib.compress(b"x")).decode(),
    "last": False,
}
_PROGRESS = {
    **dict.fromkeys(("rank", "gen", "epoch"), 0),
    **dict.fromkeys(("step", "num_steps", "num_epochs"), 3),
    "kind": "progress",
    "loss": 0.5,
    "accuracy": None,
    "samples_per_s": 7,
    "left_s": 1.5,
}


def _handed_on(
    sent: Sequence[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return what the conductor in a followed pod hands on of these messages, and those that count as damage."""
    refused = []

    def serve(server: Server, conductor: Any, nodes: int, source: Any, on_idle: Any) -> None:
        server._on_event({"kind": "generation", "gen": 0, "ranks": []})
        for message in sent:
            try:
                server._on_message(message)
            except (LookupError, TypeError, ValueError, AttributeError):
                refused.append(message)
        on_idle(()), on_idle(())

    monkeypatch.setenv("SEATRIAL_LIVE", "x")
    monkeypatch.setattr(Agents, "submit", lambda *arguments: None)
    monkeypatch.setattr(Server, "serve", serve)
    messages: list[dict[str, Any]] = []
    conduct(A_JOB, folder, lambda event: None, [], None, messages.append)
    assert [path.name for path in folder.iterdir()] == []
    return messages, refused


def test_a_pod_hands_on_what_is_read_and_says_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log would be full of what a single agent says of itself without end."""
    sent: list[dict[str, Any]] = [{"kind": "status"}, _PIECE, {"kind": "killed"}, _OUTPUT, {"kind": "x"}, _PROGRESS]
    messages, refused = _handed_on(sent, tmp_path, monkeypatch)
    assert [message["kind"] for message in messages] == ["log", "output", "progress", "heartbeat"]
    assert not refused


@pytest.mark.parametrize("lines", [["x" * 65_535], [""] * 65_536])
def test_output_is_no_longer_than_that_of_an_agent(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message near the limit of the wire does not fit into a line with a number and a proof."""
    honest, lie = {**_OUTPUT, "lines": lines}, {**_OUTPUT, "lines": [*lines, ""]}
    messages, refused = _handed_on([honest, lie], tmp_path, monkeypatch)
    assert (len(messages), refused == [lie]) == (2, True)


@pytest.mark.parametrize(
    "lie",
    [
        {**_PIECE, "data": "!"},
        {**_PIECE, "gen": 1},
        {**_PIECE, "at": -1},
        {**_PIECE, "rank": "0"},
        {**_OUTPUT, "lines": [[]]},
        {**_OUTPUT, "lines": "x"},
        {**_OUTPUT, "left_out": None},
        {"kind": "output"},
        {**_OUTPUT, "rank": 0.5},
        {**_PROGRESS, "step": "1"},
        {**_PROGRESS, "loss": "nan"},
        {key: value for key, value in _PROGRESS.items() if key != "left_s"},
    ],
    ids=str,
)
def test_a_pod_hands_on_no_damage_of_another_one(lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller outside would take it for damage of the first pod."""
    messages, refused = _handed_on([lie], tmp_path, monkeypatch)
    assert ([message["kind"] for message in messages], refused) == (["heartbeat"], [lie])


def test_a_pod_hands_on_no_piece_of_output_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, refused = _handed_on([_PIECE, _PIECE], tmp_path, monkeypatch)
    assert ([message["kind"] for message in messages], refused) == (["log", "heartbeat"], [_PIECE])


class DriverDouble:
    """Has started nothing, and counts how often it is told to kill."""

    killed = 0

    def __init__(self) -> None:
        self.passed_on: list[int] = []

    def submit(self, commands: Sequence[Command], folder: Path, signals: Sequence[int], attach: Attach) -> None:
        return None

    def poll(self, connected: Collection[int]) -> tuple[int, str]:
        return 3, "gone"

    def pass_on(self, number: int, connected: Collection[int]) -> None:
        self.passed_on.append(number)

    def kill(self) -> None:
        self.killed += 1

    def hosts(self) -> None:
        return None

    def cleanup(self) -> list[tuple[int, str]]:
        return []


def test_each_signal_is_news_once_and_the_second_kills() -> None:
    driver = DriverDouble()
    signals: list[int] = []
    news = module._idle_news(driver, signals)
    assert news(()) == (3, "gone")
    signals.append(signal.SIGINT)
    assert (news(()), driver.killed) == ("SIGINT", 0)
    assert news(()) == (3, "gone")
    signals.append(signal.SIGTERM)
    assert (news(()), driver.killed) == ("SIGTERM", 1)


def test_two_signals_between_two_ticks_are_two_news() -> None:
    driver = DriverDouble()
    news = module._idle_news(driver, [signal.SIGTERM, signal.SIGINT])
    assert [news(()), news(()), news(())] == ["SIGTERM", "SIGINT", (3, "gone")]
    assert driver.killed == 1


def test_after_the_second_signal_a_third_ends_us() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        with catch_signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (signals, told) == ([signal.SIGTERM] * 2, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert (signals, told) == ([signal.SIGTERM] * 2, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sighup_that_follows_a_sigterm_is_no_second_signal() -> None:
    """systemd sends both at once to all processes of a session that ends."""
    with catch_signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals == [signal.SIGTERM, signal.SIGTERM]


def test_signals_for_the_ranks_are_passed_on_and_questions_asked() -> None:
    driver = DriverDouble()
    questions = [signal.SIGUSR1, signal.SIGQUIT, signal.SIGUSR2]
    news = module._idle_news(driver, [signal.SIGTERM], questions)
    assert (news(()), driver.passed_on) == ("SIGQUIT", [signal.SIGUSR1, signal.SIGUSR2])
    questions.append(signal.SIGUSR1)
    assert (news(()), driver.passed_on[2:]) == ("SIGTERM", [signal.SIGUSR1])
    assert (news(()), len(driver.passed_on)) == ((3, "gone"), 3)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_for_the_ranks_ends_no_conductor(number: int) -> None:
    """`sbatch --signal=USR1@120` sends it to each process of srun."""
    told: list[int] = []
    before = signal.signal(number, lambda number, frame: told.append(number))
    try:
        with catch_signals() as signals:
            os.kill(os.getpid(), number)
            with catch_questions() as questions:
                os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        assert (told, signals, questions) == ([], [], [number])
        os.kill(os.getpid(), number)
        assert told == [number]
    finally:
        signal.signal(number, before)
