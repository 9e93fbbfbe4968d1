"""The records of a trial: ``fold`` makes them from the events, and judging and reports read them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.evidence.evidence import RankRecord
from seatrial.evidence.findings import Severity
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.schema_types import Whole
from seatrial.protocol.events import THIS_MACHINE, Cause
from seatrial.util.text import quoted

Outcome = Literal["done", "trouble", "deadline", "interrupted"]
How = Literal["dead", "error", "frozen", "absent", "stuck", "lost", "silent", "late", "working"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node whose agent joined."""

    node: Whole
    """The node rank."""
    hostname: str
    """The name that the host gives itself."""
    address: str
    pid: int | None
    """Process id of the agent."""
    cores: int | None
    slurm_name: str = ""
    """The name of the node in Slurm (NodeName), as its agent says it; empty elsewhere."""
    name: str = ""
    """The name that findings use; empty where no name is known."""
    calls_itself: str = ""
    """The name that the host gives itself, where that is not ``name``."""


def machine_key(hostname: str, address: str, place: str) -> tuple[str, str, str]:
    """Return what agents of one machine share: a launcher may start one agent for each rank.

    A host that claims to be the machine of another one is another one: it joined from elsewhere. Agents that join from
    the machine of the controller may name different addresses of it, such as 127.0.1.1.
    """
    return hostname, "" if place == THIS_MACHINE else address, place


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """One generation: a start of the ranks. Number 0 is the first; each later one is a restart attempt."""

    number: int
    ranks: tuple[int, ...]
    nodes: Mapping[int, int]
    """Rank -> node rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: one stage of a check, the ranks that were asked to run it, and those that finished it."""

    generation: Whole
    number: Whole
    check: str
    stage: str
    ranks: tuple[Whole, ...]
    timeout_s: float
    outcome: Outcome | None
    """None where the conductor did not report the end of the step."""
    seconds: float | None
    """Duration; None where the conductor did not report the end of the step."""
    done: tuple[Whole, ...]
    nodes: tuple[Whole, ...] = ()
    """The nodes whose agents were asked to carry it out; empty for a step of ranks."""
    nodes_done: tuple[Whole, ...] = ()
    """The nodes whose agents carried it out."""

    def complete(self) -> bool:
        """Return whether all ranks or nodes of the step finished it, by their own events and by the conductor's."""
        return self.outcome == "done" and set(self.ranks) <= set(self.done) and set(self.nodes) <= set(self.nodes_done)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An exception that a rank reported of itself."""

    generation: int
    step: int | None
    rank: int
    cause: Cause
    """``own`` is a bug in seatrial."""
    type: str
    """Name of the exception class."""
    message: str
    stack: str
    phase: str
    at: float
    """Seconds since the epoch, by the clock of its host; 0: not known, and before its process ended."""

    def first_line(self) -> str:
        """Return the first line of its text that says something, else its class."""
        return next((line.strip() for line in self.message.splitlines() if line.strip()), self.type or "no message")

    def stack_lines(self) -> tuple[str, ...]:
        """Return its stack as evidence; nothing where there is none."""
        return ("its stack:\n" + self.stack.rstrip(),) if self.stack.strip() else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A step of agents that a node could not carry out."""

    generation: int
    step: int
    node: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleRecord:
    """The conductor's observation of one rank or one node when a step went wrong; both may be None."""

    generation: int
    step: int | None
    """-1 while ranks start."""
    rank: int | None
    node: int | None
    how: How
    phase: str
    waited_s: float | None
    detail: str
    waiting: tuple[tuple[int, str], ...]
    """(rank, phase) of each rank that only waited."""
    order: int
    """The conductor's sequence number, to find what came before an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """The end of a rank's process, as its agent saw it."""

    generation: Whole
    rank: Whole
    code: int
    """Exit code; negative: the signal that ended the process."""
    ours: bool
    """Whether the agent ended it."""
    oom: bool = False
    """Whether the kernel's out-of-memory killer ended it, or a process that it started."""
    oom_limit_bytes: int | None = None
    """The memory that was allowed; None: no limit."""
    oom_words: str = ""
    """The same in the words of a cluster, in place of the agent's."""
    phase: str
    last_lines: tuple[str, ...]
    """The end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """An agent that ended the ranks of its node, and that not because the controller asked it to."""

    generation: int
    node: int
    why: str
    """In the words of the agent."""
    at: float
    """When it said so, in seconds since the epoch, by the clock of its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRecord:
    """The Python stack and the process state of a rank when its time was over."""

    generation: int
    rank: int
    state: str
    """The letter of /proc: R, S, D, T, Z."""
    wchan: str
    """The kernel function that the process waited in."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftProcess:
    """A process that its agent could not end."""

    generation: int
    rank: int
    node: int | None
    pid: int | None
    state: str
    """The letter of /proc: R, S, D, T, Z."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A problem of seatrial or its target that concerns no rank."""

    severity: Severity
    text: str
    rank: int | None = None
    """The rank whose words these are; None: of nobody but a node or the controller."""
    node: int | None = None
    """The node whose agent says so; None: the controller."""
    is_request: bool = False
    """Whether the request was wrong."""
    untrusted: tuple[int, ...] = ()
    """Nodes that may be others than they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything that the events of one run say."""

    run: str
    """The run id; empty where it is not known."""
    version: str
    """The seatrial version of the conductor."""
    conductor_hostname: str
    """Host name of the conductor's machine, spelled like those of the nodes; empty where it is not known."""
    conductor_in_container: bool
    """Whether that may be the name of a container, on whatever machine."""
    created: float
    """Seconds since the epoch, by the conductor's clock."""
    seconds: float | None
    """Duration from the conductor's first event to its last one; None where its first one is lost."""
    plan: Mapping[str, Any]
    job: Mapping[str, Any]
    interrupted: str | None
    """The signal or reason that stopped the trial; None: it was not stopped."""
    interrupted_order: int | None
    """The conductor's sequence number of the interruption."""
    ranks: Mapping[int, RankRecord]
    """The ranks of generation 0, including those that sent no event."""
    named: Callable[[int], str] = field(compare=False, repr=False)
    """Returns the name of a rank beside the one that a finding is about: ``short_names`` of ``ranks``."""
    started: Mapping[int, Mapping[str, Any]]
    """The ``rank`` event of each rank of generation 0: device, libraries, pid and so on."""
    pids: Mapping[tuple[int, int], int]
    """(generation, rank) -> process id, of the ranks that said theirs."""
    device_type: str
    """``cpu`` or ``cuda``; ``cpu`` where ranks differ, as its limits accuse least; empty where no rank started."""
    backend: str
    nodes: tuple[NodeRecord, ...]
    """The nodes whose agents joined, by their numbers."""
    host_names: Mapping[int, str]
    """Node rank -> name of each node whose name is known, whether its agent joined or not."""
    generations: tuple[GenerationRecord, ...]
    steps: tuple[StepRecord, ...]
    places_of_nodes: Mapping[int, str]
    """Number of a node -> its place, as of ``Evidence``."""
    rounds: Mapping[str, Mapping[str, Any]]
    """By check and stage: what the conductor asked for in the further rounds of generation 0."""
    interfaces: Mapping[str, str]
    """Check of agents -> the network interface that the conductor had the ranks use by it."""
    measurements: tuple[Measurement, ...]
    facts: tuple[Fact, ...]
    errors: tuple[ErrorRecord, ...]
    node_failures: tuple[NodeFailure, ...]
    troubles: tuple[TroubleRecord, ...]
    exits: tuple[ExitRecord, ...]
    agent_ends: tuple[AgentEnd, ...]
    """By generation and node."""
    stacks: tuple[StackRecord, ...]
    left: tuple[LeftProcess, ...]
    notes: tuple[Note, ...]
    ended: frozenset[str]
    """The sources that sent ``end``."""
    missing: tuple[str, ...]
    """Gaps in the record, in words. While there is any, nothing passes."""

    def world_size(self) -> int:
        """Return the number of ranks that were asked for, or of known ranks where that is not known."""
        size = self.job.get("world_size")
        return size if isinstance(size, int) and not isinstance(size, bool) else len(self.ranks)

    def wrong_requests(self) -> list[str]:
        """Return what was wrong with the request: in the words of the controller, then of ranks."""
        notes = [note.text for note in self.notes if note.is_request]
        return notes + [self.refusal(error) for error in self.errors if error.cause == "request"]

    def refusal(self, error: ErrorRecord) -> str:
        """Return that a rank finds the request wrong, in its words."""
        return f"{self.named(error.rank)} says that the request is wrong: {quoted(error.first_line())}"

    def num_nodes(self) -> int:
        """Return the number of nodes whose agents joined: of machines, where a launcher started one agent a rank."""
        is_of_ranks = self.job.get("nproc_per_node") == 1 and any(seen.local_rank for seen in self.ranks.values())
        return len(self.machines()) if is_of_ranks else len(self.nodes)

    def machines(self) -> set[tuple[str, str, str]]:
        """Return the key of each machine whose agents joined."""
        return {self.machine_of(entry) for entry in self.nodes}

    def machine_of(self, entry: NodeRecord) -> tuple[str, str, str]:
        """Return the key of a node's machine."""
        return machine_key(entry.hostname, entry.address, self.places_of_nodes.get(entry.node, ""))

    def deadline_s(self) -> float | None:
        """Return the deadline of the whole trial in seconds; None where the plan has none."""
        return number_of(self.plan.get("deadline_s"))

    def host_name(self, node: int) -> str:
        """Return the name of a node, or ``node N`` where it is not known."""
        return self.host_names.get(node) or f"node {node}"

    def place(self, node: int) -> str:
        """Return the node as a finding names it, with what it calls itself beside."""
        at = bisect_left(self.nodes, node, key=lambda entry: entry.node)
        own = self.nodes[at].calls_itself if at < len(self.nodes) and self.nodes[at].node == node else ""
        return f"{self.host_name(node)} (calls itself {own})" if own else self.host_name(node)

    def label(self, rank: int) -> str:
        """Return a rank as a finding names it."""
        return self.ranks[rank].label() if rank in self.ranks else f"rank {rank}"

    def setting(self, check: str, parameter: str) -> float | None:
        """Return a parameter of the plan; None where the plan has no such number."""
        settings = self.plan.get("settings")
        table = settings.get(check) if isinstance(settings, Mapping) else None
        return number_of(table.get(parameter) if isinstance(table, Mapping) else None)

    def origin(self, check: str, parameter: str) -> str:
        """Return where a parameter of the plan came from; empty where the plan does not say it."""
        settings = self.plan.get("settings")
        table = settings.get(check) if isinstance(settings, Mapping) else None
        pair = table.get(parameter) if isinstance(table, Mapping) else None
        return pair[1] if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str) else ""


def number_of(pair: object) -> float | None:
    """Return the number of a setting, which in events is a pair of value and origin; None if it is no number."""
    value = pair[0] if isinstance(pair, list) and pair else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
