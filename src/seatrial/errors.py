"""The one tree of errors that a person sees.

    SeatrialError                 exit code 3: we could not do it
    └── RequestError              exit code 2: what was asked for is wrong

A message is one sentence or two: what, which value, where the value came from, what to do.
"""

from __future__ import annotations

__all__ = ["RequestError", "SeatrialError"]


class SeatrialError(Exception):
    """Something that we could not do; its text is shown to the person as it is."""

    exit_code = 3


class RequestError(SeatrialError):
    """The request itself is wrong: an option, a plan, a file, a host list."""

    exit_code = 2
