"""The events of a run: one type for each kind, and the numbering of a source.

Events are kept: the verdict is computed from them. Each event is written once, at its source, and forwarded unchanged,
so the same event may be in several files; ``(src, seq)`` identifies it. A source that is closed in order sends ``end``
last: a source without ``end``, or with a gap in its numbers, has lost events, and a run with lost events never PASSes.
``docs/protocol.md`` shows all of them in one table; ``judge/event_reader.py`` validates them field by field.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, TypedDict, get_args, get_type_hints

SCHEMA = 2
"""Version of the events and of the report."""


Cause = Literal["memory", "device", "setup", "processes", "fabric", "request", "own"]
"""Why a rank failed, as it says; ``setup``: the driver, the libraries or other processes keep it from using its device;
``processes``: its host gives it no further thread or process, or lacks something else (``Lack``); ``own``: a bug in
seatrial."""
THIS_MACHINE = "this machine"
"""The place of a node that joined from the machine of the controller, by whatever address of it."""


class Header(TypedDict, total=False):
    """Fields of every event; ``Source.event`` sets them."""

    run: str
    """Name of the run."""
    src: str
    """Source: conductor, controller, hosts, launch, node<k>, rank<r>.<g>, recorder<n>."""
    seq: int
    """Number of the event in its source, from 0."""
    t: float
    """Seconds since the epoch, on the clock of the source."""


class _RunEventOptional(Header, total=False):
    plan: dict[str, Any]
    """The resolved plan with the origin of each value. Absent for a program."""
    sources: list[str]
    """Sources that have to report at the end, such as ``hosts``, which compares from where nodes joined."""
    in_container: bool
    """``hostname`` may be that of a container, which is on any machine. Absent: it is that of the machine."""


class RunEvent(_RunEventOptional):
    """The first event of a run (conductor)."""

    kind: Literal["run"]
    version: str
    """Version of seatrial."""
    schema: int
    """Version of the events."""
    created: float
    """Seconds since the epoch."""
    hostname: str
    """Host that conducts the run."""
    job: dict[str, Any]
    """target, nodes, nproc_per_node, world_size, device, backend, planted."""


class _NodeEventOptional(Header, total=False):
    slurm_name: str
    """Name of the node in Slurm (NodeName), as the agent says it. Absent elsewhere."""


class NodeEvent(_NodeEventOptional):
    """An agent joined (agent)."""

    kind: Literal["node"]
    node: int
    """Number of the node."""
    hostname: str
    """Hostname."""
    address: str
    """Address by which other nodes reach it."""
    pid: int
    """Process id of the agent."""
    cores: int
    """Cores for the ranks on this node."""


class _GenerationEventOptional(Header, total=False):
    places_of_nodes: dict[str, str]
    """By number of the node: the host of the request, else the address that its agent joined from. In a trial."""


class GenerationEvent(_GenerationEventOptional):
    """The ranks are started: once, and again with each restart attempt (conductor)."""

    kind: Literal["generation"]
    gen: int
    """Generation, from 0."""
    ranks: list[list[int]]
    """[rank, node, local_rank] of each rank."""


class _RankEventOptional(Header, total=False):
    node_rank: int
    """Number of the node. Absent for a program."""


class RankEvent(_RankEventOptional):
    """A rank opened its device (rank)."""

    kind: Literal["rank"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    node: str
    """Hostname."""
    hostname: str
    """Hostname."""
    local_rank: int
    """Rank on the node."""
    pid: int
    """Process id."""
    device: str
    """Name of the device."""
    device_type: str
    """cpu, or cuda for every GPU, as torch says it."""
    device_id: str
    """PCI address, else UUID."""
    libraries: str
    """Versions of torch and of the communication library."""
    threads: int
    """Threads of torch."""
    torch: str
    """Version of torch."""
    python: str
    """Version of Python."""
    backend: str
    """gloo, nccl or mpi."""


class _StepEventOptional(Header, total=False):
    nodes: list[int]
    """Nodes whose agents carry it out. Absent for a step of ranks."""
    round: Any
    """What a further round asks the ranks for, as the check's judge reads it. Absent for a stage of the plan."""


class StepEvent(_StepEventOptional):
    """A step begins (conductor)."""

    kind: Literal["step"]
    gen: int
    """Generation."""
    step: int
    """Number of the step in the run, from 0."""
    check: str
    """Name of the check."""
    stage: str
    """Stage of the check."""
    ranks: list[int]
    """Ranks that take part; empty for a step of agents."""
    timeout_s: float
    """Seconds until its deadline."""


class MeasurementsEvent(Header):
    """Measurements of a step so far (rank)."""

    kind: Literal["measurements"]
    gen: int
    """Generation."""
    step: int
    """Step."""
    measurements: list[dict[str, Any]]
    """Measurement.to_json() of each."""


class FactsEvent(Header):
    """Facts of a step so far (rank; agent, for a step of agents)."""

    kind: Literal["facts"]
    gen: int
    """Generation."""
    step: int
    """Step."""
    facts: list[dict[str, Any]]
    """Fact.to_json() of each."""


class DoneEvent(Header):
    """A rank finished a step (rank)."""

    kind: Literal["done"]
    gen: int
    """Generation."""
    step: int
    """Step."""
    rank: int
    """Rank."""
    seconds: float
    """Time in the step."""
    share: dict[str, Any]
    """Values for the steps that follow."""


class NodeDoneEvent(Header):
    """A node finished a step of agents (agent)."""

    kind: Literal["node_done"]
    gen: int
    """Generation."""
    step: int
    """Step."""
    seconds: float
    """Time in the step."""
    share: list[Any]
    """Values for the stages that follow, at most 1,000 bytes."""
    error: str
    """Why it could not be carried out, in one sentence; empty: it was."""


class ErrorEvent(Header):
    """A rank failed (rank)."""

    kind: Literal["error"]
    gen: int
    """Generation."""
    step: int
    """Step; -1 outside of steps."""
    rank: int
    """Rank."""
    cause: Cause
    """Why; own: a bug in seatrial."""
    type: str
    """Class of the exception."""
    message: str
    """Its text, at most 2,000 characters."""
    stack: str
    """The end of its traceback, at most 6,000 characters."""
    phase: str
    """Phase that the rank was in."""


class StepEndEvent(Header):
    """A step ended (conductor)."""

    kind: Literal["step_end"]
    gen: int
    """Generation."""
    step: int
    """Step."""
    outcome: Literal["done", "trouble", "deadline", "interrupted"]
    """How it ended."""
    seconds: float
    """Duration."""


class InterfaceEvent(Header):
    """The ranks start with a network interface that a check of agents has chosen (conductor)."""

    kind: Literal["interface"]
    gen: int
    """Generation."""
    check: str
    """The check."""
    name: str
    """Name of the interface."""


class _TroubleEventOptional(Header, total=False):
    order: int
    """Number of the conductor's event that it comes before. From the controller only."""


class TroubleEvent(_TroubleEventOptional):
    """The conductor ends the generation, and why (conductor); what ended a pod (controller of a run in pods)."""

    kind: Literal["trouble"]
    gen: int
    """Generation."""
    step: int
    """Step; -1 outside of steps."""
    seen: list[dict[str, Any]]
    """Suspicions: rank or node, how (dead, error, frozen, absent, stuck, lost, silent, late, working), phase, waited_s,
    detail."""
    waiting: list[list[Any]]
    """[rank, phase] of at most 16 ranks that only waited for others."""


class _ExitEventOptional(Header, total=False):
    oom_limit_bytes: int | None
    """The kernel's out-of-memory killer ended it, or a process that it started: the memory that the tightest control
    group allows; null: no limit."""


class ExitEvent(_ExitEventOptional):
    """The process of a rank ended (agent)."""

    kind: Literal["exit"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    code: int
    """Exit code; negative: number of the signal."""
    ours: bool
    """The agent ended it."""
    phase: str
    """The last phase of the rank."""
    last_lines: list[str]
    """The lines of its output that tell how it ended: why a library aborted it, its exceptions, the last ones. Among
    them lines of the agent: ``[...]`` for others, ``[... then nothing for 90 s]``, ``[... then 300 states of one
    line]``."""


class _StackEventOptional(Header, total=False):
    number: int
    """Number of the ``dump_stack`` that it answers. Absent: ``kill`` had it taken."""
    quiet_s: float
    """Seconds since its last output. Of scripts only."""
    last_line: str
    """The last line of its output. Of scripts only."""


class StackEvent(_StackEventOptional):
    """The stacks of a rank (agent)."""

    kind: Literal["stack"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    state: str
    """State letter of /proc."""
    wchan: str
    """Kernel function that it waits in."""
    text: str
    """Stacks of all threads as faulthandler writes them, or py-spy for a script; may be empty."""


class LeftEvent(Header):
    """A process survived SIGKILL (agent)."""

    kind: Literal["left"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    pid: int
    """Process id."""
    state: str
    """State letter of /proc."""


class _NoteEventOptional(Header, total=False):
    cause: Literal["request"]
    """The request was wrong, and no repetition will help. From a recorder only."""
    untrusted: list[int]
    """Nodes that may be others than they say. From the conductor and the controller only."""


class NoteEvent(_NoteEventOptional):
    """Trouble of seatrial that concerns no rank (any source)."""

    kind: Literal["note"]
    severity: Literal["error", "warn", "info"]
    """An error prevents a PASS."""
    text: str
    """One sentence."""


class _InterruptedEventOptional(Header, total=False):
    order: int
    """Number of the conductor's event that it comes before. From the controller only."""


class InterruptedEvent(_InterruptedEventOptional):
    """The user or the scheduler ends the run (conductor; controller of a run in pods)."""

    kind: Literal["interrupted"]
    by: str
    """Name of the signal, or the reason."""


class EpochEvent(Header):
    """An epoch of a training ended (rank 0)."""

    kind: Literal["epoch"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    epoch: int
    """Epoch, from 0."""
    step: int
    """Steps done."""
    loss: float | None
    """Mean loss of the epoch."""
    accuracy: float | None
    """Accuracy on the test set."""
    samples_per_s: float
    """Samples per second over all ranks."""
    seconds: float
    """Duration of the epoch."""
    step_times_s: dict[str, dict[str, float]]
    """Minimum, median and maximum over the ranks of each part of a step."""


class _ResultEventOptional(Header, total=False):
    code: int
    """Exit code that the rank announces."""
    digest: str | None
    """Digest of the parameters."""
    nonfinite: bool
    """The training stopped for NaN or Inf; whether the rank's own loss or parameters were that."""


class ResultEvent(_ResultEventOptional):
    """A rank of a training reached its end (rank; controller of a run in pods)."""

    kind: Literal["result"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    lines: list[str]
    """Lines for people, of rank 0."""


class _OutcomeEventOptional(Header, total=False):
    code: int
    """The highest exit code, when all ranks ended."""
    notes: list[str]
    """Facts about a failed script beside its first failure, each a phrase without its full stop."""


class OutcomeEvent(_OutcomeEventOptional):
    """A program ended (conductor; controller of a run in pods)."""

    kind: Literal["outcome"]
    gen: int
    """The last generation; -1: none was started."""
    restarts: int
    """Restarts that were made."""
    how: Literal["ended", "failed", "refused", "absent", "interrupted"]
    """How it ended."""
    text: str
    """One sentence without its full stop."""
    last_lines: list[str]
    """The last output of the rank that failed, where the rank did not report the error itself."""


class HandedEvent(Header):
    """What a file says that a person handed over with ``--evidence`` (controller; one source a file)."""

    kind: Literal["handed"]
    file: dict[str, Any]
    """HandedFile of devices/handed.py."""


class SlurmNodesEvent(Header):
    """The names of nodes in Slurm's layout of the step (controller, at the end)."""

    kind: Literal["slurm_nodes"]
    names: dict[str, str]
    """By number of the node: NodeName. Without the nodes that joined as another one."""


class EndEvent(Header):
    """The last event of a source (every source)."""

    kind: Literal["end"]


Event = (
    RunEvent
    | NodeEvent
    | GenerationEvent
    | RankEvent
    | StepEvent
    | MeasurementsEvent
    | FactsEvent
    | DoneEvent
    | NodeDoneEvent
    | ErrorEvent
    | StepEndEvent
    | InterfaceEvent
    | TroubleEvent
    | ExitEvent
    | StackEvent
    | LeftEvent
    | NoteEvent
    | InterruptedEvent
    | EpochEvent
    | ResultEvent
    | OutcomeEvent
    | HandedEvent
    | SlurmNodesEvent
    | EndEvent
)
"""Any event, in the order of the table in ``docs/protocol.md``."""

KINDS = frozenset(get_args(get_type_hints(event)["kind"])[0] for event in get_args(Event))
"""The kind of each."""


class Source:
    """The numbering of one source's events. The caller keeps or sends the event that ``event`` returns."""

    def __init__(self, run: str, src: str, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._src = src
        self._clock = clock
        self._seq = 0

    def event(self, payload: Event) -> dict[str, Any]:
        """Return the next event of this source: the payload with its header."""
        event = {
            "kind": payload["kind"],
            "run": self._run,
            "src": self._src,
            "seq": self._seq,
            "t": round(self._clock(), 6),
            **payload,
        }
        self._seq += 1
        return event
