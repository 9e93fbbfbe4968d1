"""TCP ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a TCP port that no process listens on now, on any address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
