"""A double of Python on a host: receives the bundle, joins as an agent, starts no rank, and ends on a command."""

from __future__ import annotations

import json
import sys

from seatrial.protocol.events import EndEvent, Source
from seatrial.protocol.handshake import proof
from seatrial.protocol.wire import Decoder, encode


def main() -> None:
    """One node."""
    stream = sys.stdin.buffer
    stream.readline()  # the landing
    payload = json.loads(stream.readline())
    stream.read(payload["size"])
    node = int(payload["env"]["SEATRIAL_NODE_RANK"])

    def say(message: dict[str, object]) -> None:
        sys.stdout.buffer.write(b"".join(encode(message)))
        sys.stdout.buffer.flush()

    say({"kind": "hello", "nonce": "n", "node_rank": node})
    answer = Decoder().line(stream.readline()) or {}
    say({"kind": "proof", "proof": proof(payload["env"]["SEATRIAL_TOKEN"], "agent", "n", answer["challenge"], node)})
    for line in stream:
        message = Decoder().line(line) or {}
        if message.get("kind") == "stop":
            break
    say(Source("x", f"node{node}").event(EndEvent(kind="end")))


if __name__ == "__main__":
    main()
