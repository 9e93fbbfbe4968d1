"""The addresses of the hosts that a request names, to which their nodes are bound (``conductor/node_addresses.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from seatrial.conductor.node_addresses import THIS_MACHINE, normalized
from seatrial.probe.names import resolve

_RESOLVE_S = 5.0
"""The default of the system's resolver for one server that does not answer."""
_AT_ONCE = 256


def addresses_of(hosts: Sequence[str]) -> dict[int, Collection[str]]:
    """Return the addresses of each node whose host has some. ``hosts``: the name or address of each node."""
    names = list(dict.fromkeys(hosts))
    with ThreadPoolExecutor(min(_AT_ONCE, len(names) or 1)) as pool:
        found = dict(zip(names, pool.map(lambda name: resolve(name, _RESOLVE_S), names), strict=True))
    return {
        node: {normalized(address) for address in found[name].addresses or ()}
        | ({THIS_MACHINE} if found[name].own is not None else set())
        for node, name in enumerate(hosts)
        if found[name].addresses
    }


def single_addresses_of(hosts: Sequence[str]) -> frozenset[str]:
    """Return the addresses that only one of these hosts has. ``hosts``: as for ``addresses_of``, in any order.

    Several nodes of one machine share theirs. Those of this machine are left out: a node on it may use any of them.
    """
    elsewhere = [found for found in addresses_of(hosts).values() if THIS_MACHINE not in found]
    counts = Counter(address for found in elsewhere for address in found)
    return frozenset(address for address, count in counts.items() if count == 1)
