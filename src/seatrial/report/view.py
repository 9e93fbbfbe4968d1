"""How much a reader sees, and on how many columns."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from typing import IO

USUAL_COLUMNS = 80
"""Columns of the smallest usual terminal (VT100)."""
_FEWEST_COLUMNS = 20
"""Below this a line holds no two words; the terminal may break it as it likes."""
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


def columns_of(stream: IO[str] | None) -> int | None:
    """Return the columns of the terminal behind a stream; None where it is no terminal, or does not know them."""
    try:
        if stream is None or not stream.isatty():
            return None
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return None
    return columns if columns >= _FEWEST_COLUMNS else None


def wrapped(line: str, columns: int | None) -> list[str]:
    """Return the line in parts that fit, broken between words; what follows the first part is indented."""
    if columns is None or len(line) <= columns or _WHOLE.match(line):
        return [line]
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=" " * min(indent, columns // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def height(line: str, columns: int | None) -> int:
    """Return the rows that a line takes, in a pipe as on the smallest usual terminal."""
    width = columns or USUAL_COLUMNS
    return sum(max(1, -(-len(part) // width)) for part in wrapped(line, columns))
