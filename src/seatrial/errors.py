"""The exceptions that a caller of seatrial can catch, and the exit code that each one becomes.

    SeatrialError                   3   seatrial could not do what was requested
    ├── RequestError                2   the request is invalid: an option, a plan, a file, a host list
    │   └── PermissionDeniedError   2   the cluster denies this user something that the request needs
    ├── TargetUnreachableError      3   a host, a launcher, a scheduler or an API server does not answer
    ├── JobNotStartedError          3   the job was submitted and will not start, or not in time
    ├── ProtocolError               3   the peer on a control connection failed authentication or broke the protocol
    ├── DownloadError               3   a file could not be downloaded
    ├── DamagedDataError            3   stored data is not what was written or published
    └── InternalError               3   a bug in seatrial

A message is one or two sentences: what happened, which value, where the value came from, what to do. A rank that dies,
a check that fails or a verdict is no exception: those are events and results.
"""

from __future__ import annotations


class SeatrialError(Exception):
    """Base of all exceptions whose text is shown to the user as it is."""

    exit_code = 3


class RequestError(SeatrialError):
    """An invalid request. The user must change an option, a plan, a file or a host list."""

    exit_code = 2


class PermissionDeniedError(RequestError):
    """A permission that the request needs and this user lacks in the cluster."""


class TargetUnreachableError(SeatrialError):
    """A host, launcher, scheduler or API server that does not answer. The same request may succeed later."""


class JobNotStartedError(SeatrialError):
    """A job that was submitted and will not start, or did not start in time."""


class ProtocolError(SeatrialError):
    """A peer on a control connection that failed authentication or does not follow the protocol."""


class DownloadError(SeatrialError):
    """A file that could not be downloaded completely."""


class DamagedDataError(SeatrialError):
    """Stored data whose digest is not the one that was recorded or published."""


class InternalError(SeatrialError):
    """A bug in seatrial."""
