"""A stand-in for an agent on a real socket: it says that all went well and measures nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from seatrial.verdict.events import Source
from seatrial.verdict.handshake import proof
from seatrial.verdict.wire import Decoder, encode

__all__ = ["RUN", "TOKEN", "StubAgent"]

RUN = "stubbed"
TOKEN = "the-token"
_TIMEOUT_S = 20.0


class StubAgent:
    """One node with two ranks. ``serve`` answers until it is told to stop or sees ``leave_at``."""

    def __init__(self, port: int, node: int = 0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.said: list[bytes] = []
        self._decoder = Decoder()
        self._node = Source(RUN, f"node{node}")
        self._ranks = [Source(RUN, f"rank{2 * node + at}.0") for at in range(2)]
        self._first = 2 * node
        self.send({"kind": "hello", "nonce": "n", "node_rank": node})
        self._lines = self.socket.makefile("rb")
        challenge = (self._decoder.line(self._lines.readline()) or {}).get("challenge", "refused")
        with contextlib.suppress(OSError):
            self.send({"kind": "proof", "proof": proof(TOKEN, "agent", "n", challenge, node)})

    def send(self, *messages: dict[str, Any]) -> None:
        """Say something."""
        for message in messages:
            self.said += encode(message)
            self.socket.sendall(b"".join(encode(message)))

    def heard(self) -> Iterator[dict[str, Any]]:
        """What the conductor says, until it closes the connection."""
        with self._lines:
            for line in self._lines:
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
            return [self._node.event("node", node=0, hostname="stub", address="127.0.0.1", pid=1, cores=1)]
        if message["kind"] == "start":
            where = {"gen": 0, "node": "stub", "node_rank": 0, "device": "stub", "libraries": ""}
            return [source.event("rank", rank=rank, local_rank=rank % 2, **where) for rank, source in ranks]
        if message["kind"] == "step":
            done = {"gen": 0, "step": message["step"], "seconds": 0.1, "share": {}}
            return [source.event("done", rank=rank, **done) for rank, source in ranks if rank in message["ranks"]]
        if message["kind"] == "quit":
            ended = {"gen": 0, "code": 0, "ours": True, "phase": "end", "last_lines": []}
            return [self._node.event("exit", rank=rank, **ended) for rank, _ in ranks]
        return [self._node.event("end", told=False)] if message["kind"] == "stop" else []
