"""The columns of a terminal, and lines broken between words to fit them."""

from __future__ import annotations

import os
import re
import textwrap
from typing import IO

_FEWEST_COLUMNS = 20
"""Below this a line holds no two words; the terminal may break it as it likes."""
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:s|ms|us|W|MHz|(?:K|M|G|T)?i?B(?:/s)?|TFLOP/s)\b))")
_NO_BREAK = "\u00a0"


def columns_of(stream: IO[str] | None) -> int | None:
    """Return the columns of the terminal behind a stream; None where it is no terminal, or does not know them."""
    # Open MPI gives its ranks a terminal even where it writes their output to a file or the log of a pod.
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return None
    try:
        if stream is None or not stream.isatty():
            return None
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return None
    return columns if columns >= _FEWEST_COLUMNS else None


def wrapped(line: str, columns: int | None) -> list[str]:
    """Return the line in parts that fit, broken between words; what follows the first part is indented.

    A number stays with its unit, and a word that is longer than a line whole. ``columns`` None: the line stays whole.
    """
    if columns is None or len(line) <= columns:
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
