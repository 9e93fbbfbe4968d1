"""A launcher of the cluster (mpirun, srun) as a child process: one that starts the agents of all nodes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.errors import RequestError
from seatrial.launch.agents import Adopt, Agents, said_last
from seatrial.launch.bundle import kept_bundle
from seatrial.launch.command import Command, pasted, shown
from seatrial.launch.launcher_words import reason, reason_of_agent, refused

__all__ = ["FileCommand", "Launcher", "prepare", "refuse", "shown_with_files"]

_TERMINATED_S = 3.0
_LOOK_S = 1.0
_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommand(Command):
    """A command that reads files which are written for it first."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> whole lines."""
    code: str | None = None
    """Where it needs the file that travels."""


def prepare(command: Command) -> None:
    """Write what it reads. Raises RequestError when that cannot be done."""
    if not isinstance(command, FileCommand):
        return
    files = {path: text.encode() for path, text in command.files.items()}
    if command.code is not None:
        files[command.code] = kept_bundle()
    for path, content in files.items():
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise RequestError(
                f"{path}: it cannot be written ({error.strerror}); name another place with --out."
            ) from error


def shown_with_files(commands: Sequence[Command]) -> list[str]:
    """The lines of ``--dry-run``: what is written, then each command."""
    lines = []
    for command in commands:
        if isinstance(command, FileCommand):
            paths = [*command.files, *([command.code] if command.code is not None else [])]
            for folder in dict.fromkeys(map(os.path.dirname, paths)):
                lines.append(pasted({}, ("mkdir", "-p", folder)))
            for path, text in command.files.items():
                # Line by line: not every shell knows how a newline in a word is written.
                printed = pasted({}, ("printf", r"%s\n", *text.splitlines()))
                lines.append(f"{printed} > {shlex.quote(path)}")
            if command.code is not None:
                lines.append(pasted({}, ("seatrial", "bundle", command.code)))
        lines += shown([command])
    return lines


class Launcher(Agents):
    """Agents that a launcher starts for us. It is asked to end before it is killed: it has helpers on other hosts."""

    def __init__(self) -> None:
        super().__init__(words=_words)
        self._seen = False
        self._look_at = 0.0

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int], adopt: Adopt) -> None:
        """Write what they read, then start them. Raises RequestError when the folder cannot be written to."""
        for command in commands:
            prepare(command)
        super().start(commands, folder, caught, adopt)

    def news(self) -> tuple[int, str] | str | None:
        """How a launcher ended, or why an agent has not come although the launcher goes on.

        Raises RequestError when it refuses what it was asked for.
        """
        if not self._seen:
            found = self._look()
            self._seen = found is not None
            if found is not None:
                return found
        return super().news()

    def _look(self) -> tuple[int, str] | str | None:
        for node, process in self.processes.items():
            code = process.poll()
            if code is not None and code < 0:
                # Whoever sent it, no node is at fault.
                return f"{signal.Signals(-code).name}, which its launcher got"
            if code:
                refuse(self._logs[node])
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            for log, node in {log: node for node, log in reversed(self._logs.items())}.items():
                why = reason_of_agent(said_last(log, _READ_BYTES))
                if why:
                    return node, why
        return None

    def kill(self) -> None:
        """Ask first: a launcher that is killed at once leaves its helpers to find out by themselves."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + _TERMINATED_S
        while self._running() and time.monotonic() < until:
            time.sleep(0.1)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._running():
            # Each has a process group of its own, with the ssh that it started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def _running(self) -> set[int]:
        return {process.pid for process in self.processes.values() if process.poll() is None}


def refuse(log: Path) -> None:
    """Raises RequestError when what a launcher has printed says that it was asked for something wrong."""
    why = refused(said_last(log, _READ_BYTES))
    if why:
        raise RequestError(f"{why}.")


def _words(node: int, code: int, said: str) -> str:
    why = reason(said) or f"exit code {code}"
    return f"its launcher ended: {why}"
