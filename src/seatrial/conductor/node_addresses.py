"""Whether an agent connects from the host of its node, as the request, Slurm or the names of pods give it.

Agents that share one token could each prove to be any other node. Its address is what the network says about it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping

from seatrial.protocol.events import THIS_MACHINE


def may_be(connection: socket.socket, node: int, addresses: Mapping[int, Collection[str]]) -> bool:
    """Return whether this connection comes from the node, as far as its addresses are known."""
    allowed = addresses.get(node)
    if allowed is None:
        return True
    # A host reaches itself from the address that it connects to, whatever its name leads to.
    is_here = THIS_MACHINE in allowed and place_of(connection) == THIS_MACHINE
    return is_here or normalized(str(connection.getpeername()[0])) in allowed


def place_of(connection: socket.socket) -> str:
    """Return where an agent connects from: two agents that share a machine have the same place.

    One on the machine of the controller may use any address of it. Empty where a process of this machine hands on what
    comes from others: a sidecar of Istio does so from 127.0.0.6, to the address that they asked for.
    """
    peer, own = (normalized(str(name[0])) for name in (connection.getpeername(), connection.getsockname()))
    if ipaddress.ip_address(peer).is_loopback and not ipaddress.ip_address(own).is_loopback:
        return ""
    return THIS_MACHINE if ipaddress.ip_address(peer).is_loopback or peer == own else peer


def source_of(address: str) -> str:
    """Return from where a connection comes: a host can use any address of its network of IPv6, or of its loopback."""
    number = _number(address)  # parsed once: a neighbor can have us ask this for each of thousands of connections
    if number.is_loopback:
        return "loopback"
    return f"network {int(number) >> 64:x}" if number.version == 6 else str(number)


def surely_another(address: str, node: int, known: Mapping[int, Collection[str]]) -> list[int]:
    """Return the nodes at ``address`` if the node certainly is none of them; empty in doubt.

    ``known``: the addresses of nodes, not necessarily all.
    """
    if node not in known or address in known[node]:
        return []
    return sorted(other for other, addresses in known.items() if address in addresses)


def is_unknown(address: str, place: str, node: int, known: Mapping[int, Collection[str]]) -> bool:
    """Return whether nothing tells that a node, or which one, is at ``address``. ``place``: as of ``place_of``."""
    if node not in known:  # at the address of another one it may be that one
        return True
    return place not in known[node] and not any(address in addresses for addresses in known.values())


def normalized(address: str) -> str:
    """Return an address as the kernel writes it: without a zone, and IPv4 not as a part of IPv6."""
    return str(_number(address))


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    number = ipaddress.ip_address(address.partition("%")[0])
    return getattr(number, "ipv4_mapped", None) or number
