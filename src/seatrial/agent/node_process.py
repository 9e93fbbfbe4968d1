"""The process that carries out a node's steps: one for all stages of all checks of agents, ended before ranks start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

from seatrial.agent.command_pipe import CommandPipe
from seatrial.environment import self_location
from seatrial.protocol.commands import NodeStep, WatchEnd, WatchStep
from seatrial.protocol.events import Event, NodeDoneEvent
from seatrial.protocol.wire import MAX_LINE_BYTES, Decoder
from seatrial.util.job_signals import those_for_ranks_held_back

_KINDS = ("facts", "node_done")
_EXIT_S = 1.0
"""A process that ends closes its output a moment earlier."""
_END_S = 5.0
"""Time to end after SIGKILL."""


class NodeProcess:
    """``worker.node_main`` and the pipes to it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        with those_for_ranks_held_back():
            self._process = subprocess.Popen(
                self_location.module_argv(sys.executable, "seatrial.worker.node_main"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=self_location.BUNDLE_FDS,
                env={**environ, "SEATRIAL_AGENT_PID": str(os.getpid())},
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._commands = CommandPipe(self._process.stdin)
        self.fd = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self._decoder = Decoder()
        self._buffer = b""
        self._step: NodeStep | None = None
        """The step that it has not finished."""

    def send(self, step: NodeStep) -> None:
        """Have it carry out a step. A process that is gone is reported by ``read``."""
        self._step = step
        self._commands.send(step)

    def flush(self) -> None:
        """Send the rest of a step that did not fit into the pipe."""
        self._commands.flush()

    def notify(self, message: WatchStep | WatchEnd) -> None:
        """Tell a process that watches what happens. One that does not read is not waited for."""
        self._commands.send(message)

    def read(self) -> tuple[list[Event], bool]:
        """Return the events that arrived, without headers, and whether the process has ended."""
        try:
            piece = os.read(self.fd, 1 << 18)
        except BlockingIOError:
            return [], False
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        self._buffer = self._buffer[-MAX_LINE_BYTES:]
        events = list(self._events(lines))
        if not piece and self._step is not None:
            events.append(self._failure(self._step))
        return events, not piece

    def _events(self, lines: list[bytes]) -> Iterator[Event]:
        for line in lines:
            message: dict[str, Any] | None = self._decoder.line(line)
            if message is None or message.get("kind") not in _KINDS:
                continue
            if message["kind"] == "node_done":
                self._step = None
            yield cast("Event", message)

    def _failure(self, step: NodeStep) -> NodeDoneEvent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        code = self._process.returncode
        how = "closed its output and still runs" if code is None else f"ended with exit code {code}"
        return NodeDoneEvent(
            kind="node_done",
            gen=step["gen"],
            step=step["step"],
            seconds=0.0,
            share=[],
            error=f"its process {how}",
        )

    def end(self) -> None:
        """Kill it and what it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._commands.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
