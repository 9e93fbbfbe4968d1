"""Where a plan is read from: a built-in level, or a file that a person wrote: TOML, or JSON when it is named so."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from seatrial.errors import RequestError
from seatrial.plan.tables import load_table
from seatrial.plan.values import did_you_mean, shortened

__all__ = ["DEFAULT_LEVEL", "LEVELS", "is_level", "printable", "read_file", "read_level"]

LEVELS = ("smoke", "quick", "standard", "burn-in")
"""The built-in levels, the shortest first."""
DEFAULT_LEVEL = "quick"
"""The plan when none is named."""

_MAX_BYTES = 1 << 20
"""A plan has some hundred lines; what is larger was named by mistake."""
_MOST_DOTS = 100
"""In one line. The TOML reader takes time by the square of the parts of a dotted key, and nests as deep; ours have
two."""


def is_level(name: str) -> bool:
    """Whether the name is a built-in level. A file of that name is read as ``./quick``."""
    return name in LEVELS


def read_level(name: str) -> dict[str, Any]:
    """The table of a built-in level."""
    return load_table(f"levels/{name}")


def read_file(path: str) -> dict[str, Any]:
    """The table of a plan file. Raises RequestError for whatever is not a readable, non-empty plan."""
    name = printable(path)
    text = _decode(_read_bytes(path, name), name)
    document = _json(text, name) if path.endswith(".json") else _toml(text, name)
    if not document:
        raise RequestError(f'plan {name} is empty; start with level = "{DEFAULT_LEVEL}".')
    return document


def _toml(text: str, name: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MOST_DOTS and not line.lstrip().startswith("#"):
            raise RequestError(f"plan {name}: line {number} has more than {_MOST_DOTS} dots; is it a plan?")
    try:
        import tomllib
    except ModuleNotFoundError:
        raise RequestError(
            f"plan {name}: TOML needs Python 3.11 or newer; name a level, or write the plan as JSON in a file *.json."
        ) from None
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Besides its own error, which names line and column, tomllib lets through what int() says of numbers with
        # thousands of digits and what deep nesting does to the stack.
        reason = "it is nested too deep" if isinstance(error, RecursionError) else shortened(str(error))
        raise RequestError(f"plan {name} is not valid TOML: {reason}.") from error
    return document


def _json(text: str, name: str) -> dict[str, Any]:
    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        told = dict(pairs)
        if len(told) < len(pairs):
            # As TOML has it: of two limits nobody knows which was meant.
            raise ValueError("a name stands twice in one object")
        return told

    try:
        document = json.loads(text, object_pairs_hook=table)
        # JSON can write halves of characters, which nothing that is printed or sent may have.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else shortened(str(error))
        raise RequestError(f"plan {name} is not valid JSON: {reason}.") from error
    if not isinstance(document, dict):
        raise RequestError(f"plan {name}: it is not one JSON object with the tables of a plan in it.")
    return document


def printable(path: str) -> str:
    """The path as it can be printed and sent: on one line, and what is not UTF-8 or a control character escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


def _read_bytes(path: str, name: str) -> bytes:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise RequestError(f"plan {name} is a directory; name the TOML file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"plan {name} is not a regular file; save the plan to a file first.")
        if status.st_size > _MAX_BYTES:
            raise RequestError(f"plan {name} has {status.st_size} bytes, expected {_MAX_BYTES} at most; is it a plan?")
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        hint = did_you_mean(name, LEVELS)
        raise RequestError(f"plan {name!r}: no level and no file has that name{hint}") from None
    except OSError as error:
        raise RequestError(f"plan {name} cannot be read: {error.strerror or error}.") from error
    except ValueError:
        raise RequestError(f"plan {name!r}: a file's name cannot have a NUL byte.") from None


def _decode(content: bytes, name: str) -> str:
    if b"\0" in content:
        raise RequestError(f"plan {name} has NUL bytes: it is not a text file.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise RequestError(f"plan {name} is not UTF-8 text: there is a byte 0x{byte:02x} in line {line}.") from None
