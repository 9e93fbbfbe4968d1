"""The addresses of this node that its peers need, and how each was chosen."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from seatrial.probe import ifname, names, network

_RESOLVE_S = 2.5
"""Time for the node's own name: a dead resolver must not use up the trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAddresses:
    """The addresses of one node."""

    data: str
    """The address that ranks bind to, and tell one another."""
    because: Literal["route", "name", "variable"]
    """It is that of the route to the other nodes, that of the node's own name, or that of the interface in
    GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME."""
    store: str
    """The address of the rendezvous, where this is the first node: that of the route."""
    name: str | None
    """The address that the node's own name leads to here, which libraries use that nobody configures; None: unknown,
    or on every node that node itself."""


def own_addresses(route_address: str, environ: Mapping[str, str], *, gloo: bool) -> OwnAddresses:
    """Return the addresses, by the rules of Gloo (``gloo``) or NCCL."""
    resolved = names.resolve(socket.gethostname(), _RESOLVE_S)
    first = resolved.own or next(iter(resolved.addresses or ()), None)
    name = None if first is None or names.is_loopback(first) else first
    chosen = _of_variable(route_address, environ, gloo=gloo)
    if chosen is not None:
        return OwnAddresses(data=chosen, because="variable", store=route_address, name=name)
    if gloo and name is not None and name == resolved.own:
        because: Literal["route", "name"] = "route" if name == route_address else "name"
        return OwnAddresses(data=name, because=because, store=route_address, name=name)
    return OwnAddresses(data=route_address, because="route", store=route_address, name=name)


def _of_variable(route_address: str, environ: Mapping[str, str], *, gloo: bool) -> str | None:
    value = environ.get("GLOO_SOCKET_IFNAME" if gloo else "NCCL_SOCKET_IFNAME")
    interfaces = network.interfaces()
    if value is None or not ifname.is_set(value) or interfaces is None:
        return None
    taken = ifname.gloo_interfaces(value, interfaces)[0] if gloo else ifname.nccl_interfaces(value, interfaces)
    if not taken or network.interface_to(route_address) in taken:
        return route_address if taken else None
    return network.address_of(taken[0])
