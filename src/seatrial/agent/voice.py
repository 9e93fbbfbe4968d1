"""What an agent says to its conductor. Events are kept on this node too, so that they outlive the connection."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, BinaryIO

from seatrial.verdict.events import Source
from seatrial.verdict.wire import encode

__all__ = ["Voice", "append"]

_SEND_TIMEOUT_S = 10.0
_DRAIN_S = 2.0


class Voice:
    """On this connection, from ``begin`` on. Never raises: who cannot be told is ``lost``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(_SEND_TIMEOUT_S)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lost = False
        self._source: Source | None = None
        self._events: BinaryIO | None = None

    def begin(self, run: str, name: str, keep: str | None) -> None:
        """Now it is known of which run the events are; ``keep``: the folder for them."""
        self._source = Source(run, name)
        if keep:
            self._events = append(os.path.join(keep, f"{name}.events"))

    def event(self, kind: str, **payload: Any) -> None:
        """One of our own; nothing before ``begin``."""
        if self._source is not None:
            for line in encode(self._source.event(kind, **payload)):
                self.keep(line)

    def keep(self, line: bytes) -> None:
        """A line of an event, whoever's."""
        if self._events is not None:
            try:
                self._events.write(line)
            except OSError:  # a full disk: the conductor still has them all
                self._close_events()
        self.write(line)

    def send(self, message: dict[str, Any]) -> None:
        """News of the moment, which nobody reads later."""
        for line in encode(message):
            self.write(line)

    def write(self, line: bytes) -> None:
        """The same, as it comes from a rank."""
        if self.lost:
            return
        try:
            self._connection.sendall(line)
        except OSError:
            self.lost = True

    def close(self) -> None:
        """Closing with something unread would reset the connection, and our last words might be lost with it."""
        until = time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_DRAIN_S)
            while time.monotonic() < until and self._connection.recv(1 << 16):
                pass
        self._connection.close()
        self._close_events()

    def _close_events(self) -> None:
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
            self._events = None


def append(path: str) -> BinaryIO | None:
    """A file that grows line by line; None where there can be none, which must not disturb the trial."""
    try:
        return open(path, "ab", buffering=0)
    except OSError:
        return None
