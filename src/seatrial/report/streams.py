"""Standard output and standard error that may be closed, full or gone: the exit code stays the verdict's."""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["fill", "settle", "tell"]


def fill() -> None:
    """Give closed descriptors among 0, 1 and 2 to the null device.

    Else the next file or socket of ours takes the number, and whatever writes to it by number writes into that.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def tell(text: str) -> None:
    """A line on standard error, or nothing where nobody can be told."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def settle() -> None:
    """Write what is still held back, or drop it: at its end the interpreter would try again and exit with 120."""
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
