"""Run a job: start the agents, conduct the trial, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from seatrial import __version__
from seatrial.checks import registry
from seatrial.conductor.conclude import next_round, suspects
from seatrial.conductor.machine import Machine
from seatrial.conductor.program import Program
from seatrial.conductor.program_records import ProgramConfig
from seatrial.conductor.records import Conductor, Config
from seatrial.conductor.serve import Server
from seatrial.conductor.steps import of_plan
from seatrial.launch.job import Command, Job, Processes, ProgramJob
from seatrial.launch.joined import Meeting
from seatrial.launch.targets import TARGETS
from seatrial.probe.process import launcher_fds
from seatrial.verdict.events import SCHEMA, Source

__all__ = ["Agents", "caught_signals", "conduct", "conduct_program"]

_AGENT_END_S = 8.0
_KILLED_S = 2.0
"""A process in state D outlives SIGKILL; the report does not wait for it."""
_LAST_WORDS_S = 2.0
"""What an agent said last may still be unread when its process is gone."""
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
    left running, or a note names it. ``meeting``: the agents of the others were started by somebody else and come by
    themselves.
    """
    machine = Machine(_config(job), time.monotonic())
    return _conduct(job, machine, {"plan": job.plan.to_json()}, folder, keep, caught, meeting=meeting)


def conduct_program(
    job: ProgramJob,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    hear: Callable[[dict[str, Any]], None],
    caught: list[int],
) -> int:
    """The same for a program; ``hear`` gets the output of the ranks that is to be shown, and their progress."""
    config = ProgramConfig(
        run=job.run,
        nodes=job.nodes,
        nproc_per_node=job.nproc_per_node,
        argv=job.argv,
        env=job.env,
        watched=job.watched,
        output=job.output,
        max_restarts=job.max_restarts,
        stop_grace_s=job.stop_grace_s,
    )
    return _conduct(job, Program(config, time.monotonic()), {}, folder, keep, caught, hear=hear)


def _conduct(
    job: Processes,
    machine: Conductor,
    told: dict[str, Any],
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    caught: list[int],
    *,
    hear: Callable[[dict[str, Any]], None] = lambda message: None,
    meeting: Meeting | None = None,
) -> int:
    source = Source(job.run, "conductor")
    keep(source.event("run", version=__version__, schema=SCHEMA, created=time.time(), **told, job=job.to_json()))
    token = meeting.token if meeting else secrets.token_urlsafe(24)
    host = meeting.host if meeting else "127.0.0.1"
    # From another machine only where there is one: a name may stand for any of our addresses.
    listen = "127.0.0.1" if host == "127.0.0.1" else ""
    server = Server(listen, token, keep, meeting.ports if meeting else (0,), hear)
    control = f"{host}:{server.port}"
    agents = Agents()
    try:
        agents.start(TARGETS[job.target](job, control=control, token=token, keep=str(folder)), folder)
        server.serve(machine, job.nodes, source, lambda: agents.between(caught))
    finally:
        server.close()
        _tell_left(agents.end(), Source(job.run, "launch"), keep)
    return server.damaged


def _tell_left(left: Sequence[tuple[int, int]], source: Source, keep: Callable[[dict[str, Any]], None]) -> None:
    for node, pid in left:
        text = f"the agent of node {node} (process {pid} on this machine) was killed and has not ended"
        keep(source.event("note", severity="warn", text=text))
    if left:
        keep(source.event("end"))


def _config(job: Job) -> Config:
    return Config(
        run=job.run,
        nodes=job.nodes,
        nproc_per_node=job.nproc_per_node,
        steps=of_plan(job.plan, registry.load),
        deadline_s=float(job.plan.deadline_s.value),
        worker={"device": job.device, "backend": job.backend, "env": dict(job.env), "planted": list(job.planted)},
        suspects=lambda check, events: suspects(job.plan, check, events),
        next_round=lambda check, events: next_round(job.plan, check, events),
        # MPI does not start again in processes whose ranks have died, nor with some of them left out.
        **({"most_generations": 1} if job.backend == "mpi" else {}),
    )


class Agents:
    """The processes that we started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """By node rank."""
        self._clock = clock
        self._ended_at: dict[int, float] = {}
        self._told: set[int] = set()
        self._caught_told = 0

    def start(self, commands: Sequence[Command], folder: Path) -> None:
        """Start one process a command; its output goes to a file in the folder."""
        for command in commands:
            with open(folder / f"node{command.node_rank}.log", "ab") as log:
                self.processes[command.node_rank] = subprocess.Popen(
                    command.argv,
                    env={**os.environ, **command.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=launcher_fds(os.environ),
                    # A terminal's Ctrl-C and Ctrl-Z are for the controller alone.
                    start_new_session=True,
                )

    def between(self, caught: Sequence[int]) -> str | tuple[int, str] | None:
        """News for the conductor: a signal that we were sent, or an agent that ended some time ago."""
        if len(caught) > self._caught_told:
            self._caught_told = len(caught)
            if self._caught_told > 1:
                self._kill()
            return signal.Signals(caught[-1]).name
        now = self._clock()
        for node, process in self.processes.items():
            if process.poll() is None or node in self._told:
                continue
            if now - self._ended_at.setdefault(node, now) >= _LAST_WORDS_S:
                self._told.add(node)
                return node, f"its agent ended with exit code {process.returncode}"
        return None

    def end(self) -> list[tuple[int, int]]:
        """Wait for them, then kill what is left; their ranks die with them. Returns (node, pid) of what outlived it."""
        try:
            self._wait(_AGENT_END_S)
        finally:
            self._kill()
        self._wait(_KILLED_S)
        return [(node, process.pid) for node, process in self.processes.items() if process.poll() is None]

    def _wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))

    def _kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted in a list instead of ending us: the report is still to be written.

    From the second one on they do again what they did before, so that a third ends us wherever we are.
    """
    caught: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            restore()

    for number in _SIGNALS:
        # nohup asks to outlive a hang-up. (That a shell lets its background jobs ignore SIGINT is nobody's wish.)
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, on_signal)
    try:
        yield caught
    finally:
        restore()
