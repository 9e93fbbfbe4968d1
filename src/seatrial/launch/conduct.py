"""Run a job: start the agents, conduct the trial, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from seatrial import __version__
from seatrial.checks import registry
from seatrial.conductor.conclude import suspects
from seatrial.conductor.machine import Machine
from seatrial.conductor.records import Config
from seatrial.conductor.serve import Server
from seatrial.conductor.steps import of_plan
from seatrial.launch.job import Command, Job
from seatrial.launch.joined import Meeting
from seatrial.launch.targets import TARGETS
from seatrial.verdict.events import SCHEMA, Source

__all__ = ["caught_signals", "conduct"]

_AGENT_END_S = 8.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def conduct(
    job: Job,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    caught: list[int],
    meeting: Meeting | None = None,
) -> int:
    """Conduct the trial and hand every event to ``keep``. Returns how many damaged lines were met.

    ``caught`` grows by signals: the first ends the trial in order, a second one at once. Whatever happens, no agent is
    left running. ``meeting``: the agents of the others were started by somebody else and come by themselves.
    """
    token = meeting.token if meeting else secrets.token_urlsafe(24)
    server = Server("", token, keep, meeting.ports) if meeting else Server("127.0.0.1", token, keep)
    control = f"{meeting.host if meeting else '127.0.0.1'}:{server.port}"
    source = Source(job.run, "conductor")
    keep(
        source.event(
            "run",
            version=__version__,
            schema=SCHEMA,
            created=time.time(),
            plan=job.plan.to_json(),
            job=job.to_json(),
        )
    )
    machine = Machine(_config(job), time.monotonic())
    render = TARGETS[job.target]
    commands = render(job, control=control, token=token, keep=str(folder))
    agents = _Agents(commands, folder)
    try:
        server.serve(machine, job.nodes, source, lambda: agents.between(caught))
    finally:
        server.close()
        agents.end()
    return server.damaged


def _config(job: Job) -> Config:
    return Config(
        run=job.run,
        nodes=job.nodes,
        nproc_per_node=job.nproc_per_node,
        steps=of_plan(job.plan, registry.load),
        deadline_s=float(job.plan.deadline_s.value),
        worker={"device": job.device, "backend": job.backend, "env": dict(job.env), "planted": list(job.planted)},
        suspects=lambda check, events: suspects(job.plan, check, events),
    )


class _Agents:
    """The processes that we started."""

    def __init__(self, commands: tuple[Command, ...], folder: Path) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._told: set[int] = set()
        self._caught_told = 0
        for command in commands:
            with open(folder / f"node{command.node_rank}.log", "ab") as log:
                self._processes[command.node_rank] = subprocess.Popen(
                    command.argv,
                    env={**os.environ, **command.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A terminal's Ctrl-C and Ctrl-Z are for the controller alone.
                    start_new_session=True,
                )

    def between(self, caught: list[int]) -> str | tuple[int, str] | None:
        """News for the conductor: a signal that we were sent, or an agent that ended."""
        if len(caught) > self._caught_told:
            self._caught_told = len(caught)
            if self._caught_told > 1:
                self._kill()
            return signal.Signals(caught[-1]).name
        for node, process in self._processes.items():
            if process.poll() is not None and node not in self._told:
                self._told.add(node)
                return node, f"its agent ended with exit code {process.returncode}"
        return None

    def end(self) -> None:
        """Wait for them, then kill what is left. Their ranks die with them."""
        until = time.monotonic() + _AGENT_END_S
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._kill()
        for process in self._processes.values():
            process.wait()

    def _kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted in a list instead of ending us: the report is still to be written."""
    caught: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
