"""However an agent ends, nothing of what its ranks started outlives it."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.stub_conductor import StubConductor

from seatrial.agent.guardian import END_AT_ONCE
from seatrial.probe.process import read_process

_LEFT = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM): signal.signal(number, signal.SIG_IGN)
def note(name): open(f"{name}.new", "w").write(str(os.getpid())); os.rename(f"{name}.new", name)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.fork() == 0: os.setsid(); note("child"); time.sleep(600)
        note("daemon"); time.sleep(600)
    os._exit(0)
if os.fork() == 0: os.setpgid(0, 0); note("group"); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)
if os.fork() == 0: note("loader"); time.sleep(600)
time.sleep(600)
"""
"""A rank with a daemon and its child, each in a session of its own, a stopped process in another group, and a data
loader. All of them ignore the signals that ask."""
_NAMES = ("daemon", "child", "group", "loader")


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[StubConductor]:
    conductor = StubConductor(tmp_path)
    yield conductor
    conductor.close()


def _start(conductor: StubConductor) -> list[int]:
    """The processes that the rank of a program leaves, once they run."""
    program: dict[str, Any] = {"argv": [sys.executable, "-c", _LEFT], "args": [], "env": {}, "cwd": str(conductor.keep)}
    program |= {"watched": False, "shown": [], "world_size": 1, "nnodes": 1, "spawns": 0, "group_rank": 0}
    nobody: dict[str, list[object]] = {"owners": [], "mounters": [], "open_places": []}
    program |= {"script": "", "cwd_trust": nobody, "script_trust": nobody}
    program |= {"group_world_size": 1, "master_addr": "127.0.0.1", "master_port": 1, "max_restarts": 0}
    start = {"kind": "start_program", "gen": 0, "run": "x", "places": [[0, 0]], "env": {}, "program": program}
    conductor.send({"kind": "welcome", "run": "x"}, start)
    paths = [conductor.keep / name for name in _NAMES]
    conductor.until(lambda message: message["kind"] == "status" and all(path.exists() for path in paths))
    return [int(path.read_text()) for path in paths]


def _agent(conductor: StubConductor) -> None:
    os.kill(conductor.agent_pid, signal.SIGKILL)


def _stopped_agent(conductor: StubConductor) -> None:
    os.kill(conductor.agent_pid, signal.SIGSTOP)
    conductor.agent.send_signal(END_AT_ONCE)


@pytest.mark.parametrize("end", [_agent, _stopped_agent])
def test_nothing_outlives_a_killed_agent(conductor: StubConductor, end: Callable[[StubConductor], None]) -> None:
    left = _start(conductor)
    assert all(read_process(pid) for pid in left)
    end(conductor)
    assert conductor.agent.wait(20) == -signal.SIGKILL
    assert [pid for pid in left if read_process(pid)] == []


def test_the_agent_dies_with_its_guardian(conductor: StubConductor) -> None:
    conductor.agent.kill()
    conductor.hear_out()
    until = time.monotonic() + 10.0
    while read_process(conductor.agent_pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert read_process(conductor.agent_pid) is None


# In the background of a shell, Python inherits that SIGINT is ignored.
_GUARDED = (
    "import os, signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from seatrial.agent.guardian import guard; guard(); "
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)", -signal.SIGTERM),
        ("signal.signal(15, lambda *_: sys.exit(7)); os.kill(os.getppid(), signal.SIGTERM); time.sleep(9)", 7),
        ("os.killpg(os.getpgid(os.getppid()), signal.SIGINT); time.sleep(600)", -signal.SIGINT),
    ],
)
def test_the_guardian_passes_signals_on_and_ends_as_the_agent_did(code: str, expected: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED + code],
        timeout=30,
        check=False,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert done.returncode == expected


@pytest.mark.parametrize(("asked", "expected"), [(True, 7), (False, -signal.SIGKILL)])
def test_a_stopped_agent_ends(asked: bool, expected: int) -> None:
    """In order where it is asked to, which it hears only once it is continued; otherwise after a while."""
    code = "signal.signal(15, lambda *_: sys.exit(7)); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"
    before = f"from seatrial.agent import guardian; guardian._MOST_STOPPED_S = {20.0 if asked else 0.5}; "
    process = subprocess.Popen([sys.executable, "-c", before + _GUARDED + code])
    try:
        _until_it_stops(process.pid)
        if asked:
            process.send_signal(signal.SIGTERM)
        assert process.wait(15) == expected
    finally:
        process.send_signal(END_AT_ONCE)
        process.wait(20)


def _until_it_stops(guardian: int) -> None:
    until = time.monotonic() + 20.0
    children = Path(f"/proc/{guardian}/task/{guardian}/children")
    while not any((seen := read_process(int(pid))) and seen.state == "T" for pid in children.read_text().split()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_launcher_that_ignores_its_children_hears_the_exit_code() -> None:
    before = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    done = subprocess.run([sys.executable, "-c", before + _GUARDED + "sys.exit(5)"], timeout=30, check=False)
    assert done.returncode == 5


def test_the_guardian_keeps_no_descriptor_open() -> None:
    """The peer of a control connection that ssh passed would else wait for the guardian."""
    reading, writing = os.pipe()
    code = f"import os; os.close({writing}); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", _GUARDED + code], pass_fds=[writing])
    os.close(writing)
    try:
        assert os.read(reading, 1) == b""
        assert process.poll() is None
    finally:
        process.send_signal(END_AT_ONCE)
        assert process.wait(20) == -signal.SIGKILL
        os.close(reading)


def test_where_no_process_is_left_an_agent_says_so() -> None:
    code = "import errno, os\n"
    code += "def fork(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
    code += "os.fork = fork; from seatrial.agent import agent_main; agent_main.main()"
    environ = {**os.environ, "SEATRIAL_CONTROL": "127.0.0.1:9", "SEATRIAL_TOKEN": "secret", "SEATRIAL_JOB": "x"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 3
    assert done.stderr == f"seatrial agent: {platform.node()} gives this agent no process: {os.strerror(11)}.\n"


def test_without_proc_the_last_line_of_an_agent_says_so() -> None:
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no user can cover /proc here")
    environ = {
        **os.environ,
        "SEATRIAL_CONTROL": "127.0.0.1:9",
        "SEATRIAL_TOKEN": "secret",
        "SEATRIAL_NODE_RANK": "0",
    } | {"SEATRIAL_JOB": "x"}
    words = [*inside, sys.executable, "-m", "seatrial.agent.agent_main"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("seatrial agent: ")
    assert done.stderr.endswith(" has no /proc, which agents read; mount it: mount -t proc proc /proc.\n")
