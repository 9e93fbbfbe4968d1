"""Addresses of this host's name, as libraries resolve it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.resolver import NoAnswerError, query


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
    found: Sequence[tuple[Any, ...]]
    try:
        found = query(name, None, timeout_s=timeout_s)
    except NoAnswerError:
        return Resolved(name=name, addresses=None, own=None)
    except OSError:
        found = ()
    own = next((str(address[0]) for family, *_, address in found if _is_ours(family, address)), None)
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
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
