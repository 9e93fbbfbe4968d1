"""What an agent does for a program that is no worker of ours: its environment, a port to meet at, its output."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from seatrial.probe.own_code import environ_without

__all__ = ["Relay", "args_of", "environ_of", "free_port"]

_PLACES = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "nproc_per_node": "LOCAL_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""What ``{rank}`` and so on in the arguments of a script stand for: variables of its environment."""
_PLACE = re.compile(rf"\{{(\{{)?({'|'.join(_PLACES)})\}}(?(1)\}})")
_OURS = (
    "SEATRIAL_CONTROL",
    "SEATRIAL_NODE_RANK",
    "SEATRIAL_NODES_HERE",
    "SEATRIAL_PEER",
    "SEATRIAL_NIC",
    "SEATRIAL_LOCAL_RANK",
    "SEATRIAL_LOCAL_WORLD_SIZE",
    "SEATRIAL_GROUP_RANK",
    "SEATRIAL_GROUP_WORLD_SIZE",
)
"""They say who the agent is; in a program's environment they would say it of the program."""
_BURST_BYTES = 64 << 10
_BYTES_PER_S = 16 << 10
_LINE_BYTES = 2_000
_BAR_S = 1.0


def environ_of(
    environ: Mapping[str, str], start: Mapping[str, Any], *, rank: int, local_rank: int, local_world_size: int
) -> dict[str, str]:
    """The environment of one rank, as torch's ``env://`` reads it. ``start``: the conductor's message."""
    program = start["program"]
    if program["watched"]:
        environ = {**environ, "SEATRIAL_RUN": start["run"], "SEATRIAL_GENERATION": str(start["gen"])}
    else:
        environ = environ_without(environ)
    return {
        **{name: value for name, value in environ.items() if name not in _OURS},
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(program["world_size"]),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        # Where each rank has an agent of its own, the conductor does not know which of them share a machine.
        "GROUP_RANK": environ.get("SEATRIAL_GROUP_RANK", str(program["group_rank"])),
        "GROUP_WORLD_SIZE": environ.get("SEATRIAL_GROUP_WORLD_SIZE", str(program["nnodes"])),
        "MASTER_ADDR": program["master_addr"],
        "MASTER_PORT": str(program["master_port"]),
    }


def args_of(args: Iterable[str], environ: Mapping[str, str], spawns: int) -> list[str]:
    """The arguments of a script with ``{rank}`` and so on replaced; ``{{rank}}`` becomes ``{rank}``.

    ``environ``: of this rank; ``spawns``: processes that the script is to start itself. Raises KeyError with the name
    of a variable that ``environ`` lacks.
    """

    def told(match: re.Match[str]) -> str:
        twice, name = match.groups()
        if twice:
            return match[0][1:-1]
        return str(spawns) if spawns and name == "nproc_per_node" else environ[_PLACES[name]]

    return [_PLACE.sub(told, argument) for argument in args]


def free_port() -> int:
    """A TCP port that nobody listens at now, on any address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class Relay:
    """Passes the output of one rank on, line by line, at a bounded rate; what is too much is counted."""

    def __init__(self, send: Callable[[list[str], int], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``send`` gets lines and how many were left out since it was called last."""
        self._send = send
        self._clock = clock
        self._room = float(_BURST_BYTES)
        self._at = clock()
        self._left_out = 0
        self._bar_at = 0.0
        self._bar = b""

    def take(self, lines: list[bytes], rest: bytes) -> None:
        """Whole lines, and the one that is not ended yet."""
        now = self._clock()
        self._room = min(float(_BURST_BYTES), self._room + (now - self._at) * _BYTES_PER_S)
        self._at = now
        if lines:
            self._bar = b""
        # A progress bar writes over its own line for hours: its last state is told once a second.
        bar = rest.rpartition(b"\r")[0].rpartition(b"\r")[2]
        if bar.strip() and bar != self._bar and now - self._bar_at >= _BAR_S:
            self._bar, self._bar_at = bar, now
            lines = [*lines, bar]
        passed = []
        for line in lines:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES]
            if len(shown) + 1 > self._room:
                self._left_out += 1
                continue
            self._room -= len(shown) + 1
            passed.append(shown.decode(errors="replace"))
        if passed:
            self._tell(passed)

    def close(self) -> None:
        """Say what was left out last."""
        if self._left_out:
            self._tell([])

    def _tell(self, lines: list[str]) -> None:
        self._send(lines, self._left_out)
        self._left_out = 0
