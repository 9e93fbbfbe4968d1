"""Kernel counters of the TCP sockets of this process."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_SIZE, _TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS = 220, 100, 156, 216
"""Bytes of ``struct tcp_info`` that are read, and the offsets of its fields."""
_LEAST_SIZE = 160
"""Kernels before 4.6 have fewer bytes, and those before 4.19 no number of segments that arrived twice."""
_MEMINFO, _DROPS = 55, 8
"""SO_MEMINFO of asm-generic/socket.h, and the number of SK_MEMINFO_DROPS in linux/sock_diag.h. Since kernel 4.12."""
_TOO_MANY = ("ListenOverflows", "TCPReqQFullDrop")
"""Counters of calls for which a queue was full. ListenDrops, beside them, has those without a route back, too."""
_ALL_DROPPED = "ListenDrops"
_SYN_COOKIES = "/proc/sys/net/ipv4/tcp_syncookies"
"""Without SYN cookies the kernel drops calls once three quarters of tcp_max_syn_backlog wait for their answer, and only
ListenDrops counts those."""

_TABLES = (
    ("/proc/self/net/stat/nf_conntrack", "drop"),
    ("/proc/self/net/stat/arp_cache", "table_fulls"),
    ("/proc/self/net/stat/ndisc_cache", "table_fulls"),
)
"""The tables of connections and of neighbors, and what counts packets for which they had no place: a line of names, and
one of hexadecimal numbers for each core. The first one is there in kernels that track connections, the others, of which
a kernel has one for all its network namespaces, in the first of these."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """The TCP sockets that this process has open."""

    ports: frozenset[int]
    """Local ports at which it listens."""
    segments: Mapping[int, tuple[int, int, int]]
    """Connection (inode) -> data segments that it has sent so far, how many of them again, and how many the other end
    says to have twice (D-SACK, RFC 2883): what was late, or came in another order, was sent again and not lost."""


def sockets(besides: Sockets | None = None) -> Sockets:
    """Return the TCP sockets that this process has open; none where they are not known.

    ``besides``: those of then are left out, and connections that somebody made to a port of then.
    """
    ports, segments = set[int](), dict[int, tuple[int, int, int]]()
    with contextlib.suppress(OSError, AttributeError):  # macOS has neither
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # not a TCP socket, or closed in the meantime
                inode = os.fstat(int(name)).st_ino
                connection = socket.socket(fileno=int(name))
                try:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
                    port = connection.getsockname()[1]
                    listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                finally:
                    connection.detach()
                if listens:
                    ports.add(port)
                elif besides and (inode in besides.segments or port in besides.ports):
                    continue
                elif len(info) >= _LEAST_SIZE:
                    whole, places = info.ljust(_SIZE, b"\0"), (_DATA_SEGS_OUT, _TOTAL_RETRANS, _DSACK_DUPS)
                    sent, resent, twice = (struct.unpack_from("I", whole, place)[0] for place in places)
                    segments[inode] = sent, resent, twice
    return Sockets(frozenset(ports), segments)


def segments_between(before: Sockets, after: Sockets) -> tuple[int, int]:
    """Return the data segments that the connections of ``after`` have sent since, and how many again as they were lost.

    The kernel counts repeated answers to a call among the retransmissions of its connection: strangers, who are sent no
    data, add none. It takes the word of the other end for what that has twice, so more than was sent again is no word.
    """
    all_sent = all_lost = 0
    for inode, now in after.segments.items():
        then = before.segments.get(inode, (0, 0, 0))
        sent, resent, twice = (count - before_then for count, before_then in zip(now, then, strict=True))
        all_sent += sent
        all_lost += min(resent - twice if 0 <= twice <= resent else resent, sent)
    return all_sent, all_lost


@dataclass(frozen=True, slots=True)
class Drops:
    """Packets and calls that the kernel has dropped so far."""

    at_listener: int
    """Packets at one listening socket, whatever the reason: a call that is repeated, since its answer was lost, counts
    too."""
    in_network: int
    """Calls at all listening sockets of this network namespace, since too many waited. Without SYN cookies also those
    that were dropped for another reason: a node whose answers are lost may then seem crowded, and nobody is named."""
    unplaced: int
    """What ``unplaced`` returns."""

    def has_grown(self, since: Drops) -> bool:
        """Return whether calls were dropped at this listener, since too many waited or a table had no place."""
        is_full = self.at_listener > since.at_listener and self.in_network > since.in_network
        return is_full or self.unplaced > since.unplaced


def drops(listener: socket.socket) -> Drops:
    """Return what the kernel has dropped so far; zeros where it is not known."""
    at_listener = in_network = 0
    with contextlib.suppress(OSError):
        counters = listener.getsockopt(socket.SOL_SOCKET, _MEMINFO, 64)
        if len(counters) >= 4 * (_DROPS + 1):
            at_listener = int(struct.unpack_from("I", counters, 4 * _DROPS)[0])
    counted = _TOO_MANY if _sends_cookies() else (_ALL_DROPPED,)
    # Two lines of each group: the names, then the numbers.
    with contextlib.suppress(OSError, ValueError), open("/proc/self/net/netstat", encoding="ascii") as file:
        names, numbers = ([*line.split()] for line in file if line.startswith("TcpExt:"))
        in_network = sum(int(numbers[names.index(name)]) for name in counted if name in names)
    return Drops(at_listener, in_network, unplaced())


def unplaced() -> int:
    """Return how many packets the kernel has dropped so far since a table of it had no place for another connection
    (conntrack) or another neighbor (ARP, NDP): any user of a machine can fill these. 0 where that is not known.
    """
    dropped = 0
    for path, counted in _TABLES:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            names, *by_core = (line.split() for line in file)
            dropped += sum(int(numbers[names.index(counted)], 16) for numbers in by_core)
    return dropped


def _sends_cookies() -> bool:
    """Return whether the kernel answers calls that it cannot keep by SYN cookies; no where that is not known."""
    with contextlib.suppress(OSError), open(_SYN_COOKIES, encoding="ascii") as file:
        return file.read().strip() in ("1", "2")
    return False
