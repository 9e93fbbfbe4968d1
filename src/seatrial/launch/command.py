"""A process to start, and the line that a person may paste into a shell to start it by hand."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Command", "pasted", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What its environment has beside ours."""
    nodes: tuple[int, ...]
    """The nodes whose agents it starts: they are lost when it ends."""


def shown(commands: Sequence[Command]) -> list[str]:
    """A line each."""
    return [pasted(command.env, command.argv) for command in commands]


def pasted(environ: Mapping[str, str], argv: Iterable[str]) -> str:
    """One line: the command with what its environment has beside ours."""
    return " ".join(map(_quoted, ["env", *(f"{name}={value}" for name, value in environ.items()), *argv]))


def _quoted(word: str) -> str:
    """The word for a shell; control characters as their escapes, so that a terminal shows what is meant."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"
