"""What the events of a trial add up to: the records that ``fold`` fills and everything after it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.verdict.evidence import RankSeen
from seatrial.verdict.figures import Fact, Figure

__all__ = [
    "ErrorTold",
    "ExitSeen",
    "GenerationSeen",
    "LeftProcess",
    "NodeSeen",
    "Note",
    "StackSeen",
    "StepSeen",
    "Trial",
    "TroubleSeen",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node whose agent came."""

    node: int
    """The node rank."""
    hostname: str
    address: str
    pid: int | None
    cores: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSeen:
    """One life of all ranks."""

    number: int
    ranks: tuple[int, ...]
    nodes: Mapping[int, int]
    """Trial rank -> node rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """One step: what was asked of whom, and who finished it."""

    generation: int
    number: int
    check: str
    stage: str
    ranks: tuple[int, ...]
    timeout_s: float
    outcome: str | None
    """``done``, ``trouble``, ``deadline``, ``interrupted``; None: the conductor never told the end of it."""
    seconds: float | None
    done: tuple[int, ...]

    def complete(self) -> bool:
        """Whether everybody who was asked finished, and the conductor saw it too."""
        return self.outcome == "done" and set(self.ranks) <= set(self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTold:
    """An exception that a rank told of itself."""

    generation: int
    step: int | None
    rank: int
    cause: str
    """``memory``, ``device``, ``fabric``, ``request`` or ``own``."""
    type: str
    message: str
    stack: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleSeen:
    """What the conductor saw of one rank or one node when a step went wrong; both None: of nobody."""

    generation: int
    step: int | None
    rank: int | None
    node: int | None
    how: str
    phase: str
    waited_s: float | None
    detail: str
    waiting: tuple[tuple[int, str], ...]
    """Ranks that only waited, each with the phase that it waited in."""
    order: int
    """The conductor's sequence number, to tell what came before an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSeen:
    """How a rank's process ended, as its agent saw it."""

    generation: int
    rank: int
    code: int
    """Negative: the signal that ended it."""
    ours: bool
    phase: str
    last_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSeen:
    """Where a rank was when its time was over."""

    generation: int
    rank: int
    state: str
    """The letter of /proc: R, S, D, T, Z."""
    wchan: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftProcess:
    """A process that could not be ended."""

    generation: int
    rank: int
    node: int | None
    pid: int | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Trouble of our own that concerns no rank."""

    src: str
    severity: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The fold of all events of one run."""

    run: str
    """Empty when the run could not be told."""
    version: str
    """The seatrial that ran it."""
    conductor_hostname: str
    """Of the machine that conducted, as its nodes are named; empty where that was not told."""
    created: float
    """Seconds since the epoch, the conductor's clock."""
    plan: Mapping[str, Any]
    job: Mapping[str, Any]
    interrupted: str | None
    """By whom; None: it was not."""
    interrupted_order: int | None
    """The conductor's sequence number of the interruption."""
    ranks: Mapping[int, RankSeen]
    """The ranks of generation 0, also those that never said a word."""
    started: Mapping[int, Mapping[str, Any]]
    """What each rank of generation 0 said of itself when it came: device, libraries, pid and so on."""
    device_type: str
    """``cpu`` or ``cuda``; ``cpu`` where ranks differ, because its limits accuse least; empty: nobody came."""
    backend: str
    nodes: tuple[NodeSeen, ...]
    generations: tuple[GenerationSeen, ...]
    steps: tuple[StepSeen, ...]
    figures: tuple[Figure, ...]
    facts: tuple[Fact, ...]
    errors: tuple[ErrorTold, ...]
    troubles: tuple[TroubleSeen, ...]
    exits: tuple[ExitSeen, ...]
    stacks: tuple[StackSeen, ...]
    left: tuple[LeftProcess, ...]
    notes: tuple[Note, ...]
    ended: frozenset[str]
    """The sources that said ``end``."""
    missing: tuple[str, ...]
    """What was lost on the way, in words. While there is any, nothing PASSes."""

    def world_size(self) -> int:
        """The number of ranks that were asked for, or that were seen where that is not known."""
        size = self.job.get("world_size")
        return size if isinstance(size, int) and not isinstance(size, bool) else len(self.ranks)

    def hostname(self, node: int) -> str:
        """The host name of a node, or its number where the node never said."""
        return next((seen.hostname for seen in self.nodes if seen.node == node and seen.hostname), f"node {node}")

    def label(self, rank: int) -> str:
        """A rank as a finding names it."""
        return self.ranks[rank].label() if rank in self.ranks else f"rank {rank}"

    def step(self, generation: int, number: int | None) -> StepSeen | None:
        """The step of that number."""
        return next((step for step in self.steps if (step.generation, step.number) == (generation, number)), None)
