"""Run a job: start the agents, conduct the trial, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from seatrial import __version__
from seatrial.agent.main import join_timeout_s
from seatrial.checks import registry
from seatrial.conductor.conclude import next_round, suspects
from seatrial.conductor.machine import Machine
from seatrial.conductor.program import Program
from seatrial.conductor.program_records import ProgramConfig
from seatrial.conductor.records import Conductor, Config
from seatrial.conductor.serve import Server
from seatrial.conductor.steps import of_plan
from seatrial.launch.job import Job, Processes, ProgramJob
from seatrial.launch.joined import Meeting, agent_command
from seatrial.launch.record import keep_log
from seatrial.launch.target import Driver
from seatrial.launch.targets import TARGETS
from seatrial.probe.process import host_name
from seatrial.verdict.events import SCHEMA, Source

__all__ = ["caught_signals", "conduct", "conduct_program"]

_LOG_CHARS = 8_000
"""Of the output of a rank, as it is passed on: what 1,000 ranks say fits into the log of a pod (10 MiB)."""
_JOIN_S = 60.0
"""In which all are there that are started at once."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def conduct(
    job: Job,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    caught: list[int],
    meeting: Meeting | None = None,
    hear: Callable[[dict[str, Any]], None] = lambda message: None,
) -> int:
    """Conduct the trial and hand every event to ``keep``. Returns how many damaged lines were met.

    ``caught`` grows by signals: the first ends the trial in order, a second one at once. Whatever happens, no agent is
    left running, or a note names it. ``meeting``: the agents of the others were started by somebody else and come by
    themselves.
    """
    told = {"plan": job.plan.to_json()}
    return _conduct(job, lambda now: Machine(_config(job), now), told, folder, keep, caught, hear=hear, meeting=meeting)


def conduct_program(
    job: ProgramJob,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    hear: Callable[[dict[str, Any]], None],
    caught: list[int],
    meeting: Meeting | None = None,
) -> int:
    """The same for a program; ``hear`` gets the output of the ranks that is to be shown, and their progress."""
    config = ProgramConfig(
        run=job.run,
        nodes=job.nodes,
        nproc_per_node=1 if job.per_node else job.nproc_per_node,
        argv=job.argv,
        args=job.args,
        spawns=job.nproc_per_node if job.per_node else 0,
        env=job.env,
        watched=job.watched,
        output=job.output,
        max_restarts=job.max_restarts,
        stop_grace_s=job.stop_grace_s,
        cwd=job.cwd,
        join_timeout_s=join_timeout_s(),
    )
    return _conduct(job, lambda now: Program(config, now), {}, folder, keep, caught, hear=hear, meeting=meeting)


def _conduct(
    job: Processes,
    conductor: Callable[[float], Conductor],
    told: dict[str, Any],
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
    caught: list[int],
    *,
    hear: Callable[[dict[str, Any]], None] = lambda message: None,
    meeting: Meeting | None = None,
) -> int:
    source = Source(job.run, "conductor")
    told = {"version": __version__, "schema": SCHEMA, "created": time.time(), "hostname": host_name(), **told}
    run = source.event("run", **told, job=job.to_json())
    target = TARGETS[job.target]

    def heard(message: dict[str, Any]) -> None:
        if message.get("kind") == "log":
            keep_log(folder, message, job.world_size)
            message = {**message, "text": message["text"][-_LOG_CHARS:]}
        hear(message)

    if target.carry_out is not None and meeting is None:
        return target.carry_out(job, run, folder, keep, heard, caught)
    keep(run)
    for words in job.absent:
        keep(source.event("note", severity="warn", text=f"left out: {words}"))
    token = meeting.token if meeting else secrets.token_urlsafe(24)
    host = meeting.host if meeting else target.address(job)
    # From another machine only where there is one: a name may stand for any of our addresses.
    listen = "127.0.0.1" if host == "127.0.0.1" else ""

    # In a pod all that is to stay goes to a controller elsewhere.
    kept = "" if "SEATRIAL_LIVE" in os.environ else str(folder)
    server = Server(listen, token, keep, meeting.ports if meeting else (0,), heard)
    driver = target.driver(job)
    try:
        control = f"{host}:{server.port}"
        if meeting is None:
            commands = target.render(job, control=control, token=token, keep=kept)
        else:
            commands = (agent_command(job, meeting.number, control=control, token=token, keep=kept),)
        driver.start(commands, folder, caught, server.adopt)
        # Only now: whatever the driver had to wait for counts for nobody.
        server.serve(conductor(time.monotonic()), job.nodes, source, _between(driver, caught))
    finally:
        server.close()
        _tell_left(driver.end(), Source(job.run, "launch"), keep)
    return server.damaged


def _between(driver: Driver, caught: Sequence[int]) -> Callable[[], str | tuple[int, str] | None]:
    """News for the conductor at each tick: a signal that we were sent, else what the driver has seen."""
    told = 0

    def news() -> str | tuple[int, str] | None:
        nonlocal told
        if len(caught) == told:
            return driver.news()
        told = len(caught)
        if told > 1:
            driver.kill()
        return signal.Signals(caught[-1]).name

    return news


def _tell_left(left: Sequence[tuple[int, str]], source: Source, keep: Callable[[dict[str, Any]], None]) -> None:
    for node, words in left:
        keep(source.event("note", severity="warn", text=f"the agent of node {node}: {words}"))
    if left:
        keep(source.event("end"))


def _config(job: Job) -> Config:
    wait_s = join_timeout_s()
    return Config(
        run=job.run,
        nodes=job.nodes,
        nproc_per_node=job.nproc_per_node,
        steps=of_plan(job.plan, registry.load),
        # Pods come one by one; the deadline is for what they do when all have come.
        deadline_s=float(job.plan.deadline_s.value) + (wait_s if wait_s > _JOIN_S else 0.0),
        join_timeout_s=wait_s,
        worker={"device": job.device, "backend": job.backend, "env": dict(job.env), "planted": list(job.planted)},
        suspects=lambda check, events: suspects(job.plan, check, events),
        next_round=lambda check, events: next_round(job.plan, check, events),
        # MPI does not start again in processes whose ranks have died, nor with some of them left out.
        **({"most_generations": 1} if job.backend == "mpi" else {}),
    )


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
