"""The process of a node's steps: ``python -m seatrial.worker.node_main``, started by an agent. Imports no torch.

Commands arrive as lines on standard input, and events, without their headers, leave as lines on standard output.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from seatrial.checks import registry
from seatrial.environment.working_folder import leave_open_folder
from seatrial.protocol.commands import NodeStep
from seatrial.protocol.events import Event, NodeDoneEvent
from seatrial.protocol.wire import Decoder, encode
from seatrial.rank.node_context import NodeContext, Watcher
from seatrial.util.job_signals import ignore_those_for_ranks
from seatrial.worker.parent import die_with_parent

_TICK_S = 1.0


def main() -> None:
    """Carry out the steps that the agent passes on, until it closes the pipe or kills this process."""
    die_with_parent()
    ignore_those_for_ranks()
    # Ctrl-C in a terminal is for the controller, and SIGHUP for the agent, which ends this process.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A library that prints must not write between our lines.
    out = os.dup(1)
    os.dup2(2, 1)
    leave_open_folder()

    def emit(event: Event) -> None:
        for line in encode(event):
            os.write(out, line)

    steps = NodeSteps(emit)
    for message in _messages(steps):
        kind = message.get("kind")
        if kind == "node_step":
            steps.carry_out(cast("NodeStep", message))
        elif kind == "watch_step":
            for watcher in steps.watchers:
                watcher.begin(message["check"], message["stage"])
        elif kind == "watch_end":
            for watcher in steps.watchers:
                watcher.end()
            return


class NodeSteps:
    """The steps of one process: the context of the check that it carries out, and of all checks that watch."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        """``emit`` sends one event."""
        self._emit = emit
        self._contexts: dict[str, NodeContext] = {}

    @property
    def watchers(self) -> list[Watcher]:
        """Return what the checks left behind that watches this node."""
        return [context.watcher for context in self._contexts.values() if context.watcher is not None]

    def carry_out(self, step: NodeStep) -> None:
        """Carry out a step, in the context of the earlier steps of its check."""
        name = step["check"]
        # A check that is over keeps nothing: its sockets close.
        self._contexts = {
            check: context for check, context in self._contexts.items() if check == name or context.watcher is not None
        }
        context = self._contexts.setdefault(name, NodeContext(step=step, emit=self._emit))
        context.step, context.shared = step, []
        _run_step(context)


def _messages(steps: NodeSteps) -> Iterator[dict[str, Any]]:
    """Yield the messages on standard input until it is closed; each second between them, the watchers have a tick."""
    decoder, received, next_tick = Decoder(), b"", time.monotonic()
    while True:
        if steps.watchers and time.monotonic() >= next_tick:
            for watcher in steps.watchers:
                watcher.tick()
            next_tick = time.monotonic() + _TICK_S
        wait_s = max(0.0, next_tick - time.monotonic()) if steps.watchers else None
        if not select.select([0], [], [], wait_s)[0]:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        *lines, received = (received + piece).split(b"\n")
        for line in lines:
            message = decoder.line(line)
            if message is not None:
                yield message


def _run_step(context: NodeContext) -> None:
    step, error = context.step, ""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in step["params"].items()}
    started = time.perf_counter()
    try:
        check = registry.load(step["check"])
        check.measure(context, check.params(**values))
    except Exception as failure:  # the report says so: it is no fault of the cluster
        error = f"{type(failure).__name__}: {failure}"[:300]
    context.emit(
        NodeDoneEvent(
            kind="node_done",
            gen=step["gen"],
            step=step["step"],
            seconds=round(time.perf_counter() - started, 6),
            share=context.shared,
            error=error,
        )
    )


if __name__ == "__main__":
    main()
