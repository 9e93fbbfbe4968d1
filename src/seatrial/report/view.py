"""How much a reader sees, and on how many columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from seatrial.util import terminal

USUAL_COLUMNS = 80
"""Columns of the smallest usual terminal (VT100)."""
_FIRST_INDENT, _NEXT_INDENT, _GOES_ON = "  ", "    ", " \\"
"""Around the lines of a command."""
_WHOLE = re.compile(r"report: | {2,4}\S")
"""Lines that a reader copies, paths and commands: a line break of ours would become a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The choices of the reader, and the columns of the terminal."""

    columns: int | None = None
    """Columns of the terminal; None: a pipe or a file, where lines stay whole."""
    is_verbose: bool = False
    """Show all measurements and all evidence."""
    is_quiet: bool = False
    """Show one line."""
    foreign: Collection[str] | None = None
    """The options of seatrial run that take a value, for events that another command recorded: somebody else may have
    chosen their values, and those that could do harm are not shown to be copied. None: this command ran the trial."""


def wrapped(line: str, columns: int | None) -> list[str]:
    """Return the line in parts that fit, broken between words; what follows the first part is indented."""
    return [line] if _WHOLE.match(line) else terminal.wrapped(line, columns)


def command_lines(words: Sequence[str], columns: int) -> list[str]:
    """Return a command on lines that a shell reads as one: broken between options, with a backslash at each end.

    ``words``: the words as a shell takes them. A word that is longer than a line stays whole.
    """
    groups: list[str] = []
    for word in words:
        longer = f"{groups[-1]} {word}" if groups else word
        if groups and not word.startswith("-") and len(longer) + len(_NEXT_INDENT + _GOES_ON) <= columns:
            groups[-1] = longer
        else:
            groups.append(word)
    lines = [f"{_FIRST_INDENT}{groups[0]}"]
    for group in groups[1:]:
        longer = f"{lines[-1]} {group}"
        if len(longer) + len(_GOES_ON) <= columns:
            lines[-1] = longer
        else:
            lines[-1] += _GOES_ON
            lines.append(f"{_NEXT_INDENT}{group}")
    return lines


def height(line: str, columns: int | None) -> int:
    """Return the rows that a line takes, in a pipe as on the smallest usual terminal."""
    width = columns or USUAL_COLUMNS
    return sum(max(1, -(-len(part) // width)) for part in wrapped(line, columns))
