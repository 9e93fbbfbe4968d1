"""The proof by which a rank of another host knows rank 0, before it uses that one's store.

Others may listen at an address that leads elsewhere from there. torch's client of a store waits without end for a
listener that accepts it and says nothing, and believes one that answers. So rank 0 first shows here what it has told
over MPI.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

_WAITING = 1024
"""Connections that the kernel keeps until they are answered: many ranks come at once."""
_TRY_S = 5.0
_PAUSE_S = 0.2


@contextlib.contextmanager
def answering(proof: str) -> Iterator[int]:
    """Answer each connection with the proof within this context, whoever asks; it begins with the port."""
    listening, over = _everywhere(), threading.Event()
    port: int = listening.getsockname()[1]
    asked = (listening, proof.encode() + b"\n", over)
    threading.Thread(target=_answer, args=asked, name="seatrial MPI proof", daemon=True).start()
    try:
        yield port
    finally:
        over.set()


def first_with_proof(proof: str, addresses: Sequence[str], port: int, timeout_s: float) -> str:
    """Return the first of these addresses at which somebody shows the proof; empty if nobody does within this time."""
    line = proof.encode() + b"\n"
    until = time.monotonic() + timeout_s
    # Each address is tried twice, also where strangers keep the rank at all others.
    longest_s = min(_TRY_S, timeout_s / (2 * max(1, len(addresses))))
    while addresses and time.monotonic() < until:
        for address in addresses:
            if _said(address, port, len(line), min(until, time.monotonic() + longest_s)) == line:
                return address
        time.sleep(_PAUSE_S)
    return ""


def _everywhere() -> socket.socket:
    """Return a socket that listens at all addresses of this host, at a port that is free."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=_WAITING, dualstack_ipv6=both)


def _answer(listening: socket.socket, line: bytes, over: threading.Event) -> None:
    with listening:
        listening.settimeout(_PAUSE_S)
        while not over.is_set():
            try:
                caller, _ = listening.accept()
            except TimeoutError:
                continue
            except OSError:  # such as one file too many
                over.wait(_PAUSE_S)
                continue
            with contextlib.suppress(OSError), caller:
                caller.setblocking(False)
                caller.send(line)


def _said(address: str, port: int, size: int, until: float) -> bytes:
    """Return the first bytes that somebody says there, at most ``size`` and until this time."""
    said = b""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as way:
        way.settimeout(max(0.001, until - time.monotonic()))
        way.connect((address, port))
        while len(said) < size and (left_s := until - time.monotonic()) > 0:
            way.settimeout(left_s)
            if not (more := way.recv(size - len(said))):
                break
            said += more
    return said
