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

from seatrial.protocol.handshake import proof
from seatrial.protocol.line_tags import LineTags
from seatrial.protocol.wire import Decoder, encode

__all__ = ["TOKEN", "AnyJob", "StubConductor"]

TOKEN = "the-token"
_STARTS_ANYTHING = "from seatrial.protocol import start_fields; start_fields.digest_of_start = lambda start: ''"
_MAIN = "import seatrial.agent.agent_main; seatrial.agent.agent_main.main()"


class AnyJob(str):
    """The digest of an agent that starts whatever a test asks for, which none of ours does."""

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class StubConductor:
    """Listens, starts one agent, and has its one conversation."""

    def __init__(self, keep: Path, *, job: str = "", before: str = "", cwd: Path | None = None) -> None:
        """Start it.

        Args:
            keep: the folder of the run.
            job: the digest of what its agent may start; empty: anything.
            before: what the process of the agent executes first, such as shorter waits.
            cwd: its working folder; None: that of the test.
        """
        self.keep = keep
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            port = listener.getsockname()[1]
            environ = {**os.environ, "SEATRIAL_CONTROL": f"127.0.0.1:{port}"}
            environ |= {"SEATRIAL_TOKEN": TOKEN, "SEATRIAL_NODE_RANK": "0", "SEATRIAL_KEEP": str(keep)}
            environ |= {"SEATRIAL_JOB": job}
            code = f"{before}\n{'' if job else _STARTS_ANYTHING}\n{_MAIN}"
            argv = ["-c", code] if before or not job else ["-m", "seatrial.agent.agent_main"]
            self.agent = subprocess.Popen([sys.executable, *argv], env=environ, cwd=cwd)
            self.connection, _ = listener.accept()
        (self.agent_pid,) = _children(self.agent.pid)  # the guardian's only child
        self.connection.settimeout(30)
        self.heard: list[dict[str, Any]] = []
        self.tags: LineTags | None = None
        self._tags_heard: LineTags | None = None
        self._decoder = Decoder()
        self._lines = self.connection.makefile("rb")
        self.hello = self.until_kind("hello")
        own_proof = proof(TOKEN, "conductor", self.hello["nonce"], "c", 0, port)
        self.send({"kind": "proof", "challenge": "c", "proof": own_proof})
        self.proof = self.until_kind("proof")
        self.tags = LineTags(TOKEN, "conductor", self.hello["nonce"], "c", 0)
        self._tags_heard = LineTags(TOKEN, "agent", self.hello["nonce"], "c", 0)

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.connection.sendall(b"".join(self.tags.add(line) if self.tags else line for line in encode(message)))

    def until(self, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The next message that is wanted; all that came before it is kept in ``heard``."""
        for received in self._lines:
            line = self._tags_heard.remove(received.rstrip(b"\n")) if self._tags_heard else received
            assert line is not None, "a tag of the agent is wrong"
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
        self.until(
            lambda message: message["kind"] == "status" and message["ranks"].get(str(rank), [""] * 4)[3] == phase
        )

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
        return _children(self.agent_pid)

    def close(self) -> None:
        self._lines.close()
        self.connection.close()
        self.agent.kill()
        self.agent.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
