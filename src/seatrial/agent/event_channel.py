"""The channel from an agent to its conductor. Events also go into a file, which outlives the connection."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time

from seatrial.protocol.commands import AgentReport
from seatrial.protocol.events import Event, Source
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import encode
from seatrial.util.disk_writer import MOST_BYTES, DiskWriter, WrittenFile

_FULL_BYTES = 4 << 20
"""Unsent bytes from which the agent takes in nothing more that can wait elsewhere."""
_MOST_BYTES = 64 << 20
"""Unsent bytes with which the connection counts as lost, to bound the memory: no conductor of ours asks for so much."""
_MOST_FILE_BYTES = MOST_BYTES + (16 << 20)
"""The output of ranks that waits for the same disk leaves this room for events."""
_DRAIN_S = 2.0


class EventChannel:
    """Sends on one connection. Never waits: lines that the conductor does not take yet stay here, in their order.

    Never raises: when the conductor cannot be reached, ``lost`` is set.
    """

    def __init__(self, connection: socket.socket, tags: LineTags | None, disk: DiskWriter) -> None:
        """Take over the connection.

        Args:
            connection: the one to the conductor.
            tags: those of the lines sent; None over ssh.
            disk: writes the file of the events.
        """
        self._connection = connection
        self._disk = disk
        self._tags = tags
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lost = False
        self._unsent = bytearray()
        self._taken_at = 0.0
        """When the connection last took something of ``_unsent``, or when that began to wait."""
        self._source: Source | None = None
        self._file: WrittenFile | None = None

    def begin(self, run: str, src: str, folder: str | None) -> None:
        """Begin the events of this source. ``folder``: where their file is kept; None: nowhere."""
        self._source = Source(run, src)
        if folder:
            path = os.path.join(folder, f"{src}.events")
            # The numbers of the events show a gap; the newline ends a line that may have been cut.
            self._file = self._disk.open(path, lambda gap_bytes: b"\n", _MOST_FILE_BYTES)

    def event(self, event: Event) -> None:
        """Record an event of the agent. Nothing happens before ``begin``."""
        if self._source is not None:
            for line in encode(self._source.event(event)):
                self.record(line)

    def record(self, line: bytes) -> None:
        """Send a line of an event, and keep it in the file."""
        self.write(line)
        if self._file is not None and not self._file.is_refused:
            self._disk.write(self._file, line)

    def send(self, message: AgentReport) -> None:
        """Send a message that is not kept."""
        self.write(*encode(message))

    def write(self, *lines: bytes) -> None:
        """Send lines that are not kept."""
        if self.lost:
            return
        if not self._unsent:
            self._taken_at = time.monotonic()
        for line in lines:
            self._unsent += self._tags.add(line) if self._tags else line
        self.flush()
        self.lost = self.lost or len(self._unsent) > _MOST_BYTES

    def flush(self) -> None:
        """Send what the connection takes at once."""
        while self._unsent and not self.lost:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self.lost = True
                return
            del self._unsent[:sent]
            self._taken_at = time.monotonic()

    def wait(self, timeout_s: float) -> None:
        """Wait until the connection takes something, at most for that time, and send it."""
        poll = select.poll()
        poll.register(self._connection, select.POLLOUT)
        poll.poll(1000 * timeout_s)
        self.flush()

    def drain(self, timeout_s: float) -> None:
        """Send all that waits, at most for that time."""
        until = time.monotonic() + timeout_s
        while self._unsent and not self.lost and time.monotonic() < until:
            self.wait(min(0.1, timeout_s))

    def is_free(self) -> bool:
        """Return whether nothing waits, so that a long message delays no other by more than itself."""
        return not (self._unsent or self.lost)

    def is_full(self) -> bool:
        """Return whether so much waits that nothing should come that can wait elsewhere."""
        return len(self._unsent) >= _FULL_BYTES

    def waits_since(self) -> float:
        """Return since when (monotonic) the connection has taken nothing of what waits; infinity: nothing waits."""
        return self._taken_at if self._unsent else math.inf

    def excuse(self, paused_s: float) -> None:
        """Do not count a time in which this process was paused."""
        self._taken_at += paused_s

    def close(self) -> None:
        """Close the connection after all was read: unread data would reset it, and our last events might be lost."""
        until = time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_DRAIN_S)
            while time.monotonic() < until and self._connection.recv(1 << 16):
                pass
        self._connection.close()
        if self._file is not None:
            self._disk.close(self._file)
