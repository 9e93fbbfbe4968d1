"""A stand-in for an agent on a real socket: it says that all went well and measures nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from event_streams import event_of

from seatrial.protocol.events import Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import Decoder, encode

__all__ = ["RUN", "TOKEN", "StubAgent"]

RUN = "stubbed"
TOKEN = "the-token"
_TIMEOUT_S = 20.0


class StubAgent:
    """One node with two ranks. ``serve`` answers until ``stop`` or ``leave_at``."""

    def __init__(
        self, port: int, node: int = 0, source: str = "127.0.0.1", credential: str = "", process: str = ""
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S, source_address=(source, 0))
        self.said: list[bytes] = []
        self.tags: LineTags | None = None
        self._decoder = Decoder()
        self._node = Source(RUN, f"node{node}")
        self._ranks = [Source(RUN, f"rank{2 * node + at}.0") for at in range(2)]
        self._first = 2 * node
        self.send({"kind": "hello", "nonce": "n", "node_rank": node})
        self._lines = self.socket.makefile("rb")
        challenge = (self._decoder.line(self._lines.readline()) or {}).get("challenge", "refused")
        answer = {"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, node, process=process)}
        answer |= {"process": process} if process else {}
        with contextlib.suppress(OSError):
            self.send(answer | ({"credential": credential} if credential else {}))
        self.tags = LineTags(TOKEN, "agent", "n", challenge, node)
        self._tags_heard = LineTags(TOKEN, "conductor", "n", challenge, node)

    def send(self, *messages: dict[str, Any]) -> None:
        """Say something."""
        for message in messages:
            self.send_lines(b"".join(encode(message)))

    def send_lines(self, text: bytes) -> None:
        """Send lines as they are, each with its tag."""
        lines = [line + b"\n" for line in text.removesuffix(b"\n").split(b"\n")]
        tagged = [self.tags.add(line) if self.tags else line for line in lines]
        self.said += tagged
        self.socket.sendall(b"".join(tagged))

    def heard(self) -> Iterator[dict[str, Any]]:
        """What the conductor says, until it closes the connection."""
        with self._lines:
            for received in self._lines:
                line = self._tags_heard.remove(received.rstrip(b"\n"))
                assert line is not None, "a tag of the conductor is wrong"
                message = self._decoder.line(line)
                if message is not None:
                    yield message

    def serve(self, leave_at: str = "") -> None:
        """Go through a trial in generation 0."""
        with self.socket:
            for message in self.heard():
                if message["kind"] == leave_at:
                    return
                self.send(*self.answers(message))

    def answers(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """What an agent whose ranks all do well says to a message."""
        ranks = [(self._first + at, source) for at, source in enumerate(self._ranks)]
        if message["kind"] == "welcome":
            return [event_of(self._node, "node", node=0, hostname="stub", address="127.0.0.1", pid=1, cores=1)]
        if message["kind"] == "start_workers":
            where = {"gen": 0, "node": "stub", "node_rank": 0, "device": "stub", "libraries": ""}
            return [event_of(source, "rank", rank=rank, local_rank=rank % 2, **where) for rank, source in ranks]
        if message["kind"] == "step":
            done = {"gen": 0, "step": message["step"], "seconds": 0.1, "share": {}}
            return [event_of(source, "done", rank=rank, **done) for rank, source in ranks if rank in message["ranks"]]
        if message["kind"] == "quit":
            ended = {"gen": 0, "code": 0, "ours": True, "phase": "end", "last_lines": []}
            return [event_of(self._node, "exit", rank=rank, **ended) for rank, _ in ranks]
        return [event_of(self._node, "end")] if message["kind"] == "stop" else []
