"""The pipe by which an agent sends commands to a process that it started."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from typing import IO

from seatrial.protocol.wire import encode

_F_SETPIPE_SZ = 1031  # fcntl.F_SETPIPE_SZ, which Python 3.10 has not on every build
_PIPE_BYTES = 1 << 20
"""A command that names 4,096 nodes has some 250 KB; the kernel's default is 64 KiB."""


class CommandPipe:
    """Never blocks: a frozen process must not freeze its agent. A later ``flush`` sends the rest."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """``pipe``: the standard input of a process."""
        self._pipe = pipe
        self._unsent = b""
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # a user may have no more pages for pipes
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)

    def send(self, command: Mapping[str, object]) -> None:
        """Send a command. A process that is gone is reported by its end, not here."""
        self._unsent += b"".join(encode(command))
        self.flush()

    def flush(self) -> None:
        """Send what did not fit before."""
        while self._unsent:
            try:
                self._unsent = self._unsent[os.write(self._pipe.fileno(), self._unsent) :]
            except BlockingIOError:
                return
            except (OSError, ValueError):  # the process has ended, or the pipe was closed
                self._unsent = b""

    def close(self) -> None:
        """Close the pipe; unsent commands are dropped."""
        self._unsent = b""
        with contextlib.suppress(OSError):
            self._pipe.close()
