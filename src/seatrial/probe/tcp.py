"""Kernel counters of the TCP sockets of this process."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

_SIZE, _TOTAL_RETRANS, _DATA_SEGS_OUT = 160, 100, 156
"""Bytes of ``struct tcp_info`` that are read, and the offsets of its fields. Kernels before 4.6 have fewer bytes."""
_MEMINFO, _DROPS = 55, 8
"""SO_MEMINFO of asm-generic/socket.h, and the number of SK_MEMINFO_DROPS in linux/sock_diag.h. Since kernel 4.12."""


def segments() -> tuple[int, int]:
    """Return the data segments that all open connections have sent so far, and how many of them were retransmissions.

    Zeros where they are not known.
    """
    sent = retransmitted = 0
    with contextlib.suppress(OSError, AttributeError):  # macOS has neither
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # not a TCP socket, or closed in the meantime
                connection = socket.socket(fileno=int(name))
                try:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
                finally:
                    connection.detach()
                if len(info) == _SIZE:
                    sent += struct.unpack_from("I", info, _DATA_SEGS_OUT)[0]
                    retransmitted += struct.unpack_from("I", info, _TOTAL_RETRANS)[0]
    return sent, retransmitted


@dataclass(frozen=True, slots=True)
class Drops:
    """Packets and calls that the kernel has dropped so far."""

    at_listener: int
    """Packets at one listening socket, whatever the reason: a call that is repeated, since its answer was lost, counts
    too."""
    in_network: int
    """Calls at all listening sockets of this network namespace, since too many waited to be accepted."""

    def has_grown(self, since: Drops) -> bool:
        """Return whether calls were dropped at this listener, since too many waited."""
        return self.at_listener > since.at_listener and self.in_network > since.in_network


def drops(listener: socket.socket) -> Drops:
    """Return what the kernel has dropped so far; zeros where it is not known."""
    at_listener = in_network = 0
    with contextlib.suppress(OSError):
        counters = listener.getsockopt(socket.SOL_SOCKET, _MEMINFO, 64)
        if len(counters) >= 4 * (_DROPS + 1):
            at_listener = int(struct.unpack_from("I", counters, 4 * _DROPS)[0])
    # Two lines of each group: the names, then the numbers.
    with contextlib.suppress(OSError, ValueError), open("/proc/self/net/netstat", encoding="ascii") as file:
        names, numbers = ([*line.split()] for line in file if line.startswith("TcpExt:"))
        in_network = int(numbers[names.index("ListenDrops")])
    return Drops(at_listener, in_network)
