"""The store of a hostile first rank, as one other rank sees it: true bytes pass through, but for one lie."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

Lie = Callable[[bytes], bytes]
"""From what the store answers to what the rank gets."""

_BEFORE_A_PORT = struct.pack("=QH", 136, socket.AF_INET)
"""The length of an address of Gloo, and its family."""
_CLOSED = struct.pack("!H", 9)
_NO_LONGER = b"\0"
"""The answer to a rank that waits for a key, once there is one."""


def false_port(answer: bytes) -> bytes:
    """Put a port where nobody listens into each address."""
    at = answer.find(_BEFORE_A_PORT) + len(_BEFORE_A_PORT)
    return answer if at < len(_BEFORE_A_PORT) else answer[:at] + _CLOSED + answer[at + 2 :]


def late_once(seconds: float) -> Lie:
    """Return the lie that keeps the beginning of the first turn from the rank for a while."""
    seen = list[bytes]()

    def lie(answer: bytes) -> bytes:
        if answer == _NO_LONGER and not seen:
            seen.append(answer)
            time.sleep(seconds)
        return answer

    return lie


@contextlib.contextmanager
def lying_store(port: int, lie: Lie) -> Iterator[int]:
    """Yield the port of a store that passes on what the one at ``port`` answers, to one rank."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(_running(lambda ends: _serve(server, port, lie, ends)))
        yield server.getsockname()[1]


@contextlib.contextmanager
def _running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have a thread do the work, which ends with its argument."""
    ends = threading.Event()
    thread = threading.Thread(target=work, args=(ends,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(timeout=20)


def _serve(server: socket.socket, port: int, lie: Lie, ends: threading.Event) -> None:
    """Pass on what comes on each connection: a rank has a short one first, to see whether the store is there."""
    pairs: list[tuple[socket.socket, socket.socket]] = []
    while not ends.is_set():
        ready, _, _ = select.select([server, *(end for pair in pairs for end in pair)], [], [], 0.1)
        if server in ready:
            client = server.accept()[0]
            try:
                pairs.append((client, socket.create_connection(("127.0.0.1", port))))
            except ConnectionRefusedError:  # the rank comes again
                client.close()
                continue
            for end in pairs[-1]:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in list(pairs):
            client, store = pair
            for source, target in ((client, store), (store, client)):
                if source in ready and not _pass(source, target, lie if source is store else lambda answer: answer):
                    pairs.remove(pair)
                    client.close()
                    store.close()
                    break
    for end in (end for pair in pairs for end in pair):
        end.close()


def _pass(source: socket.socket, target: socket.socket, lie: Lie) -> bool:
    with contextlib.suppress(OSError):
        data = source.recv(1 << 16)
        target.sendall(lie(data))
        return bool(data)
    return False


@contextlib.contextmanager
def poisoned(port: int, pair: str) -> Iterator[None]:
    """Have a neighbor overwrite the addresses of a pair, such as ``1-2``, in the store: form and lengths are right."""
    address = struct.pack("=H", socket.AF_INET) + _CLOSED + bytes([127, 0, 0, 1]) + bytes(128)
    value = struct.pack("=Q2sQ", 2, b"vm", 136) + address + bytes(16)

    def poison(ends: threading.Event) -> None:
        store: Any = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=30))
        keys = [f"links/round 1/nodes/{pair}/0//cpu//0/{number}" for number in (0, 1)]
        with contextlib.suppress(RuntimeError):  # the store ends with its rank
            while not ends.wait(3e-4):
                store.multi_set(keys, [value.decode("latin-1")] * 2)

    with _running(poison):
        yield
