"""The process that watches this node until the end of the trial: one for the check of agents that asks for it."""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable, Mapping

from seatrial.agent.node_process import NodeProcess
from seatrial.protocol.commands import NodeStep, WatchEnd, WatchStep
from seatrial.protocol.events import Event

_END_S = 3.0
"""Time for the last snapshot. The conductor gives an agent 10 s to end, of which ranks that do not die take 5."""


class NodeWatch:
    """A node process that stays. A driver that does not answer holds up nobody but that process."""

    def __init__(self, selector: selectors.BaseSelector, emit: Callable[[Event], None]) -> None:
        self._selector, self._emit = selector, emit
        self._process: NodeProcess | None = None

    def send(self, step: NodeStep, environ: Mapping[str, str]) -> None:
        """Have it carry out its own step; the first one starts it, with that environment."""
        if self._process is None:
            self._process = NodeProcess(environ)
            self._selector.register(self._process.fd, selectors.EVENT_READ, self._read)
        self._process.send(step)

    def begin(self, check: str, stage: str) -> None:
        """Tell it that a later step begins."""
        if self._process is not None:
            self._process.notify(WatchStep(kind="watch_step", check=check, stage=stage))

    def flush(self) -> None:
        """Send the rest of what did not fit into the pipe."""
        if self._process is not None:
            self._process.flush()

    def finish(self) -> None:
        """Have it report the last state, and end it."""
        if self._process is not None:
            self._process.notify(WatchEnd(kind="watch_end"))
        until = time.monotonic() + _END_S
        while self._process is not None and time.monotonic() < until:
            if select.select([self._process.fd], [], [], 0.1)[0]:
                self._read()
        self._end()

    def _read(self) -> None:
        assert self._process is not None
        events, ended = self._process.read()
        for event in events:
            self._emit(event)
        if ended:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._selector.unregister(self._process.fd)
            self._process.end()
            self._process = None
