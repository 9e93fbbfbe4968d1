"""The interface of a target: request, placement, commands, driver.

TargetRequest -> resolve -> Placement -> Job -> render -> Commands -> printed by ``--dry-run``, or run by the Driver
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from seatrial.targets.host_of_node import HostOfNode
from seatrial.targets.option import Option

if TYPE_CHECKING:
    from pathlib import Path

    from seatrial.targets.command import Command
    from seatrial.targets.job import Processes
    from seatrial.targets.processes import Attach


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequest:
    """The target options as the user typed them."""

    target: str
    """The name of the target: the word after ``--on``."""
    nproc_per_node: int | None
    """The number of ranks per node, or None where the target decides it."""
    processes_by: str = ""
    """``gpu`` or ``cpu`` where a process for each accelerator or core was requested, instead of a number."""
    device: str
    """The device that was requested: ``auto``, ``cpu``, ``cuda`` or ``rocm``."""
    backend: str
    """The communication backend that was requested: ``auto``, ``gloo``, ``nccl`` or ``mpi``."""
    python: str | None
    """The interpreter that runs the ranks, or None where the target chooses it."""
    env: Mapping[str, str]
    """The additional environment variables of the ranks: ``--comm-profile``, ``--comm-debug``, ``--env``."""
    dry_run: bool
    """True where the commands are printed and nothing is started."""
    own: Mapping[str, Any]
    """The values of the options that this target declares (``Target.options``), by their names."""
    typed: tuple[str, ...] = ()
    """The command and its options without the target options, for a target whose nodes run the command again."""
    plan: Mapping[str, Any] | None = None
    """The plan file that was typed, as it was read and judged, for the same targets; None: a level, or no trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The decision of a target: how many ranks run, on which nodes and devices."""

    nodes: int
    """The number of nodes is at least 1."""
    nproc_per_node: int
    """The number of ranks is the same on every node."""
    device: str
    """The device of every rank is ``cpu``, ``cuda`` or ``rocm``, never ``auto``."""
    backend: str
    """The communication backend may still be ``auto``; the ranks then choose it by their device."""
    python: str
    """The interpreter is a path, or a name that each node finds on its PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that the ranks need on this target."""
    words: str
    """The phrase completes the line that says what will run: ``on this machine``, ``on 4 hosts by ssh``."""
    absent: tuple[str, ...] = ()
    """The hosts that were requested and left out (``--min-hosts``) are listed here, each with the reason."""
    hosts: tuple[str, ...] = ()
    """The name of each node as the user typed it is listed here, where the request names hosts."""
    ends_together: bool = False
    """The launcher ends the agents of all nodes with one of them."""
    detail: Any = None
    """The target keeps here, in a type that only it reads, what ``render`` and ``driver`` need."""


class Render(Protocol):
    """A function that turns a job into commands. A run and ``--dry-run`` use the same call."""

    def __call__(self, job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
        """Return the commands that start the agents.

        Args:
            job: the job, with the placement that this target has decided.
            control: host:port of the conductor.
            token: the secret by which agents and conductor authenticate each other.
            keep: the folder of this run, or empty where nothing is written.
        """


class Driver(Protocol):
    """The life of the started commands. ``processes.Agents`` is the driver with a child process for each command."""

    def submit(self, commands: Sequence[Command], folder: Path, signals: Sequence[int], attach: Attach) -> None:
        """Start the commands, or submit them and wait until they run. Raises SeatrialError when they cannot run.

        No deadline of the trial counts this time. The driver prints the reason while it waits.

        Args:
            commands: the result of ``render``.
            folder: the folder for files with the output of the commands.
            signals: the signals so far; the driver returns early when it is no longer empty.
            attach: takes the connection of a command that has a feed.
        """

    def hosts(self) -> Sequence[HostOfNode] | None:
        """Return the host of each node by its number, as the launcher gives it; empty without an answer.

        None: nobody but the request names hosts. Called once, when all agents have joined, in a thread that may wait
        for some seconds.
        """

    def poll(self, connected: Collection[int]) -> tuple[int, str] | str | None:
        """Return (lost node, how it was lost), or what has stopped the whole job, or None. Never waits.

        The conductor calls it four times a second. ``connected``: the nodes whose agents have an open connection. None
        of them is lost, whatever became of the process that started its agent, and whatever exit code that had.
        """

    def pass_on(self, number: int, connected: Collection[int]) -> None:
        """Send a signal that is for the ranks to those agents that are children of this process.

        An agent that is not among the ``connected`` nodes may not be ready for it, and has no ranks.
        """

    def kill(self) -> None:
        """End everything immediately: the user has sent a second signal."""

    def cleanup(self) -> list[tuple[int, str]]:
        """End and remove everything that was started, also after ``submit`` has failed. Called once.

        Returns (node, what is left of it and where) for everything that could not be ended.
        """


class SubmitAndFollow(Protocol):
    """A function for a target whose first rank conducts in the cluster: submit, pass on its events, clean up."""

    def __call__(
        self,
        job: Processes,
        run: dict[str, Any],
        folder: Path,
        on_event: Callable[[dict[str, Any]], None],
        on_message: Callable[[dict[str, Any]], None],
        signals: Sequence[int],
    ) -> int:
        """Return the number of damaged lines that were received. Raises SeatrialError when nothing can be started.

        Args:
            job: the job, with the name of its run.
            run: the ``run`` event, which is recorded unless the first rank sends another one.
            folder: the folder of this run.
            on_event: called with every event.
            on_message: called with every message that is no event.
            signals: the signals so far, which grow meanwhile.
        """


def _loopback(job: Processes) -> str:
    return "127.0.0.1"


def _shell_lines(commands: Sequence[Command]) -> list[str]:
    from seatrial.targets.command import shell_lines

    return shell_lines(commands)


def _agents(job: Processes) -> Driver:
    from seatrial.targets.processes import Agents

    return Agents()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One word after ``--on``, as data and functions. The registry finds the file of a target by its name.

    A whole target, which starts the agents of one node by ``nice`` on this machine (``targets/nice_target.py``)::

        from dataclasses import replace

        from seatrial.targets import local_target
        from seatrial.targets.command import Command
        from seatrial.targets.job import Processes
        from seatrial.targets.target import Target


        def render(job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
            commands = local_target.render(job, control=control, token=token, keep=keep)
            return tuple(replace(command, argv=("nice", *command.argv)) for command in commands)


        (_LOCAL,) = local_target.TARGETS
        TARGETS = (replace(_LOCAL, name="nice", help="this machine, at low priority", order=100, render=render),)
    """

    name: str
    """The name is the word after ``--on``."""
    help: str
    """The help text is a noun phrase of a few words."""
    order: int = 100
    """The order is the position in help; targets of equal order are sorted by name."""
    options: tuple[Option, ...] = ()
    """These options are added to the ones that every target takes; several targets may share an Option."""
    resolve: Callable[[TargetRequest], Placement]
    """The function decides the placement.

    It raises RequestError for an invalid option, and SeatrialError for hosts that cannot be reached.
    """
    render: Render
    """The function turns the job into commands."""
    dry_run_lines: Callable[[Sequence[Command]], list[str]] = _shell_lines
    """The function returns the lines that ``--dry-run`` prints for the commands."""
    address: Callable[[Processes], str] = _loopback
    """The function returns the address of this machine to which the agents connect.

    The conductor listens on 127.0.0.1 where it is that address, and on all addresses of this machine otherwise.
    """
    driver: Callable[[Processes], Driver] = _agents
    """The function returns a new driver for the commands."""
    hides_env: bool = False
    """True where nobody on the network can read what the conductor sends to the agents: ``--env`` may hold secrets."""
    node_tokens: bool = False
    """True where no node sees the command of another: ``render`` gives node k ``node_token(token, k)``."""
    prints_token: bool = False
    """True where ``--dry-run`` prints the token of the run itself, and so only where no other user can read it."""
    has_munge: Callable[[Processes], bool] | None = None
    """The function returns whether munge passes the token in place of the agents' environment."""
    conducts_remotely: bool = False
    """True where the nodes run ``TargetRequest.typed`` again and the first rank conducts, without agents here."""
    submit_and_follow: SubmitAndFollow | None = None
    """The function replaces ``address``, ``driver`` and the conductor in this process, if it is not None."""
