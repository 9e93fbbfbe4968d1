"""In place of Python on a host: takes what it is sent, joins as an agent, starts no rank, and ends when told to."""

from __future__ import annotations

import json
import sys

from seatrial.verdict.events import Source
from seatrial.verdict.handshake import proof
from seatrial.verdict.wire import Decoder, encode


def main() -> None:
    """One node."""
    stream = sys.stdin.buffer
    stream.readline()  # the landing
    told = json.loads(stream.readline())
    stream.read(told["size"])
    node = int(told["env"]["SEATRIAL_NODE_RANK"])

    def say(message: dict[str, object]) -> None:
        sys.stdout.buffer.write(b"".join(encode(message)))
        sys.stdout.buffer.flush()

    say({"kind": "hello", "nonce": "n", "node_rank": node})
    answer = Decoder().line(stream.readline()) or {}
    say({"kind": "proof", "proof": proof(told["env"]["SEATRIAL_TOKEN"], "agent", "n", answer["challenge"], node)})
    for line in stream:
        message = Decoder().line(line) or {}
        if message.get("kind") == "stop":
            break
    say(Source("x", f"node{node}").event("end", told=False))


if __name__ == "__main__":
    main()
