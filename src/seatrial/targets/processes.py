"""The child processes that start the agents, for one or more nodes each."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from seatrial.agent.disk_question import DiskQuestion
from seatrial.agent.guardian import END_AT_ONCE
from seatrial.environment.pmi import launcher_fds
from seatrial.errors import RequestError
from seatrial.files import open_to_append, open_to_read
from seatrial.targets.command import Command
from seatrial.targets.host_of_node import HostOfNode
from seatrial.util.job_signals import those_for_ranks_held_back
from seatrial.util.text import quoted

Attach = Callable[[socket.socket, bytes, int], None]
"""A function that takes a connection to an agent, the bytes to send on it first, and the node of the agent."""

_AGENT_END_S = 8.0
_ENDED_S = 4.0
"""The time in which the guardian of an agent ends all that the agent has started (``agent/guardian.py``)."""
_KILLED_S = 2.0
"""The wait after SIGKILL. A process in state D (uninterruptible) outlives it, and the report does not wait longer."""
_LAST_WORDS_S = 2.0
"""The time in which the last messages of an agent arrive after its process has ended."""
_LAST_BOUND_S = 2.0
"""The wait for the last look at the logs, which are on a disk that may answer nothing."""
_BOUND_S = 0.25
"""Interval in which the logs of processes that should end are bounded."""
_TAIL_BYTES = 4_000
_TAIL_S = 1.0
"""The wait for the end of a log, while which nobody is heard."""
LAST_ANSWER_S = 10.0
"""The time for a slow disk to show why a process ended: that decides whether the request or a node is at fault."""
_MAX_LOG_BYTES = 64 << 20
"""Most bytes kept of the output of an agent and its launcher, which is some lines; ranks have logs elsewhere."""
REMOVED = f"seatrial: more than {_MAX_LOG_BYTES >> 20} MiB of output were removed here"
"""The line that takes the place of more than that."""


def _agent_ended(node: int, code: int, output: str) -> str:
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    return f"its agent ended with exit code {code}{last and f': {quoted(last)}'}"


class Agents:
    """A driver with a child process for each command: the agent of a node, or a launcher of several agents."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, words: Callable[[int, int, str], str] = _agent_ended
    ) -> None:
        """Make a driver without processes.

        Args:
            clock: returns seconds, like ``time.monotonic``.
            words: returns the phrase for an ended process, from its node, its exit code and the end of its output.
        """
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """The process of each node; several nodes may share one."""
        self._clock = clock
        self._words = words
        self._agents: set[int] = set()
        """Nodes whose process is the agent."""
        self._logs: dict[int, Path] = {}
        self._tails = LogTails()
        self._open_logs: list[int] = []
        self._ended_at: dict[int, float] = {}
        self._reported: set[int] = set()
        self._is_over = threading.Event()
        self._bounding: threading.Thread | None = None
        """It bounds the logs until all is over."""

    def submit(self, commands: Sequence[Command], folder: Path, signals: Sequence[int], attach: Attach) -> None:
        """Start one process for each command; its output goes to a file in the folder."""
        for command in commands:
            path = folder / f"node{command.nodes[0]}.log"
            with contextlib.ExitStack() as stack:
                try:
                    log = stack.enter_context(open_to_append(path, run_folder=True))
                except OSError as error:
                    raise RequestError(
                        f"{path} cannot be written ({error.strerror or error}); name another folder with --out."
                    ) from error
                if command.is_agent:
                    stack.enter_context(those_for_ranks_held_back())
                self._open_logs.append(os.dup(log.fileno()))
                theirs: socket.socket | None = None
                if command.feed is not None:
                    ours, theirs = socket.socketpair()
                    stack.enter_context(theirs)
                    attach(ours, command.feed.to_bytes(), command.nodes[0])
                process = subprocess.Popen(
                    command.argv,
                    env={**os.environ, **command.env},
                    cwd=command.folder,
                    stdin=subprocess.DEVNULL if theirs is None else theirs.fileno(),
                    stdout=log if theirs is None else theirs.fileno(),
                    stderr=log,
                    pass_fds=(*launcher_fds(os.environ), *command.pass_fds),
                    # Ctrl-C and Ctrl-Z in a terminal reach the controller only.
                    start_new_session=True,
                )
            self.processes |= dict.fromkeys(command.nodes, process)
            self._agents.update(command.nodes if command.is_agent else ())
            if theirs is not None:
                # Nobody bounds what its host sends once this process was killed.
                with contextlib.suppress(OSError):  # it has ended
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4 * _MAX_LOG_BYTES,) * 2)
            self._logs |= dict.fromkeys(command.nodes, path)

    def hosts(self) -> Sequence[HostOfNode] | None:
        """Return None: the hosts of the request are known already."""
        return None

    def poll(self, connected: Collection[int]) -> tuple[int, str] | str | None:
        """Return the node of an agent that has ended, and how. Its last messages have had time to arrive."""
        self._bound_logs()
        for node in self._ended():
            if node not in connected and node not in self._reported:
                words = self._how_it_ended(node)
                if words is None:
                    return None
                self._reported.add(node)
                return node, words
        return None

    def _ended(self) -> list[int]:
        """Return the nodes whose process ended some time ago."""
        now = self._clock()
        ended = [node for node, process in self.processes.items() if process.poll() is not None]
        return [node for node in ended if now - self._ended_at.setdefault(node, now) >= _LAST_WORDS_S]

    def _how_it_ended(self, node: int) -> str | None:
        output = self._last_output(node)
        return None if output is None else self._words(node, self.processes[node].returncode, output)

    def _last_output(self, node: int, max_bytes: int = _TAIL_BYTES) -> str | None:
        """Return the end of the output of a process that has ended; None while its disk has time to answer."""
        now = self._clock()
        output = self._tails.read_last(self._logs[node], max_bytes)
        return "" if output is None and now - self._ended_at.setdefault(node, now) >= LAST_ANSWER_S else output

    def pass_on(self, number: int, connected: Collection[int]) -> None:
        """Send a signal that is for the ranks to those agents that are children of this process."""
        for node in self._agents.intersection(connected):
            self.processes[node].send_signal(number)

    def kill(self) -> None:
        """End the agents at once, with all that they have started."""
        self._signal_all(END_AT_ONCE)

    def cleanup(self) -> list[tuple[int, str]]:
        """Wait for the processes, then kill the rest. Return (node, words) for each that outlived SIGKILL."""
        self._bound_logs()
        try:
            self._wait(_AGENT_END_S)
        finally:
            self.kill()
        self._wait(_ENDED_S)
        self._signal_all(signal.SIGKILL)
        self._wait(_KILLED_S)
        self._is_over.set()
        if self._bounding is not None:
            self._bounding.join(_LAST_BOUND_S)
        # A thread that waits for the disk still has them.
        if self._bounding is None or not self._bounding.is_alive():
            while self._open_logs:
                os.close(self._open_logs.pop())
        return [
            (node, f"process {process.pid} on this machine was killed and has not ended")
            for node, process in self.processes.items()
            if process.poll() is None
        ]

    def _signal_all(self, number: int) -> None:
        # Nodes may share a launcher, and mpirun ends at a second SIGTERM without ending its daemons on other hosts.
        for process in {*self.processes.values()}:
            signal_group(process, number)

    def _wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def _bound_logs(self) -> None:
        """Have a thread bound the logs from now on. Where none can be started, as this user has no process left, the
        next look tries again.

        They are in the folder of the run: the controller must be heard while its disk answers nothing.
        """
        if self._bounding is None and self._open_logs:
            thread = threading.Thread(target=self._keep_bounded, name="log bounds", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._bounding = thread

    def _keep_bounded(self) -> None:
        is_last = False
        while True:
            for log in [*self._open_logs]:
                _bound(log)
            if is_last:
                return
            is_last = self._is_over.wait(_BOUND_S)


def _bound(log: int) -> None:
    """Empty a log that has grown too large: no node may fill the disk of this machine with its error output.

    It is the open one, which takes the output, and not what others may have put or mounted at its name.
    """
    with contextlib.suppress(OSError):
        if os.fstat(log).st_size > _MAX_LOG_BYTES:
            os.ftruncate(log, 0)
            os.write(log, f"{REMOVED}\n".encode())


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process that leads a session, if it has not ended, and to what it has started there: ssh
    starts ProxyCommand, and a launcher the ssh to each host."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


class LogTails:
    """The ends of logs in the folder of the run. Its disk may answer nothing, and the controller must be heard."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Path, int, bool], DiskQuestion[str]] = {}
        """Questions whose answers were not returned yet."""

    def read(self, log: Path, max_bytes: int = _TAIL_BYTES) -> str:
        """Return what ``read_tail`` does; empty where the disk has not answered in time, or no thread can ask it.

        An answer that comes later counts at the next look, which asks nothing then.
        """
        return self._answer(log, max_bytes, is_last=False) or ""

    def read_last(self, log: Path, max_bytes: int = _TAIL_BYTES) -> str | None:
        """Return what ``read`` does, asked after its writer has ended; None where the disk has yet to answer."""
        return self._answer(log, max_bytes, is_last=True)

    def _answer(self, log: Path, max_bytes: int, *, is_last: bool) -> str | None:
        # An answer from before the end of a writer lacks its last words.
        key = (log, max_bytes, is_last)
        question = self._asked.get(key)
        timeout_s = 0.0
        if question is None:
            question = self._asked[key] = DiskQuestion(partial(read_tail, log, max_bytes))
            timeout_s = _TAIL_S
        if not question.is_answered(timeout_s):
            return None
        del self._asked[key]
        try:
            return question.answer()
        except RuntimeError:
            return ""


def read_tail(log: Path, max_bytes: int = _TAIL_BYTES) -> str:
    """Return the last ``max_bytes`` of a file of ours as text; empty where it cannot be read, or another user has put
    a link or another file in its place."""
    try:
        with open_to_read(log, run_folder=True) as file:
            file.seek(max(0, file.seek(0, 2) - max_bytes))
            return file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ""
