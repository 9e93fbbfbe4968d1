"""Lines on a terminal: its columns, and where a long line is broken."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import IO

_FEWEST_COLUMNS = 20
"""Below this a line holds no two words; the terminal may break it as it likes."""
_FIRST_INDENT, _NEXT_INDENT, _GOES_ON = "  ", "    ", " \\"
"""Around the lines of a command."""
_WHOLE = re.compile(r"report: | {2,4}\S")
"""Lines that a reader copies, paths and commands: a line break of ours would become a part of them."""
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:s|ms|us|W|MHz|(?:K|M|G|T)?i?B(?:/s)?|TFLOP/s)\b))")
_NO_BREAK = "\u00a0"


def columns_of(stream: IO[str] | None) -> int | None:
    """Return the columns of the terminal behind a stream; None where it is no terminal, or does not know them."""
    # Open MPI gives its ranks a terminal even where it writes their output to a file or the log of a pod.
    if stream is None or "OMPI_COMM_WORLD_RANK" in os.environ:
        return None
    try:
        if not stream.isatty():
            return None
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return None
    return columns if columns >= _FEWEST_COLUMNS else None


def wrapped(line: str, columns: int | None) -> list[str]:
    """Return the line in parts that fit, broken between words; what follows the first part is indented.

    A number stays with its unit.
    """
    if columns is None or len(line) <= columns or _WHOLE.match(line):
        return [line]
    indent = len(line) - len(line.lstrip()) + 2
    parts = textwrap.wrap(
        _BEFORE_A_UNIT.sub(_NO_BREAK, line),
        columns,
        subsequent_indent=" " * min(indent, columns // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_NO_BREAK, " ") for part in parts]


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
