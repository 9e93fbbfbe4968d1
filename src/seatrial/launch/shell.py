"""A command as a person may paste it into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping

__all__ = ["pasted"]


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
