"""Reading TOML that a person wrote: in bounded time, and one sentence says what is wrong."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from seatrial.errors import RequestError
from seatrial.util.text import printable

_MOST_DOTS = 100
"""Dots in one line. The time of the TOML reader grows with the square of the parts of a dotted key, and so deep are its
tables; keys of ours have two parts."""
_REASON = 160


def parse_toml(text: str, name: str, *, instead: str) -> dict[str, Any]:
    """Return the table. Raises RequestError.

    Args:
        text: the content of the file.
        name: the file, as errors name it.
        instead: what to do where this Python has no reader: "name a level".
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > _MOST_DOTS and not _is_comment(line):
            raise RequestError(f"{name}: line {number} has more than {_MOST_DOTS} dots; is it the right file?")
    loads = _toml_reader()
    if loads is None:
        raise RequestError(f"{name}: TOML needs Python 3.11 or newer, or the package tomli; {instead}.")
    try:
        document: dict[str, Any] = loads(text)
    except (ValueError, RecursionError) as error:
        # Besides its own error, which names line and column, tomllib lets pass the ValueError of int() for numbers with
        # thousands of digits, and the RecursionError of deep nesting.
        reason = "it is nested too deep" if isinstance(error, RecursionError) else printable(str(error)[:_REASON])
        raise RequestError(f"{name} is not valid TOML: {reason}.") from error
    return document


def _is_comment(line: str) -> bool:
    """Return whether a line is a comment, whatever stands around it: one in a string of several lines may end that."""
    return line.lstrip().startswith("#") and '"""' not in line and "'''" not in line


def _toml_reader() -> Callable[[str], dict[str, Any]] | None:
    """Return a TOML reader: tomllib, or in Python 3.10 the tomli that an installed seatrial depends on; else None."""
    for name in ("tomllib", "tomli"):
        with contextlib.suppress(ImportError):
            loads: Callable[[str], dict[str, Any]] = importlib.import_module(name).loads
            return loads
    return None
