"""Standard output and standard error that may be closed, full or gone: they never change the exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import IO

from seatrial.util.terminal import columns_of, wrapped
from seatrial.util.text import printable

_LONGEST = 4_000
"""Characters of a line: our words around a quotation, which has at most 2,000."""
_printers: list[Callable[[str], None]] = []
"""The printer that writes above the live line of standard error; empty without such a line."""


def reopen_missing() -> None:
    """Open the null device for each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next file or socket of this process gets the number, and code that writes to standard output or
    standard error by number writes into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def escape_output() -> None:
    """Let standard output have an escape for each character that its encoding lacks, as standard error has."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def begin_live_line(print_above: Callable[[str], None]) -> None:
    """Let all further lines on standard error go through ``print_above``, which prints text above a live line."""
    _printers.append(print_above)


def end_live_line(print_above: Callable[[str], None]) -> None:
    """Print directly again."""
    if print_above in _printers:
        _printers.remove(print_above)


def print_status(text: str) -> None:
    """Print one line on standard error, escaped; do nothing where standard error cannot be written.

    It may quote what a host, a rank or a cluster said, of which no terminal may obey anything. A terminal gets it
    broken between words.
    """
    _print("\n".join(wrapped(printable(text, _LONGEST), columns_of(sys.stderr))))


def print_status_lines(text: str) -> None:
    """Print a text of several lines, such as a traceback, in the same way."""
    _print("\n".join(printable(line, _LONGEST) for line in text.rstrip("\n").split("\n")))


def _print(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            if _printers:
                _printers[-1](f"{text}\n")
            else:
                print(text, file=sys.stderr, flush=True)


def write_line(line: str) -> None:
    """Write a line to standard error by one call, so that no process that shares it with this one breaks the line.

    ``print`` writes the end of the line by another call where Python does not buffer (PYTHONUNBUFFERED). C++ does so
    with the parts of a line: one that others look for begins with an empty line, which ends what was left open.
    """
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_text(stream: IO[str], text: str) -> None:
    """Write text, with an escape for each character that the encoding of the stream lacks: ``\\u20ac``.

    Raises OSError where nobody reads it any more, and ValueError for a stream that is closed.
    """
    stream.write(encodable(text, getattr(stream, "encoding", None) or "utf-8"))


class Forgiving:
    """A stream that ignores everything after its first failed write: its terminal or its reader is gone."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream: IO[str] | None = stream
        self.encoding = getattr(stream, "encoding", None)

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def write(self, text: str) -> int:
        try:
            if self._stream is not None:
                print_text(self._stream, text)
        except (OSError, ValueError):
            self._stream = None
        return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def encodable(text: str, encoding: str) -> str:
    """Return the text with an escape for each character that the encoding lacks."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def flush_or_drop() -> None:
    """Write what is still buffered, or drop it: at exit the interpreter would retry and end with exit code 120."""
    # Not sys.stdout, which click replaces when its reader has gone away.
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
