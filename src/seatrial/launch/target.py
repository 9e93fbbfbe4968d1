"""What a target is: its options, what becomes of them, the commands, and who follows what was started.

typed -> Where -> resolve -> Placement -> Job -> render -> Commands -> (printed | started by the driver)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from seatrial.launch.agents import Adopt, Agents
from seatrial.launch.command import Command, shown
from seatrial.launch.job import Processes
from seatrial.launch.option import Option

__all__ = ["CarryOut", "Driver", "Placement", "Render", "Target", "Where"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The where-options as they were typed."""

    target: str
    nproc_per_node: int | None
    device: str
    backend: str
    python: str | None
    env: Mapping[str, str]
    """What the ranks get besides: ``--comm-profile``, ``--comm-debug``, ``--env``."""
    dry_run: bool
    own: Mapping[str, Any]
    """The values of the options that the target lists itself, by their names."""
    typed: tuple[str, ...] = ()
    """The command and its options but for these: what is to be typed where somebody else starts us again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How many processes where and on what: decided."""

    nodes: int
    nproc_per_node: int
    device: str
    backend: str
    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    """What the ranks get on this target."""
    words: str
    """For the line that says what will run: ``on this machine``, ``on 4 hosts (ssh)``."""
    absent: tuple[str, ...] = ()
    detail: Any = None


class Render(Protocol):
    """Turns a job into commands. What runs and what ``--dry-run`` prints come from the same call."""

    def __call__(self, job: Processes, *, control: str, token: str, keep: str) -> tuple[Command, ...]:
        """The commands that start the agents. ``control`` is host:port, ``keep`` the folder of this run."""


class Driver(Protocol):
    """From the commands to their end. ``agents.Agents``, which has a child process for each command, is one."""

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int], adopt: Adopt) -> None:
        """Start them, or submit them and wait until they run; what they print goes to files in the folder.

        ``adopt``: for commands with a feed. What is waited for is told in words. Returns early when ``caught`` is no
        longer empty (a signal came). No deadline of the trial runs yet. Raises SeatrialError when they will never run.
        """

    def news(self) -> tuple[int, str] | str | None:
        """Called four times a second, never waits: (node, how it was lost), or by whom all was stopped."""

    def kill(self) -> None:
        """At once: the user has no patience left."""

    def end(self) -> list[tuple[int, str]]:
        """Called once, whatever happened, ``start`` having failed included: end and remove all that was started.

        Returns (node, what of it is left and where) for what could not be ended.
        """


class CarryOut(Protocol):
    """For a target whose first rank conducts, out of our reach: submit, hand on the events that arrive, clean up."""

    def __call__(
        self,
        job: Processes,
        run: dict[str, Any],
        folder: Path,
        keep: Callable[[dict[str, Any]], None],
        hear: Callable[[dict[str, Any]], None],
        caught: Sequence[int],
    ) -> int:
        """Returns how many damaged lines were met. Raises SeatrialError when nothing can be started.

        ``run``: the first event, to be kept unless the first rank tells its own.
        """


def _loopback(job: Processes) -> str:
    return "127.0.0.1"


def _agents(job: Processes) -> Driver:
    return Agents()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One word after ``--on``. It is data and functions; a new one is a file with one of these, and its line in
    ``targets.py``."""

    name: str
    help: str
    """A few words for --help."""
    options: tuple[Option, ...] = ()
    """Beside those that all targets take (``options.WHERE``). The same Option may be listed by several targets."""
    resolve: Callable[[Where], Placement]
    """Raises RequestError with one sentence for what is wrong, SeatrialError for hosts that cannot be reached."""
    render: Render
    shown: Callable[[Sequence[Command]], list[str]] = shown
    """The lines of ``--dry-run``."""
    address: Callable[[Processes], str] = _loopback
    """Of this machine, as the agents are told it; anything but 127.0.0.1, and we listen on all our addresses."""
    driver: Callable[[Processes], Driver] = _agents
    calls_again: bool = False
    """Its ranks are started by the same command typed again where they are (``Where.typed``), not by agents of ours."""
    carry_out: CarryOut | None = None
    """Takes the place of ``address`` and ``driver``, and of the conductor in this process."""
