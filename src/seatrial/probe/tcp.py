"""Kernel counters of the TCP sockets of this process."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

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


def dropped_calls(listener: socket.socket) -> int:
    """Return how many packets of new connections the kernel has dropped, since too many waited to be accepted.

    Zero where it is not known.
    """
    with contextlib.suppress(OSError):
        counters = listener.getsockopt(socket.SOL_SOCKET, _MEMINFO, 64)
        if len(counters) >= 4 * (_DROPS + 1):
            return int(struct.unpack_from("I", counters, 4 * _DROPS)[0])
    return 0
