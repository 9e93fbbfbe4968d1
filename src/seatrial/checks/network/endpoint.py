"""The two ends of a connection that only shows that it works: 16 KiB there and back.

The caller begins with a word that it derives from the identity that the node shared with the job, and the listener
answers with another one. No byte of the first word is the other node's choice: the place that it shared may be that of
any service, which takes what it receives for a command. A stranger receives sixteen zeros, and its connection is the
first to be closed when there are too many.
Sixteen kilobytes for sixteen kilobytes: nothing that is sent here is interpreted, apart from two sizes with a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import math
import os
import resource
import secrets
import socket
import struct
import termios
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from seatrial.checks.network.params import PAYLOAD_BYTES
from seatrial.checks.network.waits import Waits, queue_is_empty
from seatrial.probe.tcp import Drops, drops

Failure = Literal[
    "no answer", "refused", "no route", "silent", "another answers", "large to", "large from", "not tried", "busy"
]
"""``silent``: accepted, and then nothing came. ``large to``, ``large from``: only small packets pass in that direction.
``not tried``: this node had no socket or port for it. ``busy``: the other one had too many connections of others."""
Value = TypeVar("Value")

_WORD_BYTES = 16
"""The caller's word, and the listener's."""
_GREETING = b"\0seatrial"
"""The beginning of a caller's word, which no protocol of text takes for a command."""
_UNKNOWN, _BUSY = bytes(_WORD_BYTES), b"busy" * (_WORD_BYTES // 4)
"""Answers to a caller who means another node, and to one whose connection is closed for the sake of newer ones."""
_SIZES = struct.Struct("!II")
"""Bytes to be received, bytes to be sent back."""
_ACK = b"!"
_MAX_VISITORS = 512
"""Connections at once: those of 64 peers, and of strangers."""
_AT_ONCE = 32
"""Connections that are taken from the kernel at once."""
_MOST_WAITING = 4_096
_VISIT_S = 30.0
"""Longer than a caller has patience: one that waited too long says so (``silent``), and not that it was refused."""
_BUSY_PAUSE_S = 0.2
"""Time before a listener that is busy is called again."""
_ATTEMPTS_S = (0.0, 1.3, 2.1)
"""Beginnings of the attempts. With TCP's own repetition after 1 s, five packets must be lost before a node counts as
closed: where 30 % are lost, that happens once in 400 connections."""
_PATIENCE_S = 10.0
"""Time for data on an accepted connection: the peer's process may wait for a core, which is no fault of the network."""
_PACKETS = (8_500, 4_000, 1_450, 1_400, 1_350, 1_280, 1_000, 600)
"""Sizes that are tried, in bytes with headers, where packets of full size are lost."""
_HEADERS = {socket.AF_INET: 52, socket.AF_INET6: 72}
"""Bytes of IP and TCP with the option for timestamps."""
_NO_ROUTE = (
    *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EACCES, errno.EPERM),
    errno.EINVAL,  # a blackhole route
    errno.ENODEV,  # the interface in the address of another node is not here
)
_NOT_TRIED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The result of one connection."""

    failure: Failure | None = None
    """None: it works."""
    passes_bytes: int | None = None
    """The largest packet that passed where those of full size are lost."""


class Endpoint:
    """Listens in a thread, so that peers are answered whatever this node does, and connects from it."""

    def __init__(self) -> None:
        self.identity = secrets.token_bytes(2 * _WORD_BYTES)
        self._loop = asyncio.new_event_loop()
        # The oldest first; callers know the identity.
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._callers: dict[asyncio.StreamWriter, None] = {}
        self._listeners: dict[tuple[str, int], tuple[socket.socket, Drops, Waits]] = {}
        """By address and port: the socket, what the kernel had dropped at first, and how long callers wait."""
        self._gave_up = False
        """Visitors were given up for the sake of newer ones."""
        self._loop.set_exception_handler(_complain)
        threading.Thread(target=self._loop.run_forever, name="network", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Value], timeout_s: float) -> Value:
        """Return the result of a coroutine. Raises TimeoutError when it takes too long."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), self._loop).result()

    async def listen(self, address: str, port: int = 0) -> int | None:
        """Return the port that is listened on at an address; 0: the kernel chooses. None: the port is taken."""
        # The kernel keeps many that wait, and few are taken at once: each takes a descriptor before it is counted.
        try:
            server = await asyncio.start_server(self._answer, address, port, backlog=_AT_ONCE)
        except OSError:
            return None
        own = server.sockets[0]
        with socket.socket(fileno=os.dup(own.fileno())) as same:
            same.listen(_MOST_WAITING)
        chosen: int = own.getsockname()[1]
        self._listeners[address, chosen] = own, drops(own), Waits(queue_is_empty(own))
        return chosen

    def crowded(self) -> set[tuple[str, int]]:
        """Return the addresses and ports where the kernel has dropped connections, since others filled the queue: to
        the callers this node seems closed. All of them if visitors were given up, which one thread does for all."""
        if self._gave_up:
            return {*self._listeners}
        return {place for place, (own, since, _) in self._listeners.items() if drops(own).has_grown(since)}

    def kept_waiting(self) -> set[tuple[str, int]]:
        """Return the addresses and ports where a caller may have waited for long before it had an answer: too many
        others were before it, no descriptor was left for it, or others had the core of this process."""
        return {place for place, (_, _, waits) in self._listeners.items() if waits.were_long()}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) + len(self._callers) >= _most_visitors():
            self._drop_oldest()
        self._strangers[writer] = None
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
                await asyncio.wait_for(self._exchange(reader, writer), _VISIT_S)
        finally:
            self._strangers.pop(writer, None)
            self._callers.pop(writer, None)
            writer.transport.abort() if writer.is_closing() else writer.close()

    def _drop_oldest(self) -> None:
        """Close the oldest connection: of a stranger, else of a caller; the exchange of an honest one takes moments."""
        self._gave_up = True
        visitors = self._strangers or self._callers
        oldest = next(iter(visitors))
        del visitors[oldest]
        oldest.write(_BUSY)
        oldest.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = await reader.readexactly(_WORD_BYTES)
        if writer.is_closing():
            return
        expected, answer = _words(self.identity)
        if not secrets.compare_digest(word, expected):
            writer.write(_UNKNOWN)
            return
        del self._strangers[writer]
        self._callers[writer] = None
        writer.write(answer)
        to_receive, to_send = _SIZES.unpack(await reader.readexactly(_SIZES.size))
        if max(to_receive, to_send) > PAYLOAD_BYTES:
            return
        await reader.readexactly(to_receive)
        writer.write(_ACK)  # by itself: a small packet passes where large ones do not
        writer.write(bytes(to_send))
        await writer.drain()
        await reader.read(1)  # until the peer has it all and closes


def _most_visitors() -> int:
    """Return how many connections are kept at once: at most half the descriptors, as own calls need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MAX_VISITORS, soft // 2) if soft > 0 else _MAX_VISITORS


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write what went wrong in the loop, but nothing of errors that visitors cause: they choose how many."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


def _words(identity: bytes) -> tuple[bytes, bytes]:
    """Return the caller's word and the listener's. Hexadecimal digits: no line ends within the first one."""
    digest = hashlib.sha256(identity)
    return (_GREETING + digest.hexdigest().encode())[:_WORD_BYTES], digest.digest()[-_WORD_BYTES:]


async def reach(
    address: str,
    port: int,
    identity: bytes,
    timeout_s: float,
    *,
    payload_bytes: int = PAYLOAD_BYTES,
    until: float = math.inf,
) -> Reached:
    """Connect to an endpoint and exchange the payload with it.

    ``identity``: that of the node that must answer there. ``until``: when the caller stops, by the clock of the loop:
    shortly before, no other sizes of packets are tried.
    """
    loop = asyncio.get_running_loop()
    busy_until = loop.time() + timeout_s
    while True:
        connected = await _connect(address, port, timeout_s)
        if not isinstance(connected, socket.socket):
            return Reached(failure=connected)
        with connected:
            failure = await _exchange(connected, identity, payload_bytes, timeout_s)
        if failure != "busy" or loop.time() > busy_until:
            break
        await asyncio.sleep(_BUSY_PAUSE_S)
    if failure not in ("large to", "large from") or payload_bytes < PAYLOAD_BYTES:
        return Reached(failure=failure)
    if loop.time() + 2 * timeout_s > until:
        return Reached(failure=failure)
    headers_bytes = _HEADERS[connected.family if connected.family in _HEADERS else socket.AF_INET]
    results = await asyncio.gather(
        *(
            reach(address, port, identity, timeout_s, payload_bytes=packet_bytes - headers_bytes)
            for packet_bytes in _PACKETS
        )
    )
    passed = [size for size, result in zip(_PACKETS, results, strict=True) if result.failure is None]
    return Reached(failure=failure, passes_bytes=max(passed, default=None))


async def _connect(address: str, port: int, timeout_s: float) -> socket.socket | Failure:
    """Return a connection: the first of several attempts, as a lost packet is no closed port."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    host, _, scope = address.partition("%")

    async def attempt(after_s: float) -> socket.socket:
        await asyncio.sleep(after_s)
        place: Any = (host, port)
        if family == socket.AF_INET6:
            place = (host, port, 0, _index_of(scope) if scope else 0)
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, place)
        except BaseException:
            connection.close()
            raise
        return connection

    attempts = [asyncio.ensure_future(attempt(start)) for start in _ATTEMPTS_S if start < timeout_s]
    try:
        done, _ = await asyncio.wait(attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in attempts:
            task.cancel()
    results = await asyncio.gather(*attempts, return_exceptions=True)
    connected = [result for result in results if isinstance(result, socket.socket)]
    for other in connected[1:]:
        other.close()
    if connected:
        return connected[0]
    return next((_failure_of(error) for task in done if (error := task.exception()) is not None), "no answer")


def _index_of(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError as error:  # without a number
        raise OSError(errno.ENODEV, str(error)) from error


def _failure_of(error: BaseException) -> Failure:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED):
        return "refused"
    if number in _NO_ROUTE:
        return "no route"
    if number in _NOT_TRIED:
        return "not tried"
    return "no answer"


async def _exchange(connection: socket.socket, identity: bytes, payload_bytes: int, timeout_s: float) -> Failure | None:
    loop = asyncio.get_running_loop()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    word, answer = _words(identity)
    try:
        await _send(connection, word)
        answered = await asyncio.wait_for(_receive(connection, _WORD_BYTES), _PATIENCE_S)
        if answered == _BUSY:
            return "busy"
        if answered != answer:
            return "another answers" if answered else "refused"
        await _send(connection, _SIZES.pack(payload_bytes, payload_bytes))
        sending = asyncio.ensure_future(loop.sock_sendall(connection, bytes(payload_bytes)))
        try:
            received = await asyncio.wait_for(_receive(connection, len(_ACK)), timeout_s)
        except asyncio.TimeoutError:
            if 0 < payload_bytes <= _unacknowledged(connection):
                return "large to"
            # Some of it came through: a link that loses packets, which other checks measure, or a busy peer.
            received = await asyncio.wait_for(_receive(connection, len(_ACK)), _PATIENCE_S)
        finally:
            sending.cancel()
        if received != _ACK:
            return "busy" if received == _BUSY[:1] else "silent"
        try:
            first = await asyncio.wait_for(_receive(connection, min(1, payload_bytes)), timeout_s)
        except asyncio.TimeoutError:
            return "large from"
        return None if first or not payload_bytes else "silent"
    except asyncio.TimeoutError:
        return "silent"
    except OSError as error:
        return "refused" if error.errno == errno.ECONNRESET else "silent"


async def _send(connection: socket.socket, data: bytes) -> None:
    """Send; a listener that is busy may have closed its end already, and said so, which is then received."""
    with contextlib.suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(connection, data)


async def _receive(connection: socket.socket, count: int) -> bytes:
    """Return this number of bytes, or fewer where the peer closes the connection."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        piece = await loop.sock_recv(connection, count - len(data))
        if not piece:
            break
        data += piece
    return data


def _unacknowledged(connection: socket.socket) -> int:
    """Return the bytes that the peer's kernel has not confirmed."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])
