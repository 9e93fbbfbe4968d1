"""The last step of one generation as blame sees it: deaths, errors, suspects, and the evidence of each rank."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.checks import registry
from seatrial.evidence.evidence import a_node
from seatrial.evidence.findings import Culprit
from seatrial.judge.trial import ErrorRecord, ExitRecord, StackRecord, StepRecord, Trial, TroubleRecord
from seatrial.plan.model import Plan
from seatrial.protocol.connecting import CRASHES, OUT_OF_MEMORY, connects, may_come_from_others
from seatrial.protocol.events import Cause
from seatrial.protocol.fabric_errors import gave_up, says_lost, says_why_aborted
from seatrial.protocol.own_errors import (
    NO_EXCEPTION,
    is_of_device,
    lack_at_end,
    lack_of_processes,
    link_error,
    setup_error,
)
from seatrial.util.text import as_name, fitted

_MOST_EVIDENCE = 6
_MOST_LINE_CHARS = 400
"""Characters of the line about a rank that may only have waited; its phase and its words may be of any length."""
_STACK_LINES = 24
_SOURCE_PLACE = re.compile(r"^\[[^\]\s]{1,300}\.(?:cc|cpp|h|hpp):\d+\] ")
"""Such as ``[/src/gloo/transport/tcp/pair.cc:547] ``, with which Gloo begins."""
_UNCAUGHT = re.compile(r"\bwhat\(\): +(?P<message>.*)")
_SOCKET = re.compile(
    r"(?:broken pipe|connection (?:timed out|aborted)|(?:endpoint|socket) is not connected|host is down)\b", re.I
)
"""Words of the kernel for a connection that has ended."""
_UNKNOWN = " in an unknown phase"
_BLOCKED = ("D", "T", "t", "Z")
"""Letters of /proc: in uninterruptible sleep, stopped, traced, ended."""
_BY_TIME = ("working", "stuck", "late", "absent", "frozen")
"""Observations about ranks that had reported nothing: only their time was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """The events of one generation, which ends with its first trouble, sorted by what they can mean."""

    trial: Trial
    generation: int
    died: dict[int, ExitRecord | None]
    """Ranks that ended although we did not end them; None where the exit status is unknown."""
    died_unsure: dict[int, ExitRecord]
    """Ranks that ended too, but the event that explains it may be missing."""
    crashed: dict[int, ExitRecord]
    """Ranks that ended while they connected to other hosts: what they received may explain it."""
    raised: dict[int, ErrorRecord]
    """The first error of each rank."""
    troubles: tuple[TroubleRecord, ...]
    """The conductor's observations before any interruption."""
    lost_nodes: frozenset[int]
    bystanders: dict[int, str]
    """One line of evidence for each rank, ascending, in case that it is not at fault."""
    check: str
    """The check in which it happened; ``trial`` outside of any."""
    stacks: Mapping[int, Sequence[StackRecord]]
    """By rank: an agent may have sent any number."""
    exits: Mapping[int, ExitRecord]
    steps: Mapping[int, StepRecord]
    """By number."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of this generation."""
        return next((entry.ranks for entry in self.trial.generations if entry.number == self.generation), ())

    def of(self, *hows: str) -> list[TroubleRecord]:
        """Return the conductor's observations of these kinds, one for each rank, without ranks of lost nodes."""
        entries = {
            entry.rank: entry for entry in reversed(self.troubles) if entry.how in hows and entry.rank is not None
        }
        return [entries[rank] for rank in sorted(entries) if self.node_of(rank) not in self.lost_nodes]

    def node_of(self, rank: int) -> int | None:
        """Return the node rank of a rank of this generation."""
        return next(
            (entry.nodes.get(rank) for entry in self.trial.generations if entry.number == self.generation), None
        )

    def step(self, number: int | None) -> StepRecord | None:
        """Return the step of that number in this generation."""
        return None if number is None else self.steps.get(number)

    def last_step(self) -> StepRecord | None:
        """Return the last step of this generation."""
        return next((step for step in reversed(self.trial.steps) if step.generation == self.generation), None)

    def may_follow(self) -> frozenset[int]:
        """Return the ranks whose crash may follow from the end of a rank of another host: NCCL may crash when its peer
        goes.

        MPI may end the ranks of all hosts with one that crashed, so there the order is not known.
        """
        crashed = [
            rank
            for rank, end in self.died.items()
            if end is not None and -end.code in CRASHES and not may_be_device(self.trial, end)
        ]
        if not crashed or self.trial.backend == "mpi":
            return frozenset()
        heard: dict[int | None, int] = {}
        for index, entry in enumerate(self.troubles):
            if entry.how == "dead":
                heard.setdefault(entry.rank, index)
        never = len(self.troubles)
        # An end that the conductor heard of later came later: agents report the ends of ranks as they happen.
        gone = {host_of(self.trial, rank): -1 for rank in self.ranks if self.node_of(rank) in self.lost_nodes}
        for rank, end in self.died.items():
            if end is not None and self._ended_first(end):
                host = host_of(self.trial, rank)
                gone[host] = min(gone.get(host, never), heard.get(rank, never))
        hosts = {rank: host_of(self.trial, rank) for rank in crashed}
        return frozenset(
            rank
            for rank in crashed
            if any(at <= heard.get(rank, never) for host, at in gone.items() if host != hosts[rank])
        )

    def _ended_first(self, ending: ExitRecord) -> bool:
        """Return whether no crash of a peer ends a rank in this way."""
        exited = ending.code >= 0 and not self.trial.missing
        return exited or ending.oom or -ending.code == signal.SIGKILL

    def evidence(self, rank: int) -> tuple[str, ...]:
        """Return the last stack and the last output of a rank."""
        lines = []
        stacks = self.stacks.get(rank, ())
        # The error of a rank has its own stack; by now the rank waits for the next command.
        for stack in stacks[-1:] if rank not in self.raised else ():
            # A rank that writes its stack runs: any other state than a blocked one is about that.
            if stack.state in _BLOCKED:
                lines.append(
                    f"process state {stack.state}" + (f", in the kernel at {stack.wchan}" if stack.wchan else "")
                )
            text = next((entry.text for entry in reversed(stacks) if entry.text.strip()), "")
            if text:
                lines.append(f"stack of {self.trial.named(rank)}:\n" + "\n".join(text.splitlines()[-_STACK_LINES:]))
        if rank in self.exits and self.exits[rank].last_lines:
            lines.append("its last output:\n" + "\n".join(self.exits[rank].last_lines))
        return tuple(lines)

    def waiting(self, culprits: Iterable[int]) -> tuple[str, ...]:
        """Return one line for each rank that is no culprit: it waited, or its library reported the consequences."""
        named = self.bystanders.keys() & set(culprits)
        others = (line for rank, line in self.bystanders.items() if rank not in named)
        lines = tuple(itertools.islice(others, _MOST_EVIDENCE))
        more = len(self.bystanders) - len(named) - len(lines)
        return (*lines, f"and {more} more ranks") if more else lines


def works_alone(check: str) -> bool:
    """Return whether the ranks of a check wait for no other."""
    try:
        return registry.load(check).scope == "alone"
    except KeyError:  # the events of another version, or of a check that only its writer has
        return False


def most_wait_s(trial: Trial, check: str) -> float:
    """Return for how long ranks of a check may wait for one another before they say themselves who did not come."""
    try:
        loaded = registry.load(check)
        params = Plan.from_json(trial.plan).params(check, loaded.params)
        return loaded.most_wait_s(params) if loaded.most_wait_s else 0.0
    except (KeyError, TypeError, ValueError):  # events may contain anything
        return 0.0


def build_step_view(trial: Trial, generation: int) -> StepView:
    """Sort the events of one generation."""
    interrupted = trial.interrupted_order
    troubles = tuple(
        entry
        for entry in trial.troubles
        if entry.generation == generation and (interrupted is None or entry.order < interrupted)
    )
    # Its agent ended with its ranks, so that the conductor missed the node.
    out_of_memory = {entry.rank for entry in troubles if entry.how == "dead" and entry.detail.startswith(OUT_OF_MEMORY)}
    places = next((entry.nodes for entry in trial.generations if entry.number == generation), {})
    nodes = {node for rank, node in places.items() if rank in out_of_memory}
    troubles = tuple(entry for entry in troubles if entry.node is None or entry.node not in nodes)
    # Then all ranks are ended, but not all at once: what others say of that, or die of, came after the cause.
    first = min((entry.order for entry in troubles), default=0)
    decided = [entry for entry in troubles if entry.order == first]
    by_time = bool(decided) and all(entry.how in _BY_TIME for entry in decided)
    raised: dict[int, ErrorRecord] = {}
    for error in trial.errors if not by_time else ():
        if error.generation == generation:
            raised.setdefault(error.rank, error)
    exits = {ending.rank: ending for ending in trial.exits if ending.generation == generation}
    confirmed = {entry.rank for entry in troubles if entry.how == "dead"}
    causes = {entry.rank: entry.detail for entry in troubles if entry.how == "error" and entry.rank is not None}
    died: dict[int, ExitRecord | None] = {}
    unsure: dict[int, ExitRecord] = {}
    crashed: dict[int, ExitRecord] = {}
    is_among_hosts = num_hosts(trial, generation) > 1
    for rank, ending in exits.items():
        if ending.ours or f"rank{rank}.{generation}" in trial.ended or _explained(trial, ending, raised, causes):
            continue
        if by_time:
            if trial.missing:
                unsure[rank] = ending
            continue
        said = (trial.device_type == "cuda" and link_error(ending.last_lines)) or _why_aborted(ending.last_lines)
        aborted = describe_exit(ending.code).signal == "SIGABRT"
        from_others = is_among_hosts and _may_come_from_others(trial, ending)
        if lack := _lack_of_processes(trial, ending):
            raised[rank] = _error_at_end(ending, "processes", lack)
        elif (aborted or ending.code > 0) and not from_others and (kept_from := _setup_error(trial, ending)):
            raised[rank] = _error_at_end(ending, "setup", kept_from)
        elif said and aborted and not has_device_error(trial, ending):
            # NCCL's watchdog aborts its process when a peer is missing, or a link to one fails, and Gloo's when one
            # sends more than it should.
            # So the rank is a witness, unless its own device failed, which the watchdog reports as well.
            raised.setdefault(rank, _error_at_end(ending, "fabric", said))
        elif from_others:
            crashed[rank] = ending
        elif (aborted or ending.code > 0) and (lack := _lack_at_end(trial, ending, aborted=aborted)):
            raised[rank] = _error_at_end(ending, "processes", lack)
        # A process causes a crash by itself, so the record of its death needs no other event to explain it.
        elif rank in confirmed or -ending.code in CRASHES:
            died[rank] = ending
        elif interrupted is None:
            # Not confirmed by the conductor: with events missing, it may be the consequence of one of those.
            (unsure if trial.missing else died)[rank] = ending
    for entry in troubles:
        dead = entry.rank
        if entry.how == "dead" and dead is not None and not {dead} & (exits.keys() | raised.keys() | causes.keys()):
            reported = _exit_of(entry)
            if reported is not None and is_among_hosts and _may_come_from_others(trial, reported):
                crashed[dead] = reported
            else:
                died[dead] = reported
    stacks: dict[int, list[StackRecord]] = {}
    for stack in trial.stacks:
        if stack.generation == generation:
            stacks.setdefault(stack.rank, []).append(stack)
    lost = frozenset(entry.node for entry in troubles if entry.how in ("lost", "silent") and entry.node is not None)
    check = _check(trial, generation, troubles, raised)
    return StepView(
        trial=trial,
        generation=generation,
        died=died,
        died_unsure=unsure,
        crashed=crashed,
        raised=raised,
        troubles=troubles,
        lost_nodes=lost,
        bystanders=_bystanders(trial, check, troubles, raised, exits, {**died, **crashed}),
        check=check,
        stacks=stacks,
        exits=exits,
        steps={step.number: step for step in trial.steps if step.generation == generation},
    )


def _why_aborted(lines: Sequence[str]) -> str:
    """Return what a library printed before it aborted its process, with the message of its exception; else nothing."""
    what = {line: found["message"] for line in lines if (found := _UNCAUGHT.search(line))}
    lost = [line for line, message in what.items() if gave_up(message) or says_lost(message) or _SOCKET.search(message)]
    said = [line for line in lines if says_why_aborted(line) or line in lost]
    return " ".join((*said, *(line for line in what if said and line not in said)))


def _error_at_end(ending: ExitRecord, cause: Cause, message: str) -> ErrorRecord:
    """Return what a rank printed before it ended, as the error that it could not report."""
    return ErrorRecord(
        generation=ending.generation,
        step=None,
        rank=ending.rank,
        cause=cause,
        type="",
        message=message,
        stack="",
        phase=ending.phase,
        at=0.0,
    )


def num_hosts(trial: Trial, generation: int) -> int:
    """Return on how many hosts the ranks of a generation are, as the controller knows it where it does."""
    ranks = next((entry.ranks for entry in trial.generations if entry.number == generation), ())
    return len({host_of(trial, rank) for rank in ranks if rank in trial.ranks})


def host_of(trial: Trial, rank: int) -> str:
    """Return the host of a rank, as the controller knows it where it does."""
    record = trial.ranks.get(rank)
    return "" if record is None else trial.places_of_nodes.get(record.node_rank) or record.node


def _may_come_from_others(trial: Trial, ending: ExitRecord) -> bool:
    lines = ending.last_lines if trial.device_type == "cuda" else ()
    return may_come_from_others(ending.phase, ending.code, lines, is_oom=ending.oom)


def has_device_error(trial: Trial, ending: ExitRecord) -> bool:
    """Return whether the last output of a rank says that it could not use its GPU, whatever the cause."""
    return trial.device_type == "cuda" and is_of_device(ending.last_lines)


def may_be_device(trial: Trial, ending: ExitRecord) -> bool:
    """Return whether it says that the GPU failed."""
    return has_device_error(trial, ending) and not _setup_error(trial, ending)


def _setup_error(trial: Trial, ending: ExitRecord) -> str:
    return setup_error(ending.last_lines) if trial.device_type == "cuda" else ""


def _lack_of_processes(trial: Trial, ending: ExitRecord) -> str:
    """Return what a rank printed if it ended since its host gave it no further thread: libraries then exit, abort, or
    interrupt the process. Empty: it did not."""
    ends_itself = ending.code > 0 or -ending.code in (signal.SIGABRT, signal.SIGINT, *CRASHES)
    if not ends_itself or has_device_error(trial, ending):
        return ""
    # C++ aborts so where a constructor has started one thread and gets no second one, as in Gloo while a group forms.
    if ending.code == -signal.SIGABRT and connects(ending.phase) and NO_EXCEPTION in ending.last_lines:
        return NO_EXCEPTION
    return lack_of_processes(ending.last_lines)


def _lack_at_end(trial: Trial, ending: ExitRecord, *, aborted: bool) -> str:
    """Return the exception that ended a rank, if it tells a lack of its host, and its output nothing of its GPU."""
    return "" if has_device_error(trial, ending) else lack_at_end(ending.last_lines, aborted=aborted)


def _bystanders(
    trial: Trial,
    check: str,
    troubles: tuple[TroubleRecord, ...],
    raised: dict[int, ErrorRecord],
    exits: Mapping[int, ExitRecord],
    ended: Mapping[int, ExitRecord | None],
) -> dict[int, str]:
    lines, named, was = {}, trial.named, "was" if works_alone(check) else "was waiting"
    for entry in troubles:
        if entry.rank is not None and entry.how in ("stuck", "absent", "late", "frozen"):
            lines[entry.rank] = f"{named(entry.rank)} {was}{in_phase(entry.phase, _UNKNOWN)}{waited(entry)}"
        elif entry.rank is not None and entry.how == "working":
            lines[entry.rank] = f"{named(entry.rank)} was at work{in_phase(entry.phase, _UNKNOWN)}"
    # All entries of one trouble share one list of waiting ranks.
    for waiting in {entry.order: entry.waiting for entry in troubles}.values():
        for rank, phase in waiting:
            lines[rank] = f"{named(rank)} {was}{in_phase(phase, _UNKNOWN)}"
    for rank, error in raised.items():
        what = "a communication error" if error.cause == "fabric" else as_name(error.type)
        lines[rank] = f"{named(rank)} saw {what}{in_phase(error.phase, _UNKNOWN)}: {_first_line(error.message)}"
        if rank in exits and -exits[rank].code in CRASHES:
            lines[rank] += f"; then it {describe_exit(exits[rank].code).words}"
    for rank, ending in ended.items():
        if ending is not None:
            lines[rank] = f"{named(rank)} {describe_exit(ending.code).words}{in_phase(ending.phase, _UNKNOWN)}"
    return {rank: fitted(line, _MOST_LINE_CHARS) for rank, line in sorted(lines.items())}


def _check(trial: Trial, generation: int, troubles: tuple[TroubleRecord, ...], raised: dict[int, ErrorRecord]) -> str:
    numbers = {entry.step for entry in troubles} | {error.step for error in raised.values()}
    steps = [step for step in trial.steps if step.generation == generation]
    concerned = [step for step in steps if (step.number in numbers if numbers else not step.complete())]
    return concerned[0].check if concerned else "trial"


def _explained(trial: Trial, ending: ExitRecord, raised: dict[int, ErrorRecord], causes: dict[int, str]) -> bool:
    """Return whether the rank's own error explains its end: then the error is judged, not the exit.

    ``causes`` of errors by rank, as the conductor reported them. Where the device fails, NCCL may hear of it first, and
    the rank complains of the fabric until the watchdog ends it with the words of the device.
    """
    cause = raised[ending.rank].cause if ending.rank in raised else causes.get(ending.rank)
    if cause is None or (cause == "fabric" and has_device_error(trial, ending)):
        return False
    # The watchdog of a backend aborts the process when a peer is gone, or the backend crashes as it gives up its group.
    return ending.code > 0 or (cause == "fabric" and -ending.code in (*CRASHES, signal.SIGABRT))


def _exit_of(entry: TroubleRecord) -> ExitRecord | None:
    """Return how a rank ended as the conductor reported it, where the event of its agent is missing."""
    is_oom = entry.detail.startswith(OUT_OF_MEMORY)
    said = re.fullmatch(r"exit code (-?\d{1,9})", entry.detail)
    if entry.rank is None or not (is_oom or said):
        return None
    return ExitRecord(
        generation=entry.generation,
        rank=entry.rank,
        code=int(said[1]) if said else -signal.SIGKILL,
        ours=False,
        oom=is_oom,
        oom_words=entry.detail.removeprefix(OUT_OF_MEMORY) if is_oom else "",
        phase=entry.phase,
        last_lines=(),
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    words: str
    signal: str
    """Name of the signal; empty where there was none."""


def describe_exit(code: int) -> _Ending:
    """Return an exit code in words, and the name of the signal if it was one."""
    if code >= 0:
        return _Ending("exited early with code 0" if code == 0 else f"exited with code {code}", "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return _Ending(f"was killed by signal {-code}" + (f" ({name})" if name.startswith("SIG") else ""), name)


def rank_culprit(trial: Trial, rank: int, kind: Literal["rank", "device"] = "rank") -> Culprit:
    """Return a rank with its device, which may be at fault (``rank``) or is (``device``)."""
    nodes = (trial.ranks[rank].node,) if rank in trial.ranks else ()
    return Culprit(kind=kind, name=trial.label(rank), ranks=(rank,), nodes=nodes)


def process_culprit(trial: Trial, generation: int, rank: int) -> Culprit:
    """Return the process of a rank as the culprit; nothing that was seen points at its device."""
    record, pid = trial.ranks.get(rank), trial.pids.get((generation, rank))
    where = f" on {a_node(record.place)}" if record else ""
    number = "" if pid is None else f" (pid {pid})"
    nodes = (record.node,) if record else ()
    return Culprit(kind="process", name=f"rank {rank}{where}, its process{number}", ranks=(rank,), nodes=nodes)


def in_phase(phase: str, unknown: str = "") -> str:
    """Return where a rank was, as the end of a clause: `` in collectives/begin``. Its phase is a word of the rank."""
    return f" in {as_name(phase)}" if phase else unknown


def waited(entry: TroubleRecord, preposition: str = "for") -> str:
    """Return how long the others waited, as the end of a clause: `` for 16 s``."""
    return f" {preposition} {entry.waited_s:.0f} s" if entry.waited_s and entry.waited_s < 1e9 else ""


def _first_line(text: str) -> str:
    """Return the first line of an error, without the place in a library's source in front of it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "(no message)")
    return (_SOURCE_PLACE.sub("", line) or line)[:300]
