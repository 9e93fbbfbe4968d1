"""Start the agents of a job, conduct it, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from seatrial import __version__
from seatrial.checks import registry
from seatrial.conductor.actions import Conductor
from seatrial.conductor.clock import clock_s
from seatrial.conductor.config import ProgramConfig, TrialConfig
from seatrial.conductor.program_conductor import ProgramConductor
from seatrial.conductor.server import Server
from seatrial.conductor.steps import of_plan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.environment import working_folder
from seatrial.environment.job_token import ways_to_secret
from seatrial.errors import SeatrialError
from seatrial.judge.conclude import fails, interface, next_round, suspects
from seatrial.probe.host import host_name, is_in_container
from seatrial.protocol.commands import Heartbeat, RankLog
from seatrial.protocol.events import SCHEMA, EndEvent, Event, NoteEvent, RunEvent, SlurmNodesEvent, Source
from seatrial.protocol.fields import MOST_GENERATIONS
from seatrial.protocol.handshake import node_token
from seatrial.protocol.launchers import starts_all_nodes
from seatrial.protocol.munge import MungeError, agent_token, make_credential, token_of
from seatrial.protocol.timeouts import HEARTBEAT_S, join_timeout_s
from seatrial.report.program_ending import LOGS
from seatrial.run.external_launcher import Rendezvous, own_agent_command
from seatrial.run.host_addresses import addresses_of
from seatrial.run.munge_hosts import hosts_of_credentials
from seatrial.run.node_hosts import FoundHosts, HostSearch, hosts_of_others
from seatrial.run.rank_logs import RankLogs
from seatrial.run.rank_messages import READ, require_sound
from seatrial.targets.job import Job, Processes, ProgramJob
from seatrial.targets.registry import TARGETS
from seatrial.targets.target import Driver, Target
from seatrial.util.file_limit import raise_file_limit
from seatrial.util.job_signals import FOR_RANKS, STOPPING, collector, for_ranks, handled, unless_ignored
from seatrial.util.text import all_named

_JOIN_S = 60.0
"""The time in which agents that start together have connected."""
_FILES_OF_NODE = 9
"""Files of this process for each node: its connection, with ssh both ends of another one and pipes, its event file,
and the log of its launcher."""
_OTHER_FILES = 512
"""Files besides: strangers at the control port, logs, libraries."""

OnEvent = Callable[[dict[str, Any]], None]
OnMessage = Callable[[dict[str, Any]], None]


def conduct(
    job: Job,
    folder: Path,
    on_event: OnEvent,
    signals: Sequence[int],
    rendezvous: Rendezvous | None = None,
    on_message: OnMessage = lambda message: None,
) -> int:
    """Conduct the trial and return the number of damaged lines that were received.

    Whatever happens, no agent keeps running, or a note names the one that does.

    Args:
        job: the trial, with the name of its run.
        folder: the folder of the run.
        on_event: called with every event.
        signals: grows while this runs (``catch_signals``): the first signal ends the trial in order, a second one
            immediately.
        rendezvous: given where a launcher has started the other agents, which connect by themselves.
        on_message: called with what ranks print, and in a followed pod with a heartbeat.
    """
    return _conduct(
        job,
        lambda now: TrialConductor(_config(job, rendezvous), now),
        job.plan.to_json(),
        folder,
        on_event,
        on_message,
        signals,
        rendezvous,
    )


def conduct_program(
    job: ProgramJob,
    folder: Path,
    on_event: OnEvent,
    on_message: OnMessage,
    signals: Sequence[int],
    rendezvous: Rendezvous | None = None,
    questions: Sequence[int] = (),
) -> int:
    """Conduct a program; otherwise like ``conduct``. ``on_message`` gets the output and the progress of the ranks.

    ``questions`` grows with each question where the ranks of a script are, and with each signal for them
    (``catch_questions``).
    """
    config = ProgramConfig(
        run=job.run,
        nodes=job.nodes,
        hosts=job.hosts,
        ends_together=job.ends_together if starts_all_nodes(job.target, rendezvous and rendezvous.launcher) else None,
        machines=rendezvous.machines if rendezvous else None,
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
        script=job.script,
        cwd_trust=working_folder.trust_here(job.cwd, ""),
        script_trust=working_folder.trust_here(job.cwd, job.script),
        lacks_script_here=job.lacks_script_here,
        join_timeout_s=join_timeout_s(),
    )
    return _conduct(
        job,
        lambda now: ProgramConductor(config, now),
        None,
        folder,
        on_event,
        on_message,
        signals,
        rendezvous,
        questions,
    )


def _conduct(
    job: Processes,
    conductor: Callable[[float], Conductor],
    plan: dict[str, Any] | None,
    folder: Path,
    on_event: OnEvent,
    on_message: OnMessage,
    signals: Sequence[int],
    rendezvous: Rendezvous | None,
    questions: Sequence[int] = (),
) -> int:
    """Start the agents, serve their connections until the conductor has finished, and end them.

    Args as for ``conduct``, and:
        conductor: makes the conductor, given the time on ``clock_s()``.
        run_fields: additional fields of the ``run`` event.
    """
    source = Source(job.run, "conductor")
    run_event = RunEvent(
        kind="run",
        version=__version__,
        schema=SCHEMA,
        created=time.time(),
        hostname=host_name(),
        job=job.to_json(),
    )
    target = TARGETS[job.target]
    own_tokens = rendezvous is None and target.node_tokens
    # Where nodes share a token a trial whose record ends before their addresses were compared is no PASS.
    compares = plan is not None and job.nodes > 1 and not own_tokens
    if is_in_container(os.environ):
        run_event["in_container"] = True
    if plan is not None:
        run_event["plan"] = plan
    if compares:
        run_event["sources"] = ["hosts"]
    run = source.event(run_event)

    # In a pod nothing is written here: the controller outside the cluster keeps the files.
    is_followed = "SEATRIAL_LIVE" in os.environ
    generations = job.max_restarts + 1 if isinstance(job, ProgramJob) else MOST_GENERATIONS
    logs = RankLogs(folder, job.world_size, generations, is_kept=not is_followed)

    def record(event: dict[str, Any]) -> None:
        if event.get("kind") == "run":
            logs.begin_start()
        elif event.get("kind") == "generation":
            logs.begin(event["gen"])
        on_event(event)

    def receive(message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind in READ:
            require_sound(message, job.world_size, generations)
        if kind == "log":
            logs.take(cast("RankLog", message))
        if kind in READ and (kind != "log" or is_followed):
            on_message(message)

    if target.submit_and_follow is not None and rendezvous is None:
        try:
            return target.submit_and_follow(job, run, folder, record, receive, signals)
        finally:
            _end_output(logs, job, on_event, signals)
    on_event(run)
    for reason in job.absent:
        on_event(source.event(NoteEvent(kind="note", severity="warn", text=f"left out: {reason}")))
    token = rendezvous.token if rendezvous and rendezvous.token else secrets.token_urlsafe(24)
    token_of = partial(node_token, token) if own_tokens else lambda node: token
    host = rendezvous.host if rendezvous else target.address(job)
    # A name may resolve to any address of this machine, so with other machines all of them are listened on.
    listen = "127.0.0.1" if host == "127.0.0.1" else ""

    keep = "" if is_followed else str(folder)
    credential = _credential(target, job, rendezvous, token)
    hosts_to_bind = () if own_tokens or rendezvous else job.hosts
    addresses = addresses_of(hosts_to_bind)
    if unbound := [host for node, host in enumerate(hosts_to_bind) if node not in addresses]:
        on_event(source.event(NoteEvent(kind="note", severity="info", text=_unbound(unbound))))
    ports = rendezvous.ports if rendezvous else (0,)
    raise_file_limit(_FILES_OF_NODE * job.nodes + _OTHER_FILES)
    server = Server(listen, token_of, record, ports, receive, credential, addresses)
    driver = target.driver(job)
    try:
        if rendezvous is None:
            sent = agent_token(job.run) if credential else token
            commands = target.render(job, control=f"{host}:{server.port}", token=sent, keep=keep)
        else:
            commands = (own_agent_command(job, rendezvous, server.port, keep=keep),)
        driver.submit(commands, folder, signals, server.attach)
        hosts = driver.hosts if rendezvous is None else partial(hosts_of_others, rendezvous, os.environ)
        search = HostSearch(hosts, job.nodes)
        # The clock of the conductor starts here: time in a queue counts for nobody.
        news = _idle_news(driver, signals, questions)
        beat_at = 0.0

        def on_idle(connected: Collection[int]) -> str | tuple[int, str] | None:
            nonlocal beat_at
            if is_followed and (now := time.monotonic()) >= beat_at:
                # The controller outside takes each line as a sign that it still hears of the run.
                beat_at = now + HEARTBEAT_S
                on_message({**Heartbeat(kind="heartbeat")})
            search.begin(server.members, connected)
            return news(connected)

        server.serve(conductor(clock_s()), job.nodes, source, on_idle)
    finally:
        server.close()
        try:
            _note_leftovers(driver.cleanup(), Source(job.run, "launch"), on_event)
        finally:
            # Last: a disk that answers nothing must keep no process running.
            _end_output(logs, job, on_event, signals)
    was_interrupted = bool(signals)
    is_unanswered = compares and was_interrupted and search.is_pending
    found, on_hosts = search.end(waits=not was_interrupted), Source(job.run, "hosts")
    for event in _compared(server, found, job.nodes) if found is not None else ():
        on_event(on_hosts.event(event))
    # Without the addresses that were asked for nothing was compared, and the end of this source is missing.
    if (found is not None or compares) and not is_unanswered:
        on_event(on_hosts.event(EndEvent(kind="end")))
    return server.damaged


def _credential(target: Target, job: Processes, rendezvous: Rendezvous | None, token: str) -> str:
    """Return the credential in which munge passes the token; empty where the environment of the agents has it."""
    is_without_munge = rendezvous is None and (target.has_munge is None or not target.has_munge(job))
    if is_without_munge or (rendezvous is not None and rendezvous.token):
        return ""
    try:
        return make_credential(token_of(job.run if rendezvous is None else rendezvous.name), token)
    except MungeError as error:
        ways = ways_to_secret("--on slurm" if rendezvous is None else rendezvous.launcher)
        raise SeatrialError(f"munge does not carry the secret of this job: {error}; {ways}.") from None


def _compared(server: Server, found: FoundHosts, nodes: int) -> list[Event]:
    """Return the names of the nodes in Slurm, and notes about those that joined from elsewhere."""
    made_at, unread = hosts_of_credentials(server.credentials)
    notes = server.address_notes(found.addresses, made_at)
    impostors = {node for note in notes for node in note.get("untrusted", ())}
    names = {str(node): name for node, name in found.names.items() if node not in impostors}
    layout = [SlurmNodesEvent(kind="slurm_nodes", names=names)] if names else []
    problem = []
    if found.problem:  # a node can bring that about, so that nobody sees in whose place it joined
        problem = [NoteEvent(kind="note", severity="error", text=found.problem, untrusted=[*range(nodes)])]
    unknown = [NoteEvent(kind="note", severity="info", text=_unread(unread))] if unread else []
    return [*layout, *problem, *notes, *unknown]


def _unread(unread: Mapping[int, str]) -> str:
    why = next(iter(unread.values()))
    return (
        f"what munge says of {all_named('node', [str(node) for node in sorted(unread)])} could not be read ({why}), so"
        " the credentials do not tell on which hosts they were made"
    )


def _unbound(hosts: Sequence[str]) -> str:
    return (
        f"no address of {all_named('host', list(dict.fromkeys(hosts)))} is known here (the name is unknown, or the"
        " resolver has not answered in time), so only the secret of the run says what joins from there"
    )


def _idle_news(
    driver: Driver, signals: Sequence[int], questions: Sequence[int] = ()
) -> Callable[[Collection[int]], str | tuple[int, str] | None]:
    """Return a function for each tick of the server: the name of a new signal, else the news of the driver."""
    handled = answered = 0

    def news(connected: Collection[int]) -> str | tuple[int, str] | None:
        nonlocal handled, answered
        new = questions[answered:]
        answered += len(new)
        for number in new:
            if number in FOR_RANKS:
                driver.pass_on(number, connected)
        if signal.SIGQUIT in new:
            return signal.Signals.SIGQUIT.name
        if len(signals) == handled:
            return driver.poll(connected)
        # One at a time, since the conductor counts them.
        handled += 1
        if handled > 1:
            driver.kill()
        return signal.Signals(signals[handled - 1]).name

    return news


def _end_output(logs: RankLogs, job: Processes, on_event: OnEvent, signals: Sequence[int]) -> None:
    """Note what the files of a program's ranks lack. The output of a trial is no evidence."""
    logs.close(lambda: len(signals) > 1)
    if isinstance(job, ProgramJob) and (notes := logs.notes()):
        _add([NoteEvent(kind="note", severity="warn", text=text) for text in notes], Source(job.run, LOGS), on_event)


def _note_leftovers(leftovers: Sequence[tuple[int, str]], source: Source, on_event: OnEvent) -> None:
    texts = [f"the agent of node {node}: {what}" for node, what in leftovers]
    _add([NoteEvent(kind="note", severity="warn", text=text) for text in texts], source, on_event)


def _add(events: Sequence[Event], source: Source, on_event: OnEvent) -> None:
    """Record events from a source that has nothing else to say."""
    for event in events:
        on_event(source.event(event))
    if events:
        on_event(source.event(EndEvent(kind="end")))


def _config(job: Job, rendezvous: Rendezvous | None = None) -> TrialConfig:
    wait_s = join_timeout_s()
    config = TrialConfig(
        run=job.run,
        nodes=job.nodes,
        hosts=job.hosts,
        machines=rendezvous.machines if rendezvous else None,
        nproc_per_node=job.nproc_per_node,
        steps=of_plan(job.plan, registry.load),
        # Pods start one after another; the deadline of the plan is for the time after all of them have connected.
        deadline_s=float(job.plan.deadline_s.value) + (wait_s if wait_s > _JOIN_S else 0.0),
        join_timeout_s=wait_s,
        env=job.rank_env,
        device=job.device,
        backend=job.backend,
        suspects=lambda check, events: suspects(job.plan, check, events),
        next_round=lambda check, events: next_round(job.plan, check, events),
        fails=lambda check, events: fails(job.plan, check, events),
        interface=lambda check, events: interface(job.plan, check, events),
    )
    # MPI cannot be initialized again in processes whose ranks have died, nor with some of them left out.
    return replace(config, most_generations=1) if job.backend == "mpi" else config


@contextlib.contextmanager
def catch_questions() -> Iterator[list[int]]:
    """Collect SIGQUIT, and the signals for the ranks of a script, in a list: they would end this process."""
    questions: list[int] = []
    with handled((signal.SIGQUIT, *for_ranks()), lambda number, frame: questions.append(number)):
        yield questions


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list, so that they do not end this process: the report comes first.

    The second signal restores the former handlers, so that a third one ends the process at any point. The signals for
    the ranks of a script, which launchers send to all processes of a job, do nothing.
    """
    signals: list[int] = []
    collect = collector(signals)

    def on_signal(number: int, frame: FrameType | None) -> None:
        collect(number, frame)
        if len(signals) > 1:
            restore()

    # Children would ignore what this process ignores.
    with (
        handled(unless_ignored(STOPPING), on_signal) as restore,
        handled(for_ranks(), lambda number, frame: None),
    ):
        yield signals
