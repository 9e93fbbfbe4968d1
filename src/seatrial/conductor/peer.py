"""One connection to the conductor: of an agent, or of a stranger that may become one."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

from seatrial.conductor.clock import clock_s
from seatrial.conductor.event_allowance import EventAllowance
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import Decoder, encode

_LARGE_BYTES = 512 << 10
"""Messages that are not kept are never as large. A larger one of any kind counts before it is decoded and, to compare
it, encoded: both take 10 to 100 ms for each MiB that counts (numbers and deep lists the most), and twice that on a busy
machine; meanwhile nobody else is heard."""


class Peer:
    """One connection."""

    __slots__ = (
        "address",
        "allowance",
        "asked_to_stop",
        "attached",
        "buffer",
        "claim",
        "credential",
        "decoder",
        "floods",
        "has_ended",
        "lines",
        "node",
        "out",
        "place",
        "process",
        "since",
        "socket",
        "source",
        "tags_received",
        "tags_sent",
        "time_questions",
    )  # fmt: skip

    def __init__(
        self, connection: socket.socket, address: str = "", source: str = "", *, attached: int | None = None
    ) -> None:
        self.socket = connection
        self.address, self.source = address, source
        """Where it comes from, and with which others (``source_of``); empty where we made it."""
        self.place = ""
        """Where it is, as ``place_of`` says, once the agent has joined; empty, too, where we made the connection."""
        self.attached = attached
        """The node to which we made the connection: starting its agent may take long and print something before."""
        self.tags_received: LineTags | None = None
        self.tags_sent: LineTags | None = None
        """None before the agent has joined, and over ssh, which protects the lines itself."""
        self.node: int | None = None
        """None until the agent has proved that it knows the token."""
        self.claim: tuple[int, str, str] | None = None
        """Node, nonce and challenge after ``hello``, until the proof."""
        self.credential: tuple[str, str] | None = None
        """The proof, and the credential of munge that came with it, where one is asked for."""
        self.process = ""
        """The random text of an agent that joined, which is the same when that one tries again; empty over ssh."""
        self.since = clock_s()
        self.lines: deque[bytes] = deque()
        """Whole lines that were received and not taken in."""
        self.buffer = b""
        """The line after them, which has no end yet."""
        self.out = b""
        self.decoder = Decoder(self._may_decode, of_agent=True)
        self.allowance = EventAllowance(self.since)
        self.floods = False
        """It sent more than its allowance."""
        self.asked_to_stop = False
        self.has_ended = False
        """It was asked to stop, and has sent its last event."""
        self.time_questions = 0

    @property
    def host(self) -> str:
        """Where an agent that joined is: agents of one host share their turns. All others share theirs, too."""
        return self.place or ("" if self.node is None else f"node {self.node}")

    def admit(self, node: int) -> None:
        """Note that the agent of a node has proved to be one.

        From now on its lines count, and those of a whole message are given back. Parts that came before counted
        nowhere.
        """
        self.node, self.decoder = node, Decoder(self._may_decode, of_agent=True)

    def _may_decode(self, kept_bytes: int) -> bool:
        return kept_bytes <= _LARGE_BYTES or self.count(kept_bytes)

    def count(self, kept_bytes: int) -> bool:
        """Count a message. Returns whether the agent is still within its allowance."""
        self.floods = self.floods or not self.allowance.take(kept_bytes, clock_s())
        return not self.floods

    def count_last(self) -> bool:
        """Count the last message, unless it counted before it was decoded. Returns as ``count`` does."""
        return self.decoder.kept_bytes > _LARGE_BYTES or self.count(self.decoder.kept_bytes)

    def put(self, message: Mapping[str, Any]) -> None:
        """Add a message to the bytes that are sent next."""
        lines = encode(message)
        self.out += b"".join(map(self.tags_sent.add, lines) if self.tags_sent else lines)

    def received(self, data: bytes) -> None:
        """Take bytes that arrived, once the lines before them were taken in."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        self.lines.extend(lines)
