"""Measurement of the network check on one node: listen, connect to the other nodes, then count what was dropped."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seatrial.checks.network.addresses import own_addresses
from seatrial.checks.network.endpoint import Endpoint, Failure, Reached, reach
from seatrial.checks.network.observations import is_place, machine_at
from seatrial.checks.network.params import COUNT, MAX_NODES, NIC, PAYLOAD_BYTES, Params
from seatrial.checks.network.schedule import targets, to_ranges
from seatrial.checks.network.waits import Waits
from seatrial.environment.interface_choice import is_free
from seatrial.probe import host, network
from seatrial.probe.tcp import unplaced
from seatrial.rank.node_context import NodeContext

Role = str
"""``data``: the address that ranks bind to; ``name``: that of the node's hostname; ``store``, ``master``: those of the
rendezvous on the first node; ``nic:NAME``: that of another interface, tried where ``data`` is closed."""
_MAX_INTERFACES = 4
"""Other interfaces of a node that are tried."""

_MAX_PLACES = _MAX_INTERFACES + 4
"""Places of a node: those of its other interfaces, and one of each other role."""
_LEAST_CHOSEN_PORT = 1_024
"""Below it a port is one that somebody has named."""
_DEFAULT_MASTER_PORT = 29_500
"""The port of torchrun and of torch's examples."""
_BY_THE_CLOCK: tuple[Failure, ...] = ("no answer", "silent", "large to", "large from")
"""Failures that this node does not know from having been held up itself."""
_MARGIN_S = 2.0
"""Time that is left for the report when the deadline of the step comes near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What another node listens on."""

    node: int
    machine: str
    place: str
    """Where it joined; empty where the controller does not know it."""
    identity: bytes
    places: tuple[tuple[Role, str, int], ...]
    """(role, address, port)."""


def measure(context: NodeContext, params: Params) -> None:
    """Listen and share where; connect to all that the others shared; or tell which of its ports were crowded."""
    if context.stage == "listen":
        _listen(context)
    elif context.stage == COUNT:
        _count(context)
    else:
        _connect(context, params)


def _connect(context: NodeContext, params: Params) -> None:
    shared = {int(node): values for node, values in context.given.items() if node.isdecimal()}
    places = context.given.get("places_of_nodes", {})
    peers = {node: _peer(node, values, places.get(str(node), "")) for node, values in shared.items()}
    own = peers.get(context.node_rank)
    first_here: dict[str, int] = {}
    for peer in peers.values():
        if peer is not None:
            first_here[peer.machine] = min(peer.node, first_here.get(peer.machine, peer.node))
    if own is None or first_here[own.machine] != own.node:
        return
    # A node whose values nobody can read stays among them, and is reported as one that was not tried.
    others = {node: peer for node, peer in peers.items() if peer is None or node == first_here[peer.machine]}
    if len(others) == 1:
        return
    endpoint: Endpoint = context.kept["endpoint"]
    interface = context.given["round"]["interface"] if "round" in context.given else ""
    calls = _Calls(others, own, params, f"{NIC}{interface}" if interface else "")
    timeout_s = max(context.step["timeout_s"] - _MARGIN_S, 1.0)
    calls.begun = endpoint.run(calls.run(timeout_s), timeout_s + _MARGIN_S)
    if interface:
        context.fact("connections_over", {"interface": interface, **calls.to_json()})
    else:
        context.fact("connections", calls.to_json())
        # Also here: the trial may end before the next stage.
        _count(context)


def _count(context: NodeContext) -> None:
    """Report the roles of the ports where the kernel dropped calls, and of those where callers may have waited long.

    In the last stage all nodes have made their calls: one that somebody holds up calls this node long after its own
    calls are over.
    """
    endpoint: Endpoint | None = context.kept.get("endpoint")
    found = {"crowded": endpoint.crowded(), "kept_waiting": endpoint.kept_waiting()} if endpoint is not None else {}
    for name in ("crowded", "kept_waiting"):
        at = found.get(name, set())
        roles = [role for role, address, port in context.kept.get("places", ()) if (address, port) in at]
        context.fact(name, roles)


def _listen(context: NodeContext) -> None:
    step = context.step
    gloo = step["backend"] == "gloo" or (step["backend"] == "auto" and step["device"] == "cpu")
    addresses = own_addresses(step["address"], os.environ, gloo=gloo)
    endpoint = context.kept["endpoint"] = Endpoint()
    wanted: list[tuple[Role, str, int]] = [("data", addresses.data, 0)]
    if addresses.name is not None and addresses.name != addresses.data:
        wanted.append(("name", addresses.name, 0))
    if is_free(os.environ, step["env"]):
        wanted += [(f"{NIC}{name}", address, 0) for name, address in _other_interfaces(addresses.data)]
    if context.node_rank == 0:
        if addresses.store != addresses.data:
            wanted.append(("store", addresses.store, 0))
        wanted.append(("master", addresses.store, _master_port()))
    places = context.kept["places"] = [
        [role, address, chosen]
        for role, address, port in wanted
        if (chosen := endpoint.run(endpoint.listen(address, port), _MARGIN_S)) is not None
    ]
    machine = hashlib.sha256((host.network_identity() or endpoint.identity.hex()).encode()).hexdigest()[:12]
    context.share(machine, endpoint.identity.hex(), places)
    context.fact(
        "node",
        {
            "machine": machine,
            "hostname": host.host_name(),
            "places": places,
            "because": addresses.because,
            "name": addresses.name,
            "environment": host.detect_runtime(os.environ),
            "by_ssh": "SSH_CONNECTION" in os.environ,
            "master_port_set": "MASTER_PORT" in os.environ,
        },
    )


def _other_interfaces(address: str) -> list[tuple[str, str]]:
    """Return name and address of the interfaces that the ranks could use in place of the one with this address."""
    own = network.interface_to(address)
    names = [entry.name for entry in network.interfaces() or () if entry.usable and not entry.loopback]
    others = [(name, other) for name in names if name != own and (other := network.address_of(name))]
    return others[:_MAX_INTERFACES]


def _master_port() -> int:
    text = os.environ.get("MASTER_PORT", "")
    return int(text) if text.isdecimal() and 0 < int(text) < 65_536 else _DEFAULT_MASTER_PORT


def _peer(node: int, shared: list[Any], place: str) -> Peer | None:
    """Return what another node there shared; None for no such thing: it may be of another version, or lie."""
    try:
        machine, identity, places = shared
        places = tuple((role, address, port) for role, address, port in places)
        peer = Peer(
            node=node,
            machine=machine_at(machine, place),
            place=place,
            identity=bytes.fromhex(identity),
            places=places,
        )
        is_sound = isinstance(machine, str) and len(places) <= _MAX_PLACES
        is_sound = is_sound and all(is_place(*place) and _is_own_port(place, node) for place in places)
        # Others report by role what failed; a role that there is not would make their reports unreadable.
        is_sound = is_sound and len({role for role, _, _ in places}) == len(places)
    except (TypeError, ValueError):
        return None
    return peer if is_sound else None


def _is_own_port(place: tuple[Role, str, int], node: int) -> bool:
    """Return whether a node listens there: the kernel chooses the port of all places but MASTER_PORT of the first."""
    role, _, port = place
    return port >= _LEAST_CHOSEN_PORT if role != "master" else node == 0


def leads_elsewhere(address: str, own: Peer, peer: Peer) -> Failure | None:
    """Return how the connection to an address of another node fails that cannot lead there; None: it may.

    A node may say any address. No connection is made to one that means this machine, or many.
    """
    if any(address == mine for _, mine, _ in own.places):
        return "another answers"
    number = _number(address)
    is_nowhere = number.is_unspecified or number.is_multicast
    # Of one machine, or one cable without any other address, are both or none.
    is_alike = (
        number.is_loopback and own.place == peer.place and any(_number(at).is_loopback for _, at, _ in own.places)
    )
    is_alike |= number.is_link_local and any(_number(at).is_link_local for _, at, _ in own.places)
    return "no route" if is_nowhere or ((number.is_loopback or number.is_link_local) and not is_alike) else None


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    number = ipaddress.ip_address(address)
    return getattr(number, "ipv4_mapped", None) or number


class _Calls:
    """The connections of one node to the others."""

    def __init__(self, peers: dict[int, Peer | None], own: Peer, params: Params, only: Role) -> None:
        """``peers``: None for a node that is not tried. ``only``: the role that is tried; empty: all but other
        interfaces."""
        self._peers, self._own, self._params, self._only = peers, own, params, only
        self._everybody = len(peers) <= MAX_NODES
        self._first, self._rest = targets(sorted(peers), own.node, everybody=self._everybody)
        self._failed: defaultdict[tuple[Role, Failure, int | None], list[int]] = defaultdict(list)
        """(role, failure, largest packet that passed) -> nodes."""
        self._kinds: Counter[tuple[Role, Failure]] = Counter()
        self._until = 0.0
        self._held_up: set[int] = set()
        """Nodes of which this one knows nothing: it stood still while it called them, or its kernel dropped calls."""
        self._unplaced = unplaced()
        self.begun: set[int] = set()

    async def run(self, timeout_s: float) -> set[int]:
        """Connect to all; return the nodes that were tried, but for those of which nothing was learned."""
        self._until = asyncio.get_running_loop().time() + timeout_s
        begun: set[int] = set()
        nodes = (*self._first, *self._rest)
        queue, waits = iter(nodes), Waits()
        await asyncio.gather(*(self._work(queue, begun, waits) for _ in range(min(self._at_once(), len(nodes)))))
        waits.end()
        return begun - self._held_up

    def _at_once(self) -> int:
        """Return how many connections this process has descriptors for: three attempts each, and the visitors'."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(self._params.at_once, (soft - 24) // 6)) if soft > 0 else self._params.at_once

    async def _work(self, queue: Iterator[int], begun: set[int], waits: Waits) -> None:
        for node in queue:
            # Without an address of its ranks nothing of it would be tried, and nothing would have failed.
            if (peer := self._peers[node]) is None or (self._only or "data") not in {
                role for role, _, _ in peer.places
            }:
                continue
            if self._has_enough("data") or self._has_enough(self._only):
                return
            # A connection that is accepted and then silent takes longest.
            if asyncio.get_running_loop().time() + 2 * self._params.connect_timeout_s > self._until:
                return
            begun.add(node)
            await self._call(peer, waits)

    async def _call(self, peer: Peer, waits: Waits) -> None:
        places = [
            place
            for place in peer.places
            if (place[0] == self._only if self._only else not place[0].startswith(NIC))
            and not self._has_enough(place[0])  # own names that lead nowhere take no time from the addresses of ranks
        ]
        await asyncio.gather(*(self._call_place(peer, waits, *place) for place in places))

    async def _call_place(self, peer: Peer, waits: Waits, role: Role, address: str, port: int) -> None:
        is_data = role in ("data", self._only)
        payload_bytes = PAYLOAD_BYTES if is_data else 0
        timeout_s, since = self._params.connect_timeout_s, asyncio.get_running_loop().time()
        result = Reached(failure=leads_elsewhere(address, self._own, peer))
        if result.failure is None:
            reaching = reach(address, port, peer.identity, timeout_s, payload_bytes=payload_bytes, until=self._until)
            try:
                result = await asyncio.wait_for(reaching, self._until - asyncio.get_running_loop().time())
            except asyncio.TimeoutError:  # one that answers slowly does not take the report of this node
                result = Reached(failure="silent")
        has_lost = result.failure == "no answer" and unplaced() > self._unplaced
        if has_lost or (result.failure in _BY_THE_CLOCK and waits.were_long(since)):
            self._held_up.add(peer.node)
        elif result.failure is not None:
            self._failed[role, result.failure, result.passes_bytes].append(peer.node)
            self._kinds[role, result.failure] += 1

    def _has_enough(self, role: Role) -> bool:
        most = max((count for (of_role, _), count in self._kinds.items() if of_role == role), default=0)
        return most >= self._params.max_failures

    def to_json(self) -> dict[str, Any]:
        """Return the failures in ranges of nodes, and the nodes that were not tried."""
        return {
            "everybody": self._everybody,
            "untried": to_ranges({*self._first, *self._rest} - self.begun),
            "failed": [
                {"role": role, "how": failure, "passes_bytes": passes_bytes, "nodes": to_ranges(nodes)}
                for (role, failure, passes_bytes), nodes in self._failed.items()
            ],
        }
