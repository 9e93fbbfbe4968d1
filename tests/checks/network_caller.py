"""One node that connects to 90 others on loopback, of whose two ports one refuses; prints what it reports."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any, cast

from seatrial.checks.network.endpoint import Endpoint
from seatrial.checks.network.measure import measure
from seatrial.checks.network.params import Params
from seatrial.protocol.commands import NodeStep
from seatrial.rank.node_context import NodeContext

NUM_NODES = 91
IDENTITY = "00" * 16
UNREADABLE: list[Any] = [
    ["m1"],
    ["m1", "zz", []],
    [5, IDENTITY, []],
    ["m1", IDENTITY, [["data", 7, 5]]],
    ["m1", IDENTITY, [["data", "fe80::1", "5"]]],
    ["m1", IDENTITY, [["data", "10.0.0.1", 65_536]]],
    ["m1", IDENTITY, [["data", "a name", 5]]],
    ["m1", IDENTITY, [["data", "10.0.0.1", 5]] * 40],
    ["m1", IDENTITY, [["x", "127.0.0.1", 1]]],
    ["m1", IDENTITY, [["data", "127.0.0.1", 25]]],
    ["m1", IDENTITY, [["master", "127.0.0.1", 29_500]]],
    ["m1", IDENTITY, [["data", "127.0.0.1", 1]] * 2],
    {"m1": 1},
    ["no place", IDENTITY, []],
    ["no data", IDENTITY, [["name", "127.0.0.1", 40_000]]],
]
"""What a node that lies may share."""
PARAMS = Params(at_once=4, max_failures=8)


def main(closed_role: str) -> None:
    """Call as node 0. ``closed_role``: ``data`` or ``name``."""
    endpoint, events = Endpoint(), list[Any]()
    port = endpoint.run(endpoint.listen("127.0.0.1"), 5.0)
    with socket.socket() as unheard:  # bound, so that nobody else gets this port, and it refuses
        unheard.bind(("127.0.0.1", 0))
        ports = {role: unheard.getsockname()[1] if role == closed_role else port for role in ("data", "name")}
        places = [[role, "127.0.0.1", ports[role]] for role in ports]
        given: dict[str, Any] = {str(n): [f"m{n}", endpoint.identity.hex(), places] for n in range(NUM_NODES)}
        given["0"] = ["m0", endpoint.identity.hex(), [["data", "127.0.0.2", port]]]
        if closed_role == "none":
            given |= {str(node): shared for node, shared in enumerate(UNREADABLE, start=1)}
        step = {"node": 0, "check": "network", "stage": "connect", "gen": 0, "step": 1, "given": given}
        context = NodeContext(step=cast(NodeStep, {**step, "timeout_s": 45.0}), emit=events.append)
        context.kept["endpoint"] = endpoint
        measure(context, PARAMS)
    print(json.dumps(events[0]["facts"][0]["value"]))


if __name__ == "__main__":
    main(sys.argv[1])
