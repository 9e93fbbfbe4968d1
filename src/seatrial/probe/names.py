"""What the name of this host resolves to, as libraries that go by it see it. A resolver that hangs holds nobody up."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass

__all__ = ["Resolved", "is_loopback", "resolve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a name stands for."""

    name: str
    addresses: tuple[str, ...] | None
    """In the resolver's order; empty: the name is unknown; None: no answer in time."""
    own: str | None
    """The first one that is an address of this host: what Gloo takes. None: there is none."""


def resolve(name: str, timeout_s: float) -> Resolved:
    """Ask the system's resolver, and try which of its answers can be bound to."""
    answer: list[list[tuple[int, tuple[object, ...]]]] = []

    def ask() -> None:
        found: list[tuple[int, tuple[object, ...]]] = []
        # A label that is empty or too long is no OSError.
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                found.append((family, address))
        answer.append(found)

    # The thread may outlive us: a resolver cannot be interrupted.
    thread = threading.Thread(target=ask, name="resolver", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answer:
        return Resolved(name=name, addresses=None, own=None)
    own = next((str(address[0]) for family, address in answer[0] if _is_ours(family, address)), None)
    addresses = tuple(dict.fromkeys(str(address[0]) for _, address in answer[0]))
    return Resolved(name=name, addresses=addresses, own=own)


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except (OSError, OverflowError):
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address in digits never leaves its host."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
