"""The commands of the conductor as they arrive, after the handshake."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from seatrial.protocol.commands import AgentCommand
from seatrial.protocol.line_tags import TAG_CHARS, LineTags
from seatrial.protocol.wire import MAX_LINE_BYTES, Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConnection:
    """A connection to the conductor after the handshake."""

    connection: socket.socket
    received: bytes
    """Bytes that arrived after the handshake."""
    tags_sent: LineTags | None
    tags_received: LineTags | None
    """None over ssh, which protects the lines itself."""


class ConnectionUnusableError(Exception):
    """The agent must obey nothing more of what this connection brings. The message continues "node N ..."."""


class CommandReader:
    """Makes commands of received bytes, and knows when the conductor was heard last."""

    def __init__(self, tags: LineTags | None) -> None:
        """``tags``: those of the lines received; None over ssh."""
        self._tags = tags
        self._decoder = Decoder()
        self._buffer = b""
        self.heard_at = time.monotonic()

    def take_in(self, data: bytes) -> Iterator[AgentCommand]:
        """Yield each command that is whole. Raises ConnectionUnusableError."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES + TAG_CHARS:
            raise ConnectionUnusableError("received a line longer than any of the controller's")
        for received in lines:
            line = self._tags.remove(received) if self._tags else received
            if line is None:
                changed = "received a line that was changed, repeated or left out on the way from the controller"
                raise ConnectionUnusableError(changed)
            # Not before: single bytes may come from anybody in the path.
            self.heard_at = time.monotonic()
            message = self._decoder.line(line)
            if message is not None and "kind" in message:
                yield cast("AgentCommand", message)
