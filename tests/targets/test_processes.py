"""The child processes that start the agents: how their end is reported, and how they are killed."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from seatrial.agent.guardian import END_AT_ONCE
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
    assert agents.poll(()) == (4, "its agent ended with exit code 3: why")
    assert agents.poll(()) is None


def test_a_connected_agent_is_not_lost_with_the_process_that_started_it(tmp_path: Path) -> None:
    now = 100.0
    said: list[str] = []
    launcher = Launcher(on_status=said.append, clock=lambda: now)
    lost = "print('  Remote daemon: [prterun-a-1@0,1] on node hostb')"
    launcher.submit([python(lost, 0, 1, 2)], tmp_path, [], never)
    launcher.processes[0].wait()
    assert launcher.poll((0, 2)) is None
    now += 3.0
    ended = "its launcher ended: it has lost its daemon on hostb"
    assert launcher.poll((0, 2)) == (1, ended)
    assert launcher.poll((0, 2)) is None
    assert said == [f"seatrial: {ended}; 2 of the 3 agents that it started are still connected, and their ranks go on"]
    assert launcher.poll((2,)) == (0, ended)


def test_an_agent_that_says_why_is_the_one_that_is_lost(tmp_path: Path) -> None:
    launcher = Launcher()
    said = "print('seatrial agent: node 2 (hostc) found no controller', flush=True); import time; time.sleep(50)"
    launcher.submit([python(said, 0, 1, 2)], tmp_path, [], never)
    until = time.monotonic() + 20
    while (news := launcher.poll((0,))) is None and time.monotonic() < until:
        time.sleep(0.05)
    launcher.kill()
    assert news == (2, "node 2 (hostc) found no controller")
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
