"""The process of one node: ``python -m seatrial.agent.main``.

It learns everything from its environment: SEATRIAL_CONTROL (host:port of the conductor), SEATRIAL_TOKEN,
SEATRIAL_NODE_RANK, and SEATRIAL_KEEP, a folder where it leaves its events and the output of its ranks (optional).
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from types import FrameType

from seatrial.agent.serve import Agent
from seatrial.errors import RequestError, SeatrialError
from seatrial.probe.cpu import usable_cores

__all__ = ["main"]

_CONNECT_TIMEOUT_S = 30


def main() -> None:
    """Serve one trial. Exit code 0 after an orderly end, 3 when the conductor was lost."""
    try:
        agent = _join()
        stopped_by: list[int] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            stopped_by.append(number)

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        code = agent.serve(stopped_by)
    except SeatrialError as error:
        print(f"seatrial agent: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _join() -> Agent:
    try:
        host, _, port = os.environ["SEATRIAL_CONTROL"].rpartition(":")
        # The token must not be inherited by the ranks, which run whatever torch loads.
        token = os.environ.pop("SEATRIAL_TOKEN")
        node_rank = int(os.environ["SEATRIAL_NODE_RANK"])
        address = (host.strip("[]"), int(port))
    except (KeyError, ValueError) as error:
        raise RequestError(
            f"the environment of an agent is not complete: {error}; it is started by seatrial."
        ) from error
    try:
        connection = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
    except OSError as error:
        raise SeatrialError(
            f"node {node_rank} ({platform.node()}) cannot reach the controller at {address[0]}:{address[1]} ({error})."
        ) from error
    return Agent(
        connection=connection,
        token=token,
        node_rank=node_rank,
        cores=usable_cores(),
        keep=os.environ.get("SEATRIAL_KEEP") or None,
    )


if __name__ == "__main__":
    main()
