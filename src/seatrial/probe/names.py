"""Addresses of this host's name, as libraries resolve it. A resolver that hangs does not block the caller."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result for one name."""

    name: str
    addresses: tuple[str, ...] | None
    """In the resolver's order; empty: the name is unknown; None: no answer in time."""
    own: str | None
    """The first address that belongs to this host, which Gloo takes; None: there is none."""


def resolve(name: str, timeout_s: float) -> Resolved:
    """Query the system's resolver, and try which of the addresses can be bound."""
    answers: list[list[tuple[int, tuple[object, ...]]]] = []

    def query() -> None:
        addresses: list[tuple[int, tuple[object, ...]]] = []
        # A label that is empty or too long raises UnicodeError.
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                addresses.append((family, address))
        answers.append(addresses)

    # The thread may outlive us: a resolver cannot be interrupted.
    thread = threading.Thread(target=query, name="resolver", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        return Resolved(name=name, addresses=None, own=None)
    own = next((str(address[0]) for family, address in answers[0] if _is_ours(family, address)), None)
    addresses = tuple(dict.fromkeys(str(address[0]) for _, address in answers[0]))
    return Resolved(name=name, addresses=addresses, own=own)


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except (OSError, OverflowError):
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether a numeric address never leaves its host."""
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(number, "ipv4_mapped", None)
    return bool((mapped or number).is_loopback)
