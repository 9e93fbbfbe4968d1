"""A process to start, and the line that starts it when a person pastes it into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

DRY_RUN_TOKEN = "TOKEN"
"""The word that stands for the token of the run in the commands that ``--dry-run`` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The first data on the standard input of a process, whose input and output are the control connection after it."""

    lines: tuple[str, ...]
    """The lines that are sent first, without their newlines."""
    content: bytes
    """The bytes that follow the lines."""

    def to_bytes(self) -> bytes:
        """Return the lines and the content as they are sent."""
        return "".join(f"{line}\n" for line in self.lines).encode() + self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start."""

    argv: tuple[str, ...]
    """The program and its arguments."""
    env: Mapping[str, str]
    """The variables that are added to the environment of this process."""
    nodes: tuple[int, ...]
    """The nodes whose agents it starts; they are lost when it exits."""
    is_agent: bool = False
    """Whether it is itself the agent of its node, so that signals for the ranks may be sent to it."""
    pass_fds: tuple[int, ...] = ()
    """The descriptors that it inherits."""
    folder: str | None = None
    """The folder in which it starts. None: ours."""
    feed: Feed | None = None
    """The data for its standard input. None: it has no standard input, and its agents connect by themselves."""


def shell_lines(commands: Sequence[Command]) -> list[str]:
    """Return one shell line for each command."""
    return [shell_line(command.env, command.argv, command.folder) for command in commands]


def shell_line(
    environ: Mapping[str, str], argv: Iterable[str], folder: str | None = None, variable: str | None = None
) -> str:
    """Return a shell line that runs ``argv`` with the additional variables in ``environ``; in a folder, if given.

    ``variable``: the word that stands for a variable of the shell, such as ``$FILE_OF_HOSTS``.
    """
    start = ["env"] if folder is None else ["env", "-C", folder]
    words = [*start, *(f"{name}={value}" for name, value in environ.items()), *argv]
    return " ".join(f'"{word}"' if word == variable else shell_quote(word) for word in words)


def shell_quote(word: str) -> str:
    """Return the word quoted for bash, with control characters as escapes, so that a terminal shows all of it."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"
