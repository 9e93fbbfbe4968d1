"""How much a reader sees, and how many rows that takes."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.util.terminal import wrapped

USUAL_COLUMNS = 80
"""Columns of the smallest usual terminal (VT100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The choices of the reader, and the columns of the terminal."""

    columns: int | None = None
    """Columns of the terminal; None: a pipe or a file, where lines stay whole."""
    is_verbose: bool = False
    """Show all measurements and all evidence."""
    is_quiet: bool = False
    """Show one line."""


def height(line: str, columns: int | None) -> int:
    """Return the rows that a line takes, in a pipe as on the smallest usual terminal."""
    width = columns or USUAL_COLUMNS
    return sum(max(1, -(-len(part) // width)) for part in wrapped(line, columns))
