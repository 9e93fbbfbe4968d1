"""The processes that stand for nodes: their news, their end."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from seatrial.launch.agents import Agents
from seatrial.launch.command import Command


def python(text: str, *nodes: int) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", text), env={}, nodes=nodes)


def never(connection: socket.socket, first: bytes) -> None:
    raise AssertionError("nobody is to be adopted")


def test_an_exit_is_told_once_and_after_the_last_words_had_time_to_come(tmp_path: Path) -> None:
    now = 100.0
    agents = Agents(clock=lambda: now)
    agents.start([python("import sys; sys.stderr.write('why\\n\\n'); sys.exit(3)", 4)], tmp_path, [], never)
    agents.processes[4].wait()
    assert agents.news() is None
    now += 1.9
    assert agents.news() is None
    now += 0.2
    assert agents.news() == (4, "its agent ended with exit code 3: why")
    assert agents.news() is None


def test_a_process_that_stood_for_several_nodes_is_told_for_each(tmp_path: Path) -> None:
    now = 100.0
    agents = Agents(clock=lambda: now)
    agents.start([python("", 0, 1), python("import time; time.sleep(50)", 2)], tmp_path, [], never)
    agents.processes[0].wait()
    assert agents.news() is None
    now += 3.0
    # The second is first seen now, and has its time as well.
    assert agents.news() == (0, "its agent ended with exit code 0")
    now += 3.0
    assert agents.news() == (1, "its agent ended with exit code 0")
    assert agents.news() is None
    agents.kill()
    assert agents.end() == []
    assert agents.processes[2].returncode == -signal.SIGKILL
