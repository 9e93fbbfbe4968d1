"""Whether an agent connects from the host that the request names for its node.

All agents of mpirun share one token, so each of them could prove to be any other node. Its address is what the network
says about it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping

THIS_MACHINE = "this machine"
"""Stands for all addresses of the machine of the controller."""


def may_be(connection: socket.socket, node: int, addresses: Mapping[int, Collection[str]]) -> bool:
    """Return whether this connection comes from the node, as far as its addresses are known."""
    allowed = addresses.get(node)
    if allowed is None:
        return True
    peer = normalized(str(connection.getpeername()[0]))
    # A host reaches itself from the address that it connects to, whatever its name leads to.
    here = ipaddress.ip_address(peer).is_loopback or peer == normalized(str(connection.getsockname()[0]))
    return peer in allowed or (here and THIS_MACHINE in allowed)


def normalized(address: str) -> str:
    """Return an address as the kernel writes it: without a zone, and IPv4 not as a part of IPv6."""
    number = ipaddress.ip_address(address.partition("%")[0])
    return str(getattr(number, "ipv4_mapped", None) or number)
