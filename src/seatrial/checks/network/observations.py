"""The facts of the network check, read with care: events may be malformed. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.checks.network.causes import Tried
from seatrial.checks.network.pairs import Pairs, bits_of
from seatrial.checks.network.params import COUNT, NIC
from seatrial.checks.network.schedule import distances, within
from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact

ROLES = ("data", "name", "store", "master")
"""The addresses that a node listens at: that of its ranks, that of its hostname, and two of the rendezvous."""


_AS_IF_CLOSED = ("no answer", "refused", "silent")
"""How connections fail to a node with too many of others. ``refused``: where the kernel is set to say so
(tcp_abort_on_overflow); ``silent``: where the last packet of the handshake was dropped."""
_EXCUSED = {"crowded": _AS_IF_CLOSED, "kept_waiting": ("silent",)}
"""The word of a node about its ports -> how connections to them fail that are neither open nor closed then. A kernel
takes a call at once, however long its caller waits afterwards."""
_INTERFACE = re.compile(r"[\w.:@-]{1,15}", re.ASCII)
"""The name or number of an interface; a scope may be any text."""
_MOST_FAILURES = 1_000
"""Entries of what failed: there are few roles and ways to fail, and nodes that fail alike share an entry. Each is
compared with all nodes."""
_MOST_NODES = 1 << 17
"""Nodes are bits of numbers, which a damaged number of a node must not make huge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, and what it listens on."""

    node: int
    name: str
    """Its host name, with its number where several nodes have that name."""
    host: str
    """Its host name, as culprits carry it."""
    hostname: str
    """The name that it calls itself."""
    machine: str
    says_machine: str
    """The machine that it says it is; ``machine`` has the place where it joined besides."""
    place_of_node: str
    """Place of the node, as of ``Evidence``; empty where the controller does not know it."""
    places: Mapping[str, tuple[str, int]]
    """Role -> address and port."""
    because: str
    """The reason for the address that ranks bind to: ``route``, ``name`` or ``variable``."""
    own: str | None
    """The address that the hostname leads to."""
    environment: str
    by_ssh: bool
    master_port_set: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Connections of one source that failed alike."""

    source: int
    role: str
    how: str
    passes_bytes: int | None
    targets: int
    """Nodes, as bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All that was observed."""

    nodes: Mapping[int, Node]
    """One node of each machine, by number."""
    failed: tuple[Failed, ...]
    tried: Tried
    busy: Pairs
    """Pairs whose target was too busy to answer, at any of its addresses: neither open nor closed."""
    unheard: int
    """Nodes among these that may have had too many: they did not say so, as bits."""
    silent: tuple[int, ...]
    """Nodes that listened and did not report their connections, or did so twice."""
    deaf: tuple[int, ...]
    """Nodes that do not listen where ranks would, or did not say so once: nobody connected to them."""


def observe(evidence: Evidence) -> Observations:
    """Read the facts."""
    listening = {node.node: node for node in _nodes(evidence)}
    nodes = _one_of_each_machine(listening.values())
    order = tuple(sorted(nodes))
    deaf = tuple(node for node in evidence.nodes if node not in listening)
    # The nodes went by what all shared: one that told nothing here, or two things, was among them.
    in_turn = tuple(sorted({*order, *deaf}))
    position, everybody = {node: at for at, node in enumerate(in_turn)}, bits_of(order)
    # As many ranges as that, of nodes that are not known here too.
    most_ranges = max(len(evidence.nodes), len(listening))
    crowded, unheard, called = _crowded(evidence)
    # One that did not come to the end of its calls may have had no core all the time, and its queue be full.
    unheard |= everybody & ~called if called else 0
    failed: list[Failed] = []
    planned: dict[int, int] = {}
    tried: dict[int, int] = {}
    busy: dict[int, int] = {}
    for fact in said_once(evidence.facts):
        source = fact.node_rank
        if fact.name != "connections" or source not in nodes or source is None:
            continue
        if not has_fields(fact.value, everybody=bool, untried=list, failed=list):
            continue
        try:
            untried = within(everybody, _few(fact.value["untried"], most_ranges))
            said = _failures(
                source, _few(fact.value["failed"], _MOST_FAILURES), everybody & ~(1 << source), most_ranges
            )
            its_failed = tuple(
                part for entry in said for part in _without_crowded(entry, crowded[entry.how, entry.role] | unheard)
            )
        except (TypeError, ValueError, KeyError):
            continue
        failed += (entry for entry in its_failed if entry.how != "busy")
        near = (in_turn[(position[source] + distance) % len(in_turn)] for distance in distances(len(in_turn)))
        asked = everybody if fact.value["everybody"] else bits_of(node for node in near if node in nodes)
        # Nodes that told each other something else may have had other turns: what failed was tried.
        planned[source] = (asked | _targets_of(its_failed)) & ~(1 << source)
        busy[source] = _busy(its_failed, ROLES)
        tried[source] = planned[source] & ~untried & ~_busy(its_failed, ("data",))
    return Observations(
        nodes=nodes,
        failed=tuple(failed),
        tried=Tried(
            nodes=order,
            planned=Pairs(planned),
            pairs=Pairs({source: targets for source, targets in tried.items() if targets}),
        ),
        unheard=unheard,
        busy=Pairs({source: targets for source, targets in busy.items() if targets}),
        silent=tuple(node for node in order if node not in planned),
        deaf=deaf,
    )


def said_once(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield the facts without those of which a node says several: nobody knows by which of them others were asked."""
    keyed = [(fact, (fact.node_rank, fact.name, str(_interface_of(fact)))) for fact in facts]
    times = Counter(key for _, key in keyed)
    yield from (fact for fact, key in keyed if times[key] == 1)


def _interface_of(fact: Fact) -> object:
    """Return the interface that a fact is about; None: it is about none."""
    return fact.value.get("interface") if fact.name == "connections_over" and isinstance(fact.value, dict) else None


def _nodes(evidence: Evidence) -> Iterator[Node]:
    names = Counter(evidence.nodes.values())
    for fact in said_once(evidence.facts):
        number, value = fact.node_rank, fact.value
        if fact.name != "node" or number is None or number >= _MOST_NODES:
            continue
        texts = dict.fromkeys(("machine", "hostname", "because", "environment"), str)
        if not has_fields(value, places=list, name=(str, type(None)), by_ssh=bool, master_port_set=bool, **texts):
            continue
        try:
            # Addresses stand in sentences of the report, so they are no other words.
            if not all(is_place(role, address, port) for role, address, port in value["places"]):
                continue
            if value["name"] is not None and not _is_address(value["name"]):
                continue
            places = {role: (address, port) for role, address, port in value["places"]}
        except (TypeError, ValueError):
            continue
        if "data" not in places:
            continue
        name = evidence.nodes.get(number, value["hostname"])
        yield Node(
            node=number,
            name=f"{name} (node {number})" if names[name] > 1 else name,
            host=name,
            hostname=value["hostname"],
            machine=machine_at(value["machine"], evidence.places_of_nodes.get(number, "")),
            says_machine=value["machine"],
            place_of_node=evidence.places_of_nodes.get(number, ""),
            places=places,
            because=value["because"],
            own=value["name"],
            environment=value["environment"],
            by_ssh=value["by_ssh"],
            master_port_set=value["master_port_set"],
        )


def is_place(role: Any, address: Any, port: Any) -> bool:
    """Return whether this is a known role, an address and a port. Raises ValueError for text that is no address."""
    if not (isinstance(role, str) and isinstance(address, str) and _is_address(address)):
        return False
    return (role in ROLES or role.startswith(NIC)) and type(port) is int and 0 < port < 65_536


def _is_address(text: str) -> bool:
    """Return whether the scope of an address, if it has one, may be an interface. Raises ValueError for other text."""
    scope = getattr(ipaddress.ip_address(text), "scope_id", None)
    return scope is None or _INTERFACE.fullmatch(scope) is not None


def machine_at(machine: str, place: str) -> str:
    """Return what nodes on one machine have in common: what they say, and where the controller knows them.

    A host that says that it is the machine of another one is another machine, and hides nobody.
    """
    return f"{machine} at {place}"


def _one_of_each_machine(nodes: Iterable[Node]) -> Mapping[int, Node]:
    first: dict[str, Node] = {}
    for node in nodes:
        before = first.get(node.machine)
        if before is None or node.node < before.node:
            first[node.machine] = node
    return {node.node: node for node in sorted(first.values(), key=lambda node: node.node)}


def _few(entries: list[Any], most: int) -> list[Any]:
    if len(entries) > most:
        raise ValueError(f"{len(entries)} entries, and there can be {most}")
    return entries


def _crowded(evidence: Evidence) -> tuple[Mapping[tuple[str, str], int], int, int]:
    """Return (how connections fail, role) -> the nodes whose word about their address of that role explains that, the
    nodes of which nobody knows it, and those that have made their calls, all as bits.

    These have made their calls and did not answer in the last stage, as others did: a user may keep a node busy. Where
    no node was asked, as in a trial that ended early, what they said after their calls counts.
    """
    crowded, called, asked = defaultdict[tuple[str, str], int](int), 0, 0
    for fact in evidence.facts:
        node = fact.node_rank
        if node is None or not 0 <= node < _MOST_NODES:
            continue
        called |= (fact.name == "connections") << node
        asked |= (fact.name == "crowded" and fact.stage == COUNT) << node
        for how in _EXCUSED.get(fact.name, ()) if isinstance(fact.value, list) else ():
            for role in ROLES:
                crowded[how, role] |= (role in fact.value) << node
    return crowded, called & ~asked if asked else 0, called


def _without_crowded(entry: Failed, crowded: int) -> Iterator[Failed]:
    """Yield it, as ``busy`` where the other node was crowded: its kernel drops calls then, as a firewall would."""
    busy = entry.targets & crowded if entry.how in _AS_IF_CLOSED else 0
    if busy:
        yield replace(entry, how="busy", targets=busy)
    if entry.targets & ~busy:
        yield replace(entry, targets=entry.targets & ~busy)


def _busy(failures: Iterable[Failed], roles: Iterable[str]) -> int:
    """Return the nodes that were busy at the addresses of these roles, as bits."""
    return _targets_of(entry for entry in failures if entry.how == "busy" and entry.role in roles)


def _targets_of(failures: Iterable[Failed]) -> int:
    bits = 0
    for entry in failures:
        bits |= entry.targets
    return bits


def _failures(source: int, entries: list[Any], others: int, most_ranges: int) -> Iterator[Failed]:
    for entry in entries:
        passes_bytes = entry["passes_bytes"]
        if entry["role"] not in ROLES or not entry["nodes"]:
            raise ValueError(f"a failure of no known role: {entry['role']}")
        yield Failed(
            source=source,
            role=entry["role"],
            how=str(entry["how"]),
            passes_bytes=passes_bytes if type(passes_bytes) is int and 0 < passes_bytes < 65_536 else None,
            targets=within(others, _few(entry["nodes"], most_ranges)),
        )
