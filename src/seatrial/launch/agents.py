"""The processes that we started, one or more nodes each."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from seatrial.launch.command import Command
from seatrial.probe.process import launcher_fds

__all__ = ["Adopt", "Agents", "said_last"]

Adopt = Callable[[socket.socket, bytes], None]
"""Takes a connection at whose other end an agent will speak, once it was sent these bytes (``conductor/serve.py``)."""

_AGENT_END_S = 8.0
_KILLED_S = 2.0
"""A process in state D outlives SIGKILL; the report does not wait for it."""
_LAST_WORDS_S = 2.0
"""What an agent said last may still be unread when its process is gone."""
_SAID_BYTES = 4_000


def _plain(node: int, code: int, said: str) -> str:
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    return f"its agent ended with exit code {code}{last and f': {last}'}"


class Agents:
    """A child process for each command: it is the agent of a node, or what starts the agents of several."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, words: Callable[[int, int, str], str] = _plain
    ) -> None:
        """``words``: how it is told that the process of a node ended, from node, exit code and what it said last."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """By node; one process may stand for several."""
        self._clock = clock
        self._words = words
        self._logs: dict[int, Path] = {}
        self._ended_at: dict[int, float] = {}
        self._told: set[int] = set()

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int], adopt: Adopt) -> None:
        """Start one process a command; its output goes to a file in the folder."""
        for command in commands:
            path = folder / f"node{command.nodes[0]}.log"
            with contextlib.ExitStack() as stack:
                log = stack.enter_context(open(path, "ab"))
                theirs: socket.socket | None = None
                if command.feed is not None:
                    ours, theirs = socket.socketpair()
                    stack.enter_context(theirs)
                    adopt(ours, command.feed.all())
                process = subprocess.Popen(
                    command.argv,
                    env={**os.environ, **command.env},
                    stdin=subprocess.DEVNULL if theirs is None else theirs.fileno(),
                    stdout=log if theirs is None else theirs.fileno(),
                    stderr=log,
                    pass_fds=launcher_fds(os.environ),
                    # A terminal's Ctrl-C and Ctrl-Z are for the controller alone.
                    start_new_session=True,
                )
            self.processes |= dict.fromkeys(command.nodes, process)
            self._logs |= dict.fromkeys(command.nodes, path)

    def news(self) -> tuple[int, str] | str | None:
        """An agent that ended some time ago, with the last that was said."""
        now = self._clock()
        for node, process in self.processes.items():
            if process.poll() is None or node in self._told:
                continue
            if now - self._ended_at.setdefault(node, now) >= _LAST_WORDS_S:
                self._told.add(node)
                return node, self._words(node, process.returncode, said_last(self._logs[node]))
        return None

    def kill(self) -> None:
        """Their ranks die with them."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()

    def end(self) -> list[tuple[int, str]]:
        """Wait for them, then kill what is left. Returns (node, words) of what outlived it."""
        try:
            self._wait(_AGENT_END_S)
        finally:
            self.kill()
        self._wait(_KILLED_S)
        left = [(node, process) for node, process in self.processes.items() if process.poll() is None]
        return [(node, f"process {process.pid} on this machine was killed and has not ended") for node, process in left]

    def _wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def said_last(log: Path, most_bytes: int = _SAID_BYTES) -> str:
    """The end of a file; empty where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
