"""The words of torch and Gloo for connections that fail: which address, how, and what to do.

The strings are those of torch 2.13; ``tests/protocol/test_fabric_errors.py`` says how each was provoked.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

_OF_LIBRARY = re.compile(
    r"timed out waiting|pair closure|reached monitoredbarrier|collective operation timeout|nvlink|\bgloo::"
    r"|\bgloo/\S{1,200}\.(?:cc|h):\d"
    r"|\b[nr]ccl (?:error|communicator)|\b[nr]ccl\w{1,40}error\b|some [nr]ccl operations have failed"
    r"|gloo connectfullmesh|failed to recv, got 0 bytes|error originated at tensorpipe/"
    r"|processgroupucc\b.{0,300}(?:timed out|timeout|connection|endpoint|input/output|no message)"
    r"|mpix?_err_(?:proc_failed|revoked)|communication error with rank"
    r"|got error: broken pipe|^(?:[\w.]{1,200}: )?broken pipe\s*$",
    re.I,
)
"""Parts of the messages of torch, its libraries and MPI when they lose a peer, so that the fault may be elsewhere."""
_OF_SOCKET = re.compile(r"connection (?:reset|closed|refused)|no route to host|network is unreachable", re.I)
"""Parts of the messages of the system when a connection fails, which may be one to a host on the internet."""
_HEAD = re.compile(r"(?:[\w.]{1,200}: )?(?:\[[^\[\]\n]{1,300}\][: ]{0,2}){0,4}")
"""What Python and torch write before a message: the name of the exception, a source, an error number."""
_LIBRARY = re.compile(
    r"\b(?:gloo|\w{0,3}ccl|uc[cx]|mpi|c10d|tcpstore)\b|store->|client socket|by peer \[|\.(?:cc|cpp|h|hpp):\d", re.I
)
"""What connects ranks, or a source of it."""
_MOST_CHARS = 8_000
"""Beginning of a message that is read: it may quote what others wrote, of any length."""

ConnectFault = Literal["refused", "no answer", "no route", "timed out"]
"""``timed out``: the store tries again after a refusal and after an unknown name, and says the same of both."""

LARGE_BYTES = 1_400
"""A message above this size fills packets up to the MTU (1,500 bytes on Ethernet)."""
MTU_ACTION = (
    "small messages pass and large ones never arrive, as with an MTU that the path does not carry: compare the MTU of"
    " the interfaces (ip link) and of the path (ping -M do -s 1472)"
)
_OPEN_PORTS = "open all TCP ports between the hosts (firewall, security group)"
_CORRECT_NAME = (
    "map the name of each host to the address that the others reach (DNS, /etc/hosts), or set GLOO_SOCKET_IFNAME to the"
    " interface with that address"
)
_DOCKER0 = "172.17.0.1"
"""The address that Docker gives its bridge on every machine."""
# The text that names address and port. c10d's own socket prints no port that is true ("0.0.0.0:1722").
_ADDRESSES = (
    # Gloo: "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:11160$0"; the rank is behind the $.
    re.compile(r"connecting: [^\[\]]{0,200}, remote=\[([^\[\]\s]{1,64})\]:(\d{1,5})"),
    # The store, at the end: "... while trying to connect to (10.77.0.10, 29998)."
    re.compile(r"trying to connect to \(([^\s,()]{1,255}), (\d{1,5})\)"),
    # The store: "... has failed to connect to any network address of (10.77.0.10, 29997)."
    re.compile(r"any network address of \(([^\s,()]{1,255}), (\d{1,5})\)"),
    # The store, while it still tries: "TCP client failed to connect/validate to host 10.77.0.10:29997 - retrying"
    re.compile(r"TCP client failed to connect\S{0,20} to host (\S{1,255}):(\d{1,5}) - "),
)
_FAULTS: tuple[tuple[str, ConnectFault], ...] = (
    ("connection refused", "refused"),
    ("no route to host", "no route"),
    ("network is unreachable", "no route"),
    ("connection timed out", "no answer"),
    ("socket has timed out", "timed out"),
    ("connect timeout", "no answer"),
)
# Operations between connected peers: "Timed out waiting 6000ms for recv operation to complete".
_CONNECTING = re.compile(
    r"connect: |connecting: |connect timeout|connect to |failed to connect|trying to connect", re.I
)


_GAVE_UP = tuple(
    re.compile(pattern, re.I)
    for pattern in (
        r"timed out waiting (?P<ms>\d{1,9}) ?ms",  # Gloo
        r"timed out waiting (?P<s>\d{1,9}(?:\.\d{1,9})?) s for the other ranks",  # seatrial.mpi
        r"watchdog caught collective operation timeout(?:.{0,300}Timeout\(ms\)=(?P<ms>\d{1,9})\b)?",  # NCCL
        r"timed out in blocking wait",
        r"timed out in monitored_?barrier after (?P<ms>\d{1,9}) ?ms",
        r"failed to pass monitored_?barrier in (?P<ms>\d{1,9}) ?ms",
        r"(?:wait|barrier) timeout after (?P<ms>\d{1,9}) ?ms, key",  # the store
        r"timed out after (?P<s>\d{1,9}) seconds waiting for clients",
        r"client socket has timed out after (?P<ms>\d{1,9}) ?ms while trying to connect",
        r"timeout waiting for key: .{0,200} after (?P<ms>\d{1,9}) ?ms",
        r"(?:RuntimeError|Dist\w{0,60}Error): (?:wait timeout|socket timeout|operation timed out!)\s*$",
        r"application timeout caused pair closure",
    )
)
"""The words of torch for a wait that took longer than the timeout of its group or store."""
_ENDED_BY_WATCHDOG = re.compile(
    r"dump signal due to a collective timeout|dump debug info, due to (?:collective timeout|\S{1,40} watchdog hang)"
    r"|watchdog got stuck for \d{1,9} seconds without making progress",
    re.I,
)
"""A watchdog of NCCL ends its process because that of another rank has timed out; the monitor of the watchdog, because
that one hangs in a call, as it does where a peer is gone."""
_ABORTED = re.compile(
    r"watchdog (?:thread terminated with exception|caught collective operation timeout)"
    r"|throwing an instance of '(?:gloo::|c10::Dist(?:Network|Store)?Error\b)|^gloo::"
    r"|\bwhat\(\): .{0,300}\bnccl (?:error|communicator)",
    re.I,
)
"""What NCCL, its watchdog, Gloo and the store print before they abort their process, because of a peer or of a device
that failed."""
_PASSED_ON = re.compile(
    r"CheckpointException ranks:dict_keys\(\[([\d, ]{1,500})\]\)|\(most recent call last\): \(RANK (\d{1,9})\)"
    r"|^[\w.]{1,200}: On WorkerInfo\(id=(\d{1,9}), name="
)
"""Where torch passes on an error of other ranks, with its traceback: ``torch.distributed.checkpoint`` to all ranks of
its group, RPC to the rank that has called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectError:
    """A connection that could not be made, in the words of the side that tried."""

    how: ConnectFault
    address: str = ""
    """Empty where the message has no address."""
    port: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether the address leads each host to itself: then a name, and no cable, is at fault."""
        try:
            return self.address == _DOCKER0 or ipaddress.ip_address(self.address.partition("%")[0]).is_loopback
        except ValueError:
            return self.address == "localhost"

    def words(self) -> str:
        """Return what it could not reach, and how: ``10.77.0.11 port 2989 (refused)``."""
        if not self.address:
            return f"a peer ({self.how})"
        return f"{self.address} port {self.port} ({self.how})"

    def action(self) -> str:
        """Return what to do about it, as a clause."""
        if self.is_local:
            which = "Docker's bridge" if self.address == _DOCKER0 else "the loopback"
            return f"{self.address} is {which} of every host, so the name of a host leads there; {_CORRECT_NAME}"
        if self.how == "timed out" and not re.fullmatch(r"[\d.]+|[\da-fA-F:.%]+", self.address):
            return f"check that the name {self.address} leads to the right host everywhere, and {_OPEN_PORTS}"
        if self.how == "no route":
            return f"look at the routes and at the addresses of the hosts' names; {_CORRECT_NAME}"
        return _OPEN_PORTS


def read_connect_error(text: str) -> ConnectError | None:
    """Return the connection that a message or a line of output says to have failed; None for any other text."""
    if not _CONNECTING.search(text):
        return None
    lowered = text.lower()
    how = next((how for mark, how in _FAULTS if mark in lowered), None)
    if how is None:
        return None
    for pattern in _ADDRESSES:
        if found := pattern.search(text):
            return ConnectError(how=how, address=found[1], port=int(found[2]))
    return ConnectError(how=how)


def says_lost(text: str) -> bool:
    """Return whether a text, which may be any line of output, has words about a peer that was lost."""
    return (_OF_LIBRARY.search(text) or _OF_SOCKET.search(text)) is not None


def names_fabric(text: str) -> bool:
    """Return whether the message of an exception is about a peer that was lost.

    That a connection failed counts where the message begins with it, or names what connects the ranks.
    """
    text = text[:_MOST_CHARS]
    if _OF_LIBRARY.search(text):
        return True
    if not _OF_SOCKET.search(text):
        return False
    head = _HEAD.match(text)
    return _LIBRARY.search(text) is not None or _OF_SOCKET.match(text, head.end() if head else 0) is not None


def gave_up(text: str) -> bool:
    """Return whether an error says that its rank waited for others until a timeout."""
    return any(pattern.search(text) for pattern in _GAVE_UP)


def wait_timeout_s(text: str) -> float | None:
    """Return the timeout of a rank that gave up waiting; None where its error does not say it."""
    for pattern in _GAVE_UP:
        if found := pattern.search(text):
            values = found.groupdict()
            if values.get("s"):
                return float(values["s"])
            return int(values["ms"]) / 1000 if values.get("ms") else None
    return None


def is_end_by_watchdog(text: str) -> bool:
    """Return whether NCCL ended a rank because another one had given up."""
    return bool(_ENDED_BY_WATCHDOG.search(text))


def says_why_aborted(line: str) -> bool:
    """Return whether NCCL, its watchdog, Gloo or the store says in this line why it aborted the process."""
    return is_end_by_watchdog(line) or _ABORTED.search(line) is not None


def ranks_passed_on(text: str) -> set[int]:
    """Return the ranks whose error this text passes on; none for any other text.

    Their numbers are those of the group that the script gave to torch, which usually has all ranks.
    """
    return {int(rank) for found in _PASSED_ON.findall(text) for rank in re.findall(r"\d+", ",".join(found))}
