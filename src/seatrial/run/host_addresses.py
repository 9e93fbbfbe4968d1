"""The addresses of the hosts that a request names, to which their nodes are bound (``conductor/node_addresses.py``)."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from seatrial.conductor.node_addresses import normalized
from seatrial.probe.names import resolve
from seatrial.protocol.events import THIS_MACHINE

_RESOLVE_S = 5.0
"""The default of the system's resolver for one server that does not answer."""
_AT_ONCE = 256


def addresses_of(
    hosts: Sequence[str], *, at_once: int = _AT_ONCE, within_s: float = math.inf
) -> dict[int, Collection[str]]:
    """Return the addresses of each node whose host has some.

    ``hosts``: the name or address of each node; ``at_once``: the number of names that are resolved at a time;
    ``within_s``: no name is looked up later, and has no addresses then. No node has any where this user has no process
    left for lookups.
    """
    until = time.monotonic() + within_s
    names = list(dict.fromkeys(hosts))

    found = {}
    with contextlib.suppress(RuntimeError), ThreadPoolExecutor(min(at_once, len(names) or 1)) as pool:
        answers = pool.map(lambda name: resolve(name, _RESOLVE_S) if time.monotonic() < until else None, names)
        found = {name: answer for name, answer in zip(names, answers, strict=True) if answer and answer.addresses}
    return {
        node: {normalized(address) for address in found[name].addresses or ()}
        | ({THIS_MACHINE} if found[name].own is not None else set())
        for node, name in enumerate(hosts)
        if name in found
    }
