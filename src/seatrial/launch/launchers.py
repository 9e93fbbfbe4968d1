"""A launcher of the cluster (mpirun, srun) as a child process: one that starts the agents of all nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.launch.agents import Agents
from seatrial.launch.command import Command
from seatrial.launch.launcher_words import reason
from seatrial.launch.unseen import write_code

__all__ = ["FileCommand", "Launcher"]

_TERMINATED_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommand(Command):
    """A command that reads files which are written for it."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text."""


class Launcher(Agents):
    """Agents that a launcher starts for us. It is asked to end before it is killed: it has helpers on other hosts."""

    def start(self, commands: Sequence[Command], folder: Path, caught: Sequence[int] = ()) -> None:
        """Write what they read, then start them. Raises RequestError when the folder cannot be written to."""
        write_code(folder)
        for command in commands:
            if isinstance(command, FileCommand):
                for path, text in command.files.items():
                    Path(path).write_text(text)
        super().start(commands, folder, caught)

    def news(self) -> tuple[int, str] | None:
        """The end of the launcher, with what it or an agent complained of."""
        found = super().news()
        if found is None:
            return None
        node, words = found
        why = reason(self.printed(node))
        return node, f"its launcher ended before it did: {why}" if why else words

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
