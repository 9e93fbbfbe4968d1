"""The places of a file system that several machines have: a fault of what lies there is no node's. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from seatrial.evidence.evidence import Evidence

_MOST_PLACES = 1000
"""More than ``probe.file_system.own_places`` returns."""


def is_places(value: object) -> bool:
    """Return whether a rank may have sent this as the places on its way: strings of a number that can be, or None."""
    if not isinstance(value, list):
        return value is None
    return len(value) <= _MOST_PLACES and all(isinstance(place, str) for place in value)


def common_places(evidence: Evidence, ways: Iterable[tuple[int, Collection[str] | None]]) -> frozenset[str]:
    """Return the places that ranks of several machines met on their ways to folders.

    ``ways``: a rank, and what ``probe.file_system.own_places`` returned there. Two nodes on one kernel, such as pods,
    may have a disk in common.
    """
    hosts = evidence.hosts()
    machines_at: dict[str, set[tuple[str, str]]] = {}
    for rank, places in ways:
        for place in places or ():
            machines_at.setdefault(place, set()).add((hosts[rank], evidence.ranks[rank].node))
    return frozenset(place for place, machines in machines_at.items() if len(machines) > 1)
