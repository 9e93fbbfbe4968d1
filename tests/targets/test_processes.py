"""The child processes that start the agents: how their end is reported, and how they are killed."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from by_day import by_day
from hostile_files import HOSTILE

from seatrial.agent.guardian import END_AT_ONCE
from seatrial.errors import RequestError
from seatrial.targets import processes
from seatrial.targets.command import Command
from seatrial.targets.launcher_process import Launcher
from seatrial.targets.processes import Agents


def python(text: str, *nodes: int) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", text), env={}, nodes=nodes)


def never(connection: socket.socket, first: bytes, node: int) -> None:
    raise AssertionError("no connection is expected")


def test_an_exit_is_reported_once_after_the_last_messages(tmp_path: Path) -> None:
    now = 100.0
    agents = Agents(clock=lambda: now)
    agents.submit([python("import sys; sys.stderr.write('why\\n\\n'); sys.exit(3)", 4)], tmp_path, [], never)
    agents.processes[4].wait()
    assert agents.poll(()) is None
    now += 1.9
    assert agents.poll(()) is None
    now += 0.2
    assert agents.poll(()) == (4, 'its agent ended with exit code 3: "why"')
    assert agents.poll(()) is None
    agents.cleanup()


def test_a_disk_that_answers_nothing_holds_up_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(processes, "_bound", lambda log: answers.wait(60))
    agents = Agents()
    agents.submit([python("import time; time.sleep(60)", 0)], tmp_path, [], never)
    began = time.monotonic()
    for _ in range(3):
        assert agents.poll(()) is None
    assert time.monotonic() - began < 10
    answers.set()
    agents.processes[0].kill()
    assert agents.cleanup() == []


def test_one_thread_bounds_the_logs_and_a_full_process_table_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look, four a second, started one more thread; RuntimeError ended the run as a bug of ours."""
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 1_000)
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def count(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    agents = Agents()
    agents.submit([python("import time; print('x' * 9_000, flush=True); time.sleep(60)", 0)], tmp_path, [], never)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert agents.poll({0}) is None
    monkeypatch.setattr(threading.Thread, "start", count)
    until, log = time.monotonic() + 20, tmp_path / "node0.log"
    while not log.read_text().startswith(processes.REMOVED):
        assert agents.poll({0}) is None
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(started) == 1
    agents.kill()
    assert agents.cleanup() == []
    assert not started[0].is_alive()


def test_a_log_whose_disk_answers_nothing_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    real = processes.read_tail

    def read_when_it_answers(log: Path, max_bytes: int) -> str:
        assert answers.wait(60)
        return real(log, max_bytes)

    monkeypatch.setattr(processes, "read_tail", read_when_it_answers)
    monkeypatch.setattr(processes, "_TAIL_S", 0.2)
    log, tails = tmp_path / "log", processes.LogTails()
    log.write_text("why")
    began = time.monotonic()
    assert [tails.read(log) for _ in range(50)] == [""] * 50
    assert time.monotonic() - began < 5
    answers.set()
    until = time.monotonic() + 20
    while tails.read(log) != "why":
        assert time.monotonic() < until
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no process")))
    assert tails.read(log) == ""


def test_a_log_whose_disk_is_slow_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes after the wait counts at the next look, once."""
    asked = []
    real = processes.read_tail

    def read_slowly(log: Path, max_bytes: int) -> str:
        asked.append(threading.current_thread())
        time.sleep(0.2)
        return real(log, max_bytes)

    monkeypatch.setattr(processes, "read_tail", read_slowly)
    monkeypatch.setattr(processes, "_TAIL_S", 0.01)
    log, tails = tmp_path / "log", processes.LogTails()
    for words in ("why", "why it ended"):
        log.write_text(words)
        assert tails.read(log) == ""
        asked[-1].join(20)
        assert tails.read(log) == words
    assert len(asked) == 2


def test_a_signal_to_all_processes_of_a_job_ends_no_agent_that_starts(tmp_path: Path) -> None:
    """The default of SIGUSR1 would; a launcher may be any program, and takes the signal as it does without us."""
    waits = "import time; time.sleep(0.5); print('lives')"
    agents = Agents()
    agents.submit([replace(python(waits, 0), is_agent=True), python(waits, 1)], tmp_path, [], never)
    for process in agents.processes.values():
        process.send_signal(signal.SIGUSR1)
    assert [process.wait(30) for process in agents.processes.values()] == [0, -signal.SIGUSR1]
    agents.cleanup()


def test_only_an_agent_that_has_joined_gets_a_signal_for_its_ranks(tmp_path: Path) -> None:
    """It would end a launcher and ssh, and is not for an agent that is not ready for it."""
    agents = Agents()
    sleeps = python("import signal, time; signal.pthread_sigmask(signal.SIG_UNBLOCK, [10]); time.sleep(60)")
    commands = [replace(sleeps, nodes=(node,), is_agent=node != 1) for node in range(3)]
    agents.submit(commands, tmp_path, [], never)
    agents.pass_on(signal.SIGUSR1, {0, 1})
    assert agents.processes[0].wait(20) == -signal.SIGUSR1
    assert [agents.processes[node].poll() for node in (1, 2)] == [None, None]
    agents.kill()
    assert agents.cleanup() == []


def test_a_launcher_of_several_nodes_gets_one_sigterm(tmp_path: Path) -> None:
    """mpirun ends at a second one at once, and leaves its daemons on the other hosts."""
    heard = tmp_path / "heard"
    text = f"""
import signal, sys, time
def count(number, frame):
    with open({str(heard)!r}, "a") as file:
        file.write("x")
    time.sleep(0.5)
    sys.exit()
signal.signal(signal.SIGTERM, count)
open({str(tmp_path / "ready")!r}, "w").close()
time.sleep(60)
"""
    launcher = Launcher()
    launcher.submit([python(text, *range(64))], tmp_path, [], never)
    until = time.monotonic() + 30.0
    while not (tmp_path / "ready").exists() and time.monotonic() < until:
        time.sleep(0.02)
    launcher.kill()
    assert heard.read_text() == "x"


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_the_end_of_a_file_that_a_neighbor_put_there_is_not_reported(kind: str, tmp_path: Path) -> None:
    """Who can rename behind --out can read the report, too: the last line of a secret must not stand in it."""
    now = 100.0
    folder = tmp_path / "run"
    folder.mkdir()
    agents = Agents(clock=lambda: now)
    agents.submit([python("import sys; sys.exit('why')", 0)], folder, [], never)
    agents.processes[0].wait()
    assert agents.poll(()) is None
    (folder / "node0.log").unlink()
    HOSTILE[kind][0](folder / "node0.log")
    now += 3.0
    assert agents.poll(()) == (0, "its agent ended with exit code 1")
    agents.cleanup()


def test_a_connected_agent_is_not_lost_with_the_process_that_started_it(tmp_path: Path) -> None:
    now = 100.0
    said: list[str] = []
    launcher = Launcher(on_status=said.append, clock=lambda: now)
    lost = "print('  Remote daemon: [prterun-a-1@0,1] on node hostb')"
    launcher.submit([python(lost, 0, 1, 2)], tmp_path, [], never)
    launcher.processes[0].wait()
    assert launcher.poll((0, 2)) is None
    now += 3.0
    ended = 'its launcher ended: "it has lost its daemon on hostb"'
    assert launcher.poll((0, 2)) == (1, ended)
    assert launcher.poll((0, 2)) is None
    assert said == [f"seatrial: {ended}; 2 of the 3 agents that it started are still connected, and their ranks go on"]
    assert launcher.poll((2,)) == (0, ended)
    launcher.cleanup()


class Said:
    """A launcher that goes on, and has printed a line of which nobody knows which host wrote it."""

    def __init__(self, line: str, folder: Path) -> None:
        self.now = 100.0
        self.status: list[str] = []
        self.launcher = Launcher(on_status=self.status.append, clock=lambda: self.now)
        text = f"print({line!r}, flush=True); import time; time.sleep(50)"
        self.launcher.submit([python(text, 0, 1, 2)], folder, [], never)

    def news(self, *connected: int, after_s: float) -> tuple[int, str] | str | None:
        until = time.monotonic() + 20
        while not self.status and time.monotonic() < until:
            assert self.launcher.poll(connected) is None
            time.sleep(0.05)
        self.now += after_s
        time.sleep(1.1)  # it reads the output once a second
        return self.launcher.poll(connected)

    def end(self) -> None:
        self.launcher.kill()
        assert self.launcher.cleanup() == []


def test_an_agent_that_says_why_is_the_one_that_is_lost(tmp_path: Path) -> None:
    said = Said("seatrial agent: node 2 (hostc) found no controller", tmp_path)
    try:
        assert said.news(0, after_s=59.0) == (
            2,
            'nodes 1, 2 have not joined; the output of the launcher says: "node 2 (hostc) found no controller"',
        )
        assert said.status == ['seatrial: in the output of the launcher: "node 2 (hostc) found no controller"']
    finally:
        said.end()


@pytest.mark.parametrize(
    "line", by_day(["seatrial agent: node 0 is broken", "seatrial agent refuses: node 0 is too small"])
)
def test_no_host_ends_a_run_by_words_about_another_one(line: str, tmp_path: Path) -> None:
    """Every host of a job writes to the output of the launcher, and agents join within some seconds."""
    said = Said(line, tmp_path)
    try:
        assert said.news(1, 2, after_s=57.0) is None, "node 0 is slow, and has its minute to join"
        assert said.launcher.poll((0, 1, 2)) is None
        said.now += 100.0
        time.sleep(1.1)
        assert said.launcher.poll((0, 1, 2)) is None
        # A node that has joined and is gone has ended, or is lost by its connection: any host may have said that.
        assert said.news(0, 2, after_s=0.0) is None
    finally:
        said.end()


def test_options_are_refused_before_any_agent_joins(tmp_path: Path) -> None:
    refused = "import sys; print('srun: unrecognized option x', flush=True); sys.exit(1)"
    for connected in ((), (0,)):
        launcher = Launcher()
        launcher.submit([python(refused, 0, 1)], tmp_path, [], never)
        if connected:
            launcher.poll(connected)
        launcher.processes[0].wait()
        if connected:
            assert launcher.poll(()) is None
        else:
            with pytest.raises(RequestError, match="unrecognized option x"):
                launcher.poll(())
        assert launcher.cleanup() == []


def test_a_shared_process_is_reported_for_each_of_its_nodes(tmp_path: Path) -> None:
    now = 100.0
    agents = Agents(clock=lambda: now)
    agents.submit([python("", 0, 1), python("import time; time.sleep(50)", 2)], tmp_path, [], never)
    agents.processes[0].wait()
    assert agents.poll(()) is None
    now += 3.0
    # The second node is polled for the first time now, so its wait begins now.
    assert agents.poll(()) == (0, "its agent ended with exit code 0")
    now += 3.0
    assert agents.poll(()) == (1, "its agent ended with exit code 0")
    assert agents.poll(()) is None
    agents.kill()
    assert agents.cleanup() == []
    assert agents.processes[2].returncode == -END_AT_ONCE
