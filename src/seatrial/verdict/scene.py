"""One generation as blame looks at it: who died, who raised, whom the conductor suspected, and what else was seen."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from seatrial.verdict.findings import Culprit
from seatrial.verdict.trial import ErrorTold, ExitSeen, StepSeen, Trial, TroubleSeen

__all__ = ["NOBODY", "Scene", "culprit_rank", "ended_how", "look", "seconds"]

NOBODY = Culprit(kind="none", name="nobody could be named")
_MOST_EVIDENCE = 6
_STACK_LINES = 24
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
"""Signals that nobody sends: the process did it to itself, whatever else was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What was seen in one generation, sorted by what it can mean."""

    trial: Trial
    generation: int
    died: dict[int, ExitSeen | None]
    """Ranks that are gone, not by our hand; None: how it ended was not told."""
    died_unsure: dict[int, ExitSeen]
    """Gone as well, but what would say why may be lost."""
    raised: dict[int, ErrorTold]
    """The first error of each rank."""
    troubles: tuple[TroubleSeen, ...]
    """What the conductor saw before any interruption."""
    lost_nodes: frozenset[int]
    told: dict[int, str]
    """What is to be said of each rank if it was only waiting."""
    check: str
    """The check in which it happened; ``trial`` outside of any. A generation ends with its first trouble."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of this generation."""
        return next((seen.ranks for seen in self.trial.generations if seen.number == self.generation), ())

    def of(self, *hows: str) -> list[TroubleSeen]:
        """What the conductor saw of ranks, one entry a rank; a rank on a node that vanished is the node's matter."""
        found = {entry.rank: entry for entry in reversed(self.troubles) if entry.how in hows and entry.rank is not None}
        return [found[rank] for rank in sorted(found) if self.node_of(rank) not in self.lost_nodes]

    def node_of(self, rank: int) -> int | None:
        """The node rank of a rank of this generation."""
        return next((seen.nodes.get(rank) for seen in self.trial.generations if seen.number == self.generation), None)

    def step(self, number: int | None) -> StepSeen | None:
        """The step of that number in this generation."""
        return self.trial.step(self.generation, number)

    def evidence(self, rank: int) -> tuple[str, ...]:
        """Stack and last output of a rank."""
        told = []
        for stack in self.trial.stacks:
            # Whoever raised an error has told where; by now it waits for the next command.
            if (stack.generation, stack.rank) == (self.generation, rank) and rank not in self.raised:
                where = f", in the kernel at {stack.wchan}" if stack.wchan else ""
                told.append(f"process state {stack.state or 'unknown'}{where}")
                if stack.text.strip():
                    told.append("its stack:\n" + _tail(stack.text.splitlines()))
        for seen in self.trial.exits:
            if (seen.generation, seen.rank) == (self.generation, rank) and seen.last_lines:
                told.append("its last output:\n" + _tail(seen.last_lines))
        return tuple(told)

    def waiting(self, culprits: Iterable[int]) -> tuple[str, ...]:
        """Who waited for the culprits, and what their libraries said of it: consequences, never blame."""
        named = set(culprits)
        lines = [self.told[rank] for rank in sorted(self.told) if rank not in named]
        if len(lines) > _MOST_EVIDENCE:
            lines = [*lines[:_MOST_EVIDENCE], f"and {len(lines) - _MOST_EVIDENCE} more ranks"]
        return tuple(lines)


def look(trial: Trial, generation: int) -> Scene:
    """Sort what was seen in one generation."""
    before = trial.interrupted_order
    troubles = tuple(
        entry for entry in trial.troubles if entry.generation == generation and (before is None or entry.order < before)
    )
    raised: dict[int, ErrorTold] = {}
    for error in trial.errors:
        if error.generation == generation:
            raised.setdefault(error.rank, error)
    exits = {seen.rank: seen for seen in trial.exits if seen.generation == generation}
    confirmed = {entry.rank for entry in troubles if entry.how == "dead"}
    told = {entry.rank: entry.detail for entry in troubles if entry.how == "error" and entry.rank is not None}
    died: dict[int, ExitSeen | None] = {}
    unsure: dict[int, ExitSeen] = {}
    for rank, seen in exits.items():
        if seen.ours or f"rank{rank}.{generation}" in trial.ended or _explained(seen, raised, told):
            continue
        said = " ".join(line for line in seen.last_lines if "watchdog" in line)
        if said and ended_how(seen.code).signal == "SIGABRT" and not re.search("(cuda|hip) error", said.lower()):
            # NCCL's watchdog aborts its process when it misses others. So the rank is a witness, unless its own device
            # failed, of which the watchdog tells as well.
            witness = ErrorTold(
                generation=generation,
                step=None,
                rank=rank,
                cause="fabric",
                type="",
                message=said,
                stack="",
                phase=seen.phase,
            )
            raised.setdefault(rank, witness)
        elif rank in confirmed or ended_how(seen.code).signal in _CRASHES:
            died[rank] = seen
        elif before is None:
            # Without the conductor's word, and with events lost, it may be a consequence of what we cannot see.
            (unsure if trial.missing else died)[rank] = seen
    for entry in troubles:
        dead = entry.rank
        if entry.how == "dead" and dead is not None and not {dead} & (exits.keys() | raised.keys() | told.keys()):
            died[dead] = _from_detail(entry)
    lost = frozenset(entry.node for entry in troubles if entry.how in ("lost", "silent") and entry.node is not None)
    return Scene(
        trial=trial,
        generation=generation,
        died=died,
        died_unsure=unsure,
        raised=raised,
        troubles=troubles,
        lost_nodes=lost,
        told=_told(troubles, raised),
        check=_check(trial, generation, troubles, raised),
    )


def _told(troubles: tuple[TroubleSeen, ...], raised: dict[int, ErrorTold]) -> dict[int, str]:
    told = {}
    for entry in troubles:
        if entry.rank is not None and entry.how in ("stuck", "absent", "late", "frozen"):
            told[entry.rank] = f"rank {entry.rank} was waiting in {entry.phase or 'an unknown phase'}{seconds(entry)}"
        elif entry.rank is not None and entry.how == "working":
            told[entry.rank] = f"rank {entry.rank} was at work in {entry.phase or 'an unknown phase'}"
    # All entries of one trouble share one list of who waited.
    for waiting in {entry.order: entry.waiting for entry in troubles}.values():
        told |= {rank: f"rank {rank} was waiting in {phase or 'an unknown phase'}" for rank, phase in waiting}
    for rank, error in raised.items():
        what = "a communication error" if error.cause == "fabric" else error.type
        told[rank] = f"rank {rank} saw {what} in {error.phase or 'an unknown phase'}: {_first_line(error.message)}"
    return told


def _check(trial: Trial, generation: int, troubles: tuple[TroubleSeen, ...], raised: dict[int, ErrorTold]) -> str:
    numbers = {entry.step for entry in troubles} | {error.step for error in raised.values()}
    steps = [step for step in trial.steps if step.generation == generation]
    found = [step for step in steps if step.number in numbers]
    if not numbers:
        found = [step for step in steps if not step.complete()]
    return found[0].check if found else "trial"


def _explained(seen: ExitSeen, raised: dict[int, ErrorTold], told: dict[int, str]) -> bool:
    """Whether its own error says why it ended: then the error is judged, not the exit. ``told``: by the conductor."""
    cause = raised[seen.rank].cause if seen.rank in raised else told.get(seen.rank)
    if cause is None:
        return False
    # A backend's watchdog aborts the process when a peer is gone.
    return seen.code > 0 or (cause == "fabric" and ended_how(seen.code).signal == "SIGABRT")


def _from_detail(entry: TroubleSeen) -> ExitSeen | None:
    """How a rank ended by the conductor's word, where that of its agent is lost."""
    code = re.fullmatch(r"exit code (-?\d{1,9})", entry.detail)
    if code is None or entry.rank is None:
        return None
    return ExitSeen(
        generation=entry.generation, rank=entry.rank, code=int(code[1]), ours=False, phase=entry.phase, last_lines=()
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    words: str
    signal: str


def ended_how(code: int) -> _Ending:
    """An exit code in words, and the name of the signal if it was one."""
    if code >= 0:
        return _Ending("exited early with code 0" if code == 0 else f"exited with code {code}", "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return _Ending(f"was killed by signal {-code}" + (f" ({name})" if name.startswith("SIG") else ""), name)


def culprit_rank(trial: Trial, rank: int, *, device: bool = False) -> Culprit:
    """A rank, or the device of a rank, as the culprit."""
    nodes = (trial.ranks[rank].node,) if rank in trial.ranks else ()
    return Culprit(kind="device" if device else "rank", name=trial.label(rank), ranks=(rank,), nodes=nodes)


def seconds(entry: TroubleSeen) -> str:
    """How long it was waited for, as the end of a clause."""
    return f" for {entry.waited_s:.0f} s" if entry.waited_s and entry.waited_s < 1e9 else ""


def _tail(lines: Iterable[str]) -> str:
    return "\n".join(list(lines)[-_STACK_LINES:])


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "(no message)")[:300]
