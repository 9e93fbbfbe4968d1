"""The only place that asks the resolver of this host for the addresses of a name: each question has a limit.

A name server can keep a question open for ever: it answers that the answer is too large for UDP, and glibc then asks
over TCP, where it waits without a timeout. Meanwhile Python runs no handler of a signal in the thread that asks.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any


class NoAnswerError(OSError):
    """The resolver has not answered in time."""


def query(
    name: str, port: int | None, *, timeout_s: float, kind: int = socket.SOCK_STREAM, flags: int = 0
) -> list[tuple[Any, ...]]:
    """Return the rows of ``socket.getaddrinfo``: family, kind, protocol, name and address. A signal interrupts it.

    Raises NoAnswerError after ``timeout_s``, and OSError for a name that is unknown or none at all, or where this user
    may start no other thread.
    """
    answers: queue.SimpleQueue[list[tuple[Any, ...]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put([*socket.getaddrinfo(name, port, type=kind, flags=flags)])
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # a label that is empty or too long
            answers.put(OSError(f"{name!a} is no host name: {error}"))

    # Nothing can interrupt the thread: it ends with the process at the latest.
    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    try:
        asking.start()
    except RuntimeError as error:  # the limit of the user or the container
        raise OSError(f"nothing can ask for {name!a}: {error}") from None
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise NoAnswerError(f"the resolver of this host has not answered for {timeout_s:.3g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
