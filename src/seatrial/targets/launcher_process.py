"""A launcher of the cluster (mpirun, srun) as a child process that starts the agents of all nodes."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from seatrial.bundle import bundle
from seatrial.errors import RequestError
from seatrial.files import write_atomically
from seatrial.folders import NotPrivateError, kept_folder, new_temporary_folder
from seatrial.protocol.timeouts import join_timeout_s
from seatrial.targets.command import Command, shell_line
from seatrial.targets.launcher_messages import reason, reason_of_agent, refused
from seatrial.targets.processes import Agents, Attach
from seatrial.util import memory_file
from seatrial.util.streams import print_status
from seatrial.util.text import quoted

_TERMINATED_S = 3.0
_LOG_POLL_S = 1.0
TAIL_BYTES = 64 << 10
"""The end of the output of a launcher that is read."""
_MARGIN_S = 2.0
"""So long before the end of the time to join an error of an agent counts that stands in the output of a launcher that
goes on. Every host of the job can write there, also about others: a slow one has that time, and only nodes that have
not joined by then are named."""
_MOST_NAMED = 8
FILE_OF_HOSTS = "$FILE_OF_HOSTS"
"""The word of a command for the file that names its hosts; pasted into a shell, it is a variable there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommand(Command):
    """A command with the files that it reads."""

    hosts: str = ""
    """Text of whole lines, for the word FILE_OF_HOSTS of ``argv``. Empty: there is no such word.

    A launcher that is started here gets a descriptor in its place, and in ``--dry-run`` a file in a new folder of this
    user: with ``--out`` in a folder of others, these could exchange a file before it is read, and name their own hosts.
    """
    bundle_path: str | None = None
    """Path of the bundle on all nodes. None: seatrial is installed there."""
    own_folders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Folder of temporary files, empty for the usual ones -> variables of the launcher that name a new folder in it for
    this user alone, which is there until the processes have ended. ``--dry-run`` leaves them out."""


def write_bundle(command: Command) -> None:
    """Write the bundle of a FileCommand. Raises RequestError where it cannot be written.

    Each node compares it with the SHA-256 in the command, so that nobody can exchange it.
    """
    if not isinstance(command, FileCommand) or command.bundle_path is None:
        return
    try:
        write_atomically(command.bundle_path, bundle(), run_folder=True)
    except OSError as error:
        raise RequestError(
            f"{command.bundle_path} cannot be written ({error.strerror}); name another folder with --out."
        ) from error


def _with_descriptor(command: Command, stack: contextlib.ExitStack) -> Command:
    """Return the command with a descriptor in place of its FILE_OF_HOSTS, which is open until the stack ends."""
    if not isinstance(command, FileCommand) or not command.hosts:
        return command
    fd = memory_file.create(command.hosts.encode())
    stack.callback(os.close, fd)
    argv = tuple(f"/proc/self/fd/{fd}" if word == FILE_OF_HOSTS else word for word in command.argv)
    return replace(command, argv=argv, pass_fds=(fd,))


def shown_with_files(commands: Sequence[Command]) -> list[str]:
    """Return the lines of ``--dry-run``, for bash or sh: for each command those that write its files, then the command,
    which does not start without them."""
    lines = []
    for command in commands:
        files = []
        if isinstance(command, FileCommand):
            files.append(shell_line({}, ("mkdir", "-p", command.env["SEATRIAL_KEEP"])))
            if command.hosts:
                # One argument for each line: shells differ in how they quote a newline.
                printed = shell_line({}, ("printf", r"%s\n", *command.hosts.splitlines()))
                files.append(f'FILE_OF_HOSTS=$(mktemp -d)/hosts && {printed} > "{FILE_OF_HOSTS}"')
            if command.bundle_path is not None:
                files.append(shell_line({}, ("seatrial", "bundle", command.bundle_path)))
        lines += [f"{line} &&" for line in files]
        lines.append(shell_line(command.env, command.argv, command.folder, variable=FILE_OF_HOSTS))
    return lines


class Launcher(Agents):
    """Agents started by a launcher, which gets SIGTERM before SIGKILL so that it can end its helpers on other hosts."""

    def __init__(
        self, on_status: Callable[[str], None] = print_status, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``on_status``: prints a line for the user. ``clock`` returns seconds."""
        super().__init__(clock=clock, words=_describe_end)
        self._on_status = on_status
        self._failure_reported = False
        self._end_reported = False
        self._is_unexplained = False
        """Whether a launcher has ended whose output the disk has yet to show."""
        self._next_poll_at = 0.0
        self._ever_connected: set[int] = set()
        """Nodes whose agents have ever been connected: no launcher has refused its options then, and its output tells
        no more of them."""
        self._shown: set[Path] = set()
        """Outputs of launchers in which an error of an agent was seen."""
        self._own_folders = contextlib.ExitStack()
        """Folders that are removed at the end."""
        self._late_at = math.inf
        """From then on an agent that has not joined is missed."""

    def submit(self, commands: Sequence[Command], folder: Path, signals: Sequence[int], attach: Attach) -> None:
        """Write the bundle, then start the commands. Raises RequestError where it cannot be written."""
        for command in commands:
            write_bundle(command)
        with contextlib.ExitStack() as stack:
            started = [self._with_own_folders(_with_descriptor(command, stack)) for command in commands]
            super().submit(started, folder, signals, attach)
        self._late_at = self._clock() + join_timeout_s() - _MARGIN_S

    def _with_own_folders(self, command: Command) -> Command:
        """Return the command with its variables for folders of this user alone, which are made."""
        env = dict(command.env)
        for place, names in command.own_folders.items() if isinstance(command, FileCommand) else ():
            try:
                made = self._own_folders.enter_context(
                    kept_folder(partial(new_temporary_folder, place), is_removed=True)
                )
                env |= dict.fromkeys(names, made)
            except NotPrivateError as error:
                self._on_status(
                    f"seatrial: other users may change files of the launcher: there is no place for {names[0]} that"
                    f" only this user can change ({error.strerror}); set that variable to a folder of yours"
                )
        return replace(command, env=env)

    def cleanup(self) -> list[tuple[int, str]]:
        """Do what the base class does, then remove the folders of this user alone."""
        try:
            return super().cleanup()
        finally:
            self._own_folders.close()

    def poll(self, connected: Collection[int]) -> tuple[int, str] | str | None:
        """Return how a launcher ended, or why an agent did not connect although its launcher continues.

        The end of a launcher proves nothing about the agents that are still connected: Open MPI 5 ends with 0 once it
        has lost a daemon, and the ranks of all hosts go on. Raises RequestError when the launcher refuses its options.
        """
        if not self._failure_reported:
            failure = self._poll_launcher(connected)
            self._failure_reported = failure is not None
            if failure is not None:
                return failure
        if not self._end_reported and (going_on := [node for node in self._ended() if node in connected]):
            words = self._how_it_ended(going_on[0])
            self._end_reported = words is not None
            if words is not None:
                self._on_status(
                    f"seatrial: {words}; {len(going_on)} of the {len(self.processes)} agents that it started are still"
                    " connected, and their ranks go on"
                )
        # It may have refused its options, and then no node is lost.
        return None if self._is_unexplained else super().poll(connected)

    def _poll_launcher(self, connected: Collection[int]) -> tuple[int, str] | str | None:
        self._ever_connected.update(connected)
        self._is_unexplained = False
        for node, process in self.processes.items():
            code = process.poll()
            if code is not None and code < 0:
                # A signal to the launcher comes from outside, so no node is at fault.
                name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
                return f"{name}, sent to its launcher"
            if code and not self._ever_connected:
                output = self._last_output(node, TAIL_BYTES)
                self._is_unexplained = self._is_unexplained or output is None
                raise_if_refused(output or "")
        if time.monotonic() >= self._next_poll_at:
            self._next_poll_at = time.monotonic() + _LOG_POLL_S
            for log in dict.fromkeys(self._logs.values()):
                absent = [node for node, path in self._logs.items() if path == log and node not in self._ever_connected]
                if absent and (failure := self._said_by_agents(log, absent)):
                    return failure
        return None

    def _said_by_agents(self, log: Path, absent: Sequence[int]) -> tuple[int, str] | None:
        """Return the failure of which the output of a launcher tells, once nodes have had their time to join."""
        output = self._tails.read(log, TAIL_BYTES)
        error, refusal = reason_of_agent(output), refused(output)
        if not (error or refusal):
            return None
        if log not in self._shown:
            self._shown.add(log)
            self._on_status(f"seatrial: in the output of the launcher: {quoted(error or refusal)}")
        if self._clock() < self._late_at:
            return None
        numbers = ", ".join(map(str, absent[:_MOST_NAMED])) + (", ..." if len(absent) > _MOST_NAMED else "")
        lacking = (
            f"{'node' if len(absent) == 1 else 'nodes'} {numbers} {'has' if len(absent) == 1 else 'have'} not joined"
        )
        if not error:
            raise RequestError(f"{lacking}; the output of the launcher says: {quoted(refusal)}.")
        named = re.match(r"node (\d{1,9}) ", error)
        node = int(named[1]) if named and int(named[1]) in absent else absent[0]
        return node, f"{lacking}; the output of the launcher says: {quoted(error)}"

    def kill(self) -> None:
        """Send SIGTERM, then SIGKILL: a launcher killed at once could not end its helpers on other hosts."""
        self._signal_all(signal.SIGTERM)
        self._wait(_TERMINATED_S)
        self._signal_all(signal.SIGKILL)


def raise_if_refused(output: str) -> None:
    """Raise RequestError when the output of a launcher shows that it refused its options."""
    refusal = refused(output)
    if refusal:
        raise RequestError(f"{refusal}.")


def _describe_end(node: int, code: int, output: str) -> str:
    # Every host of the job writes to that output.
    said = reason(output)
    return f"its launcher ended: {quoted(said) if said else f'exit code {code}'}"
