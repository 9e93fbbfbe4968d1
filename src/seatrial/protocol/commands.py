"""The messages on the control connection and on a rank's pipes, apart from events: one type for each.

Both ends build and read the messages through these types. A receiver that does not know a kind ignores the message. The
types describe what an honest sender sends: an agent's messages are validated again by the conductor
(``conductor/origin.py``), because an agent may lie. ``docs/protocol.md`` shows all of them in one table.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

# The handshake (handshake.py)


class Hello(TypedDict):
    """The first line of an agent on a new connection."""

    kind: Literal["hello"]
    nonce: str
    """Random text of the agent, 32 hexadecimal digits."""
    node_rank: int
    """The node that the agent serves, from 0."""


class _ConductorProofOptional(TypedDict, total=False):
    credential: str
    """Credential of munge that holds the token, for an agent whose SEATRIAL_TOKEN is ``munge:RUN``."""


class ConductorProof(_ConductorProofOptional):
    """The answer to ``hello``."""

    kind: Literal["proof"]
    challenge: str
    """Random text of the conductor, 32 hexadecimal digits."""
    proof: str
    """Proof that the conductor knows the token."""


class _AgentProofOptional(TypedDict, total=False):
    credential: str
    """Credential of munge that holds this proof and names the agent's host, if SEATRIAL_TOKEN is ``munge:RUN``."""


class AgentProof(_AgentProofOptional):
    """The agent's answer to a valid proof. It joins the run with it."""

    kind: Literal["proof"]
    proof: str
    """Proof that the agent knows the token."""
    process: str
    """Random text of the agent, 32 hexadecimal digits, the same each time that it tries; empty over ssh, where it does
    not. The proof covers it."""


# Conductor to agent


class Welcome(TypedDict):
    """The agent joined the run; its events begin."""

    kind: Literal["welcome"]
    run: str
    """Name of the run."""


class TimeAnswer(TypedDict):
    """The conductor's clock, sent at once."""

    kind: Literal["time"]
    number: int
    """The number of the question."""
    at: float
    """Seconds since the epoch."""


class FindPort(TypedDict):
    """Name a free port for the rendezvous of a program."""

    kind: Literal["port"]
    gen: int
    """Generation that will use the port."""


class StartWorkers(TypedDict):
    """Start the workers of a trial on this node."""

    kind: Literal["start_workers"]
    run: str
    """Name of the run."""
    gen: int
    """Generation: 0, and 1 more with each restart attempt."""
    ranks: list[list[int]]
    """All ranks of the generation as [first, last] pairs, ascending."""
    places: list[list[int]]
    """[rank, local_rank] of each rank on this node."""
    env: dict[str, str]
    """Variables to add to the environment of the ranks; SEATRIAL_PLANT among them plants faults."""
    device: str
    """cpu, cuda, rocm or auto."""
    backend: str
    """gloo, nccl, mpi or auto."""
    interface: str
    """The network interface that the ranks use; empty: the one that the agent has chosen."""


class Trust(TypedDict):
    """The users who are trusted with a folder, or with a script, on the controller's machine, besides root."""

    owners: list[int]
    """Other users who own it, or a folder above."""
    mounters: list[int]
    """Users who have mounted it or a folder above by FUSE."""
    open_places: list[str]
    """Paths of all on the way to it in which all users can put files."""


class ProgramSpec(TypedDict):
    """The program that the ranks execute."""

    argv: list[str]
    """Its command."""
    args: list[str]
    """Further arguments, in which the agent fills {rank} and the other placeholders."""
    spawns: int
    """Processes that each rank starts itself; 0: none."""
    nnodes: int
    """Number of nodes."""
    cwd: str
    """Working directory on nodes that have this folder."""
    script: str
    """Path of the user's script; empty: a module, or a program in PATH."""
    cwd_trust: Trust
    """The users who are trusted with it."""
    script_trust: Trust
    """The users who are trusted with the script."""
    watched: bool
    """It reports phases, errors and results."""
    shown: list[int]
    """Ranks whose output is forwarded."""
    world_size: int
    """WORLD_SIZE."""
    master_addr: str
    """MASTER_ADDR: the address of node 0."""
    master_port: int
    """MASTER_PORT: the port that node 0 named."""
    group_rank: int
    """GROUP_RANK: the number of this node."""
    max_restarts: int
    """TORCHELASTIC_MAX_RESTARTS: restart attempts."""


class StartProgram(TypedDict):
    """Start the ranks of a program on this node."""

    kind: Literal["start_program"]
    run: str
    """Name of the run."""
    gen: int
    """Generation: 0, and 1 more with each restart attempt."""
    places: list[list[int]]
    """[rank, local_rank] of each rank on this node."""
    env: dict[str, str]
    """Variables to add to the environment of the ranks."""
    program: ProgramSpec
    """The program."""


class StepCommand(TypedDict):
    """Run one step of a check on the named ranks."""

    kind: Literal["step"]
    gen: int
    """Generation."""
    step: int
    """Number of the step in the run, from 0."""
    check: str
    """Name of the check."""
    stage: str
    """Stage of the check: measure, repeat, round 1, ..."""
    timeout_s: float
    """Seconds until the deadline of the step."""
    params: dict[str, Any]
    """Parameters of the check, from the plan."""
    given: dict[str, Any]
    """Values that ranks shared in earlier steps, and ``round`` in a further round."""
    ranks: list[int]
    """The ranks on this node that take part."""


class NodeStepCommand(TypedDict):
    """Carry out one step of a check that agents carry out, before any rank is started."""

    kind: Literal["node_step"]
    gen: int
    """Generation."""
    step: int
    """Number of the step in the run, from 0."""
    check: str
    """Name of the check."""
    stage: str
    """Stage of the check: measure, round 1, ..."""
    timeout_s: float
    """Seconds until the deadline of the step."""
    params: dict[str, Any]
    """Parameters of the check, from the plan."""
    given: dict[str, Any]
    """Values that the nodes shared in earlier stages, by number of the node, and ``round`` in a further round."""
    env: dict[str, str]
    """Variables that the ranks will have in addition."""
    backend: str
    """The backend of the ranks: gloo, nccl, mpi or auto."""
    device: str
    """The device of the ranks: cpu, cuda, rocm or auto."""
    watches: bool
    """The process that carries it out stays until the end of the trial, and learns of each later step."""


class DumpStack(TypedDict):
    """Report the Python stacks of these ranks (event ``stack``)."""

    kind: Literal["dump_stack"]
    number: int
    """Number of the request in this generation, from 1. The answers repeat it."""
    ranks: list[int]
    """Ranks, also of other nodes; an agent answers for its own."""


class Terminate(TypedDict):
    """Send SIGTERM to each rank of a program."""

    kind: Literal["terminate"]
    gen: int
    """Generation."""


class Kill(TypedDict):
    """End all ranks with SIGKILL, and answer ``killed``."""

    kind: Literal["kill"]
    gen: int
    """Generation."""
    stacks: list[int]
    """Ranks whose stacks are reported first."""


class Quit(TypedDict):
    """The trial is over: each worker ends by itself."""

    kind: Literal["quit"]


class Stop(TypedDict):
    """End the ranks that are left, then the agent."""

    kind: Literal["stop"]


class Heartbeat(TypedDict):
    """The conductor is alive. Sent every 2 s."""

    kind: Literal["heartbeat"]


# Agent to conductor


class TimeQuestion(TypedDict):
    """Ask for the conductor's clock."""

    kind: Literal["time"]
    number: int
    """Number of the question, from 1."""


class FreePort(TypedDict):
    """The answer to ``port``."""

    kind: Literal["port"]
    gen: int
    """Generation of the question."""
    address: str
    """Address by which other nodes reach this one."""
    port: int
    """A TCP port that was free a moment ago."""


class Killed(TypedDict):
    """No rank of the generation is left on this node, or a ``left`` event names it."""

    kind: Literal["killed"]
    gen: int
    """Generation of the command."""


class Status(TypedDict):
    """The ranks on this node. Sent every second."""

    kind: Literal["status"]
    ranks: dict[str, list[Any]]
    """rank: [state letter of /proc, CPU time in seconds, number of phases entered, label of the phase,
    seconds for which a thread could run and others had its core]."""
    still: dict[str, list[float]]
    """rank of a script: [seconds without output and CPU time, seconds without output]."""


class SignalReceived(TypedDict):
    """The agent received a signal. It ends its ranks and itself next; those of a program may save first."""

    kind: Literal["signal"]
    number: int
    """Number of the signal."""


class Output(TypedDict):
    """Lines of a rank to show now."""

    kind: Literal["output"]
    gen: int
    """Generation."""
    rank: int
    """Rank that printed them."""
    lines: list[str]
    """Lines without their ends."""
    left_out: int
    """Lines that were dropped since the last message, because the rank prints too fast."""


MOST_OUTPUT_CHARS = 64 << 10
"""The characters of the lines in one ``output`` message, and one more for each line."""
PIECE_BYTES = 1 << 16
"""The output in one ``log`` message, before its compression."""


class RankLog(TypedDict):
    """A piece of a rank's output, from an agent that does not reach the folder of the run."""

    kind: Literal["log"]
    rank: int
    """Rank that printed it."""
    gen: int
    """Generation."""
    at: int
    """Bytes of output before it. More than the pieces before had: the agent could not keep those between."""
    data: str
    """At most 64 KiB, compressed by zlib, in base64."""
    last: bool
    """Whether the output ends with it."""


# Agent to rank


class StartRank(TypedDict):
    """The first line on a worker's standard input."""

    kind: Literal["start"]
    run: str
    """Name of the run."""
    gen: int
    """Generation."""
    rank: int
    """Global rank."""
    local_rank: int
    """Rank on the node."""
    local_world_size: int
    """Ranks on the node."""
    node_rank: int
    """Number of the node."""
    node: str
    """Hostname."""
    address: str
    """Address by which other nodes reach this one."""
    ranks: list[list[int]]
    """All ranks of the generation as [first, last] pairs."""
    device: str
    """cpu, cuda, rocm or auto."""
    backend: str
    """gloo, nccl, mpi or auto."""
    planted: list[str]
    """Faults to inject, as typed."""
    threads: int
    """Threads for torch."""


class RankStep(StepCommand):
    """The conductor's ``step``, with the clock offset of the node."""

    clock: list[float] | None
    """[offset, accuracy] in milliseconds: this node's clock minus the conductor's. null: not known yet."""


# Agent to the process that carries out its steps


class NodeStep(NodeStepCommand):
    """The conductor's ``node_step``, with what the agent knows about its node."""

    node: int
    """Number of the node."""
    hostname: str
    """Hostname."""
    address: str
    """Address by which other nodes reach it."""
    local_rank: int | None
    """The rank on this machine whose agent this is; null: the agent serves all ranks of the node."""


class WatchStep(TypedDict):
    """A later step begins, for a process that stays until the end of the trial."""

    kind: Literal["watch_step"]
    check: str
    """Name of the check."""
    stage: str
    """Stage of the check."""


class WatchEnd(TypedDict):
    """The ranks have ended: report the last state, then end."""

    kind: Literal["watch_end"]


# Rank to agent, which forwards it


class TrainingProgress(TypedDict):
    """Progress of a training, from rank 0."""

    kind: Literal["progress"]
    gen: int
    """Generation."""
    rank: int
    """Rank."""
    step: int
    """Steps done."""
    num_steps: int
    """Steps in all."""
    epoch: int
    """Epoch, from 0."""
    num_epochs: int
    """Epochs in all."""
    loss: float | None
    """Loss of the last step."""
    accuracy: float | None
    """Accuracy of the last epoch."""
    samples_per_s: float | None
    """Samples per second over all ranks."""
    left_s: float
    """Estimated seconds until the end."""


AgentCommand = (
    Welcome
    | TimeAnswer
    | FindPort
    | StartWorkers
    | StartProgram
    | StepCommand
    | NodeStepCommand
    | DumpStack
    | Terminate
    | Kill
    | Quit
    | Stop
    | Heartbeat
)
"""Messages from the conductor to an agent that joined."""
AgentReport = TimeQuestion | FreePort | Killed | Status | SignalReceived | Output | RankLog
"""Messages from an agent that joined to the conductor, apart from events."""
RankCommand = StartRank | RankStep | Quit
"""Messages from an agent to a worker."""

DIRECTIONS: dict[str, tuple[type, ...]] = {
    "agent → conductor, before it joins": (Hello, AgentProof),
    "conductor → agent, before it joins": (ConductorProof,),
    "conductor → agent": get_args(AgentCommand),
    "agent → conductor": get_args(AgentReport),
    "agent → rank": get_args(RankCommand),
    "agent → process of its steps": (NodeStep, WatchStep, WatchEnd),
    "rank → agent → conductor": (TrainingProgress,),
}
"""Sender and receiver of each type, in the order of the table in ``docs/protocol.md``."""
