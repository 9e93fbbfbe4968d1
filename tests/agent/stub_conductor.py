"""A stand-in for the conductor on the other end of a real connection, with a real agent."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seatrial.verdict.handshake import proof
from seatrial.verdict.wire import Decoder, encode

__all__ = ["TOKEN", "StubConductor"]

TOKEN = "the-token"


class StubConductor:
    """Listens, starts one agent, and has its one conversation."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            environ = {**os.environ, "SEATRIAL_CONTROL": f"127.0.0.1:{listener.getsockname()[1]}"}
            environ |= {"SEATRIAL_TOKEN": TOKEN, "SEATRIAL_NODE_RANK": "0", "SEATRIAL_KEEP": str(keep)}
            self.agent = subprocess.Popen([sys.executable, "-m", "seatrial.agent.main"], env=environ)
            self.connection, _ = listener.accept()
        self.connection.settimeout(30)
        self.heard: list[dict[str, Any]] = []
        self._decoder = Decoder()
        self._lines = self.connection.makefile("rb")
        self.hello = self.until_kind("hello")
        told = proof(TOKEN, "conductor", self.hello["nonce"], "c", 0)
        self.send({"kind": "proof", "challenge": "c", "proof": told})
        self.proof = self.until_kind("proof")

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.connection.sendall(b"".join(encode(message)))

    def until(self, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The next message that is wanted; all that came before it is kept in ``heard``."""
        for line in self._lines:
            message = self._decoder.line(line)
            if message is not None:
                self.heard.append(message)
                if wanted(message):
                    return message
        raise AssertionError(f"the agent closed the connection after {self.heard[-3:]}")

    def until_kind(self, kind: str) -> dict[str, Any]:
        return self.until(lambda message: message["kind"] == kind)

    def until_phase(self, rank: int, phase: str) -> None:
        """Its agent has seen the rank in that phase."""
        self.until(lambda message: message["kind"] == "status" and message["ranks"].get(str(rank), [""])[-1] == phase)

    def until_both_are_up(self) -> None:
        """Two ranks have entered their first phase: from then on they die with their agent."""
        self.until(
            lambda message: (
                message["kind"] == "status" and [row[2] > 0 for row in message["ranks"].values()] == [True] * 2
            )
        )

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.heard if message["kind"] == kind]

    def hear_out(self) -> int:
        """All the rest, and the exit code of the agent, which waits for us to hang up after its last words."""
        with contextlib.suppress(AssertionError):
            self.until(lambda message: False)
        with contextlib.suppress(OSError):  # one that was killed has hung up for both
            self.connection.shutdown(socket.SHUT_WR)
        return self.agent.wait(20)

    def kept(self) -> list[dict[str, Any]]:
        """What the agent left in its file."""
        return list(Decoder().lines((self.keep / "node0.events").read_bytes()))

    def ranks(self) -> list[int]:
        """Process ids of the agent's children."""
        text = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def close(self) -> None:
        self._lines.close()
        self.connection.close()
        self.agent.kill()
        self.agent.wait()
