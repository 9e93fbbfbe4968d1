"""A process to start, and the line that a person may paste into a shell to start it by hand."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Command", "Feed", "pasted", "quoted", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a process gets on its standard input first. Then it has the control connection there and on its output."""

    lines: tuple[str, ...]
    content: bytes

    def all(self) -> bytes:
        """As it is sent."""
        return "".join(f"{line}\n" for line in self.lines).encode() + self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What its environment has beside ours."""
    nodes: tuple[int, ...]
    """The nodes whose agents it starts: they are lost when it ends."""
    feed: Feed | None = None
    """None: it has no standard input, and its agents connect by themselves."""


def shown(commands: Sequence[Command]) -> list[str]:
    """A line each."""
    return [pasted(command.env, command.argv) for command in commands]


def pasted(environ: Mapping[str, str], argv: Iterable[str]) -> str:
    """One line: the command with what its environment has beside ours."""
    return " ".join(map(quoted, ["env", *(f"{name}={value}" for name, value in environ.items()), *argv]))


def quoted(word: str) -> str:
    """The word for a shell; control characters as their escapes, so that a terminal shows what is meant."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"
