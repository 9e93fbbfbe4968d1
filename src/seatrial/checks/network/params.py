"""Parameters of the network check."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 4_096
"""Above it a node connects to the nodes at distance 1, 2, 4, 8, ... only: all pairs would be 17 million connections."""
PAYLOAD_BYTES = 1 << 14
"""Bytes there and back on each connection: more than one packet at any MTU, and no load even from 64 peers at once."""

COUNT = "count"
"""The last stage, in which nodes say which of their ports were crowded."""
NIC = "nic:"
"""Begins the role of the address of another interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Deadlines and limits of the connections between nodes."""

    timeout_s: float = 45.0
    """Deadline of each of the three stages, seconds: 2,048 nodes take 15 s, and closed ones a few timeouts more."""
    connect_timeout_s: float = 3.0
    """Time for a connection to be accepted, seconds; in it a lost packet is sent again four times."""
    at_once: int = 64
    """Connections that a node opens at once."""
    max_failures: int = 64
    """Failures of one kind after which a node connects to no further node: they show the cause already."""

    def __post_init__(self) -> None:
        if self.connect_timeout_s <= 0 or self.at_once < 1 or self.max_failures < 1:
            raise ValueError("connect_timeout_s must be above 0, at_once and max_failures at least 1")
