"""Ranks that cannot connect to the store of the rendezvous: one finding by the nodes on both ends. Pure.

``rank/groups.py`` reports the fact before a library waits for its own, longer timeout and words it its own way.
"""

from __future__ import annotations

import errno
import os

from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding
from seatrial.protocol.own_errors import lack_in
from seatrial.util.text import as_name, quoted

_MOST_NAMES = 8
_MOST_CHARS = 253
"""The longest name of a host."""
_ACTIONS = {
    "no answer": "a firewall or security group drops it: open all TCP ports between the hosts",
    "refused": "a firewall rejects it, or another machine has this address: open all TCP ports between the hosts",
    "no route": "look at the routes and addresses of these hosts",
}
_REASONS = frozenset(map(os.strerror, errno.errorcode))
_OTHERWISE = "look at the network between these hosts, and open all TCP ports between them"


def store_findings(evidence: Evidence, check: str) -> tuple[Finding, ...]:
    """Return a finding for each address of a store that some ranks cannot connect to.

    A rank that finished has connected, whatever it says besides; and there is one store for each rank. One whose host
    had no port or open file for it says nothing of the network: its error tells that (``judge/host_lacks.py``).
    """
    of_rank = {
        fact.rank: fact.value
        for fact in reversed(evidence.facts)
        if fact.name == "store_unreachable"
        and fact.rank is not None
        and fact.rank in evidence.ranks
        and fact.rank not in evidence.asked
        and has_fields(fact.value, host=str, port=int)
    }
    ways: dict[tuple[str, int], dict[int, str]] = {}
    for rank, value in sorted(of_rank.items()):
        how = str(value.get("how"))[:60]
        if lack_in(f"connect: {how}"):
            continue
        # A rank may say anything; the words of the system and ours are no sentence about others.
        said = how if how in _ACTIONS or how in _REASONS else quoted(how)
        ways.setdefault((as_name(value["host"][:_MOST_CHARS]), value["port"]), {})[rank] = said
    return tuple(_finding(evidence, check, address, ways[address]) for address in sorted(ways))


def _finding(evidence: Evidence, check: str, address: tuple[str, int], ways: dict[int, str]) -> Finding:
    owner = evidence.ranks[min(evidence.ranks)]  # the store is that of the first rank
    callers = [evidence.ranks[rank] for rank in sorted(ways)]
    places = list(dict.fromkeys(caller.place for caller in callers))
    nodes = tuple(dict.fromkeys((owner.node, *(caller.node for caller in callers))))
    names = ", ".join(places[:_MOST_NAMES])
    more = f" and {len(places) - _MOST_NAMES} more" if len(places) > _MOST_NAMES else ""
    how = ", ".join(dict.fromkeys(ways[rank] for rank in sorted(ways)))
    kind, name = "fabric", f"the network between {owner.place} and {names}{more}"
    if len(nodes) == 1:
        name = f"communication inside {owner.place}"
    elif len(places) == 1:
        kind, name = "link", f"link {owner.place}–{places[0]}, endpoints not separable"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return Finding(
        severity="fail",
        check=check,
        what=f"{names}{more} cannot connect to {owner.place} at {host}:{address[1]} ({how})",
        culprit=Culprit(kind="link" if kind == "link" else "fabric", name=name, nodes=nodes),
        evidence=tuple(f"rank {rank} on {evidence.ranks[rank].place}: {ways[rank]}" for rank in sorted(ways))[
            :_MOST_NAMES
        ],
        action=_ACTIONS.get(how, _OTHERWISE),
    )
