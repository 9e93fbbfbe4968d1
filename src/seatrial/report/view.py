"""How much a reader sees, and on how many columns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from seatrial.util import terminal

USUAL_COLUMNS = 80
"""Columns of the smallest usual terminal (VT100)."""
_WHOLE = re.compile(r"(?:report|next): ")
"""Lines that a reader copies: a line break of ours would become a part of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The choices of the reader, and the columns of the terminal."""

    columns: int | None = None
    """Columns of the terminal; None: a pipe or a file, where lines stay whole."""
    is_verbose: bool = False
    """Show all measurements and all evidence."""
    is_quiet: bool = False
    """Show one line."""


def wrapped(line: str, columns: int | None) -> list[str]:
    """Return the line in parts that fit, broken between words; what follows the first part is indented."""
    if _WHOLE.match(line):
        return [line]
    return terminal.wrapped(line, columns)


def height(line: str, columns: int | None) -> int:
    """Return the rows that a line takes, in a pipe as on the smallest usual terminal."""
    width = columns or USUAL_COLUMNS
    return sum(max(1, -(-len(part) // width)) for part in wrapped(line, columns))
