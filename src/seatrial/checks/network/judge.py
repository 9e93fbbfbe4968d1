"""The judge of the network check: from failed connections to as few findings as explain them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from seatrial.checks.network.causes import find_causes
from seatrial.checks.network.observations import Observations, observe
from seatrial.checks.network.pairs import Pairs, bits_of, numbers_of
from seatrial.checks.network.params import Params
from seatrial.checks.network.sentences import (
    closed_finding,
    duplicate_finding,
    failure_words,
    hostname_finding,
    large_finding,
    name_finding,
    one_machine_finding,
    port_finding,
)
from seatrial.checks.shared.host_inventory import listed
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling

ONE_MACHINE = "all nodes are one machine"
"""Why the check is about nothing there."""
_LARGE = ("large to", "large from")
_NOT_TRIED = "not tried"
_MOST_SIZES = 8
"""Largest packets that passed; further ones are not known."""
_MOST_LISTED = 8
"""Names that are looked up for a sentence."""
_MOST_LISTENING = 8
"""Nodes that are judged as the place of the rendezvous, which is one: node 0, so it is always among the first ones."""


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Name the nodes, groups and links that cannot connect, and addresses and names that lead elsewhere."""
    seen = observe(evidence)
    absent = [f"a port of {evidence.nodes[node]} to connect to" for node in seen.deaf]
    if len(seen.nodes) < 2:
        what = "the job has one node" if len(evidence.nodes) < 2 else ONE_MACHINE
        if absent or len(evidence.nodes) < 2:
            return Ruling(not_applicable="" if absent else what, absent=tuple(absent))
        return Ruling(findings=(one_machine_finding(evidence),), not_applicable=what)
    doubled = _doubled(seen)
    # A connection to an address that several nodes have may end anywhere.
    unclear = bits_of(node for nodes in doubled.values() for node in nodes)
    closed, large = _pairs(seen, unclear)
    all_closed = _union(closed)
    addresses = {node: entry.places["data"][0] for node, entry in seen.nodes.items()}
    findings = [duplicate_finding(seen, address, nodes) for address, nodes in doubled.items()]
    hosts = {node: entry.place_of_node for node, entry in seen.nodes.items()}
    causes = find_causes(all_closed, seen.tried, addresses, hosts)
    other = evidence.interface or None
    findings += [closed_finding(seen, cause, closed, other) for cause in causes]
    if not any(cause.shape == "all" for cause in causes):
        findings += [
            large_finding(seen, cause, large)
            for cause in find_causes(_union(large) - all_closed, seen.tried, addresses, hosts)
        ]
    findings += _rendezvous(seen, all_closed, unclear)
    findings += _names(seen)
    findings += _hostnames(seen)
    absent += [f"the connections of {seen.nodes[node].name}" for node in seen.silent]
    untried = seen.tried.planned - seen.tried.pairs - seen.busy
    no_socket = {entry.source for entry in seen.failed if entry.how == _NOT_TRIED}
    if not any(finding.severity == "fail" for finding in findings):
        absent += _busy_lines(seen)
        absent += _untried_lines(seen, untried, no_socket)
    fewest = min((targets.bit_count() for targets in seen.tried.planned.targets.values()), default=0)
    unjudged: tuple[str, ...] = ()
    if seen.tried.planned and fewest < len(seen.nodes) - 1:
        unjudged = (f"network: each of {len(seen.nodes)} nodes connected to {fewest} others, not to all",)
    if other is not None:
        # One node's word is enough for that, and what the later checks measured is another network.
        unjudged += (
            f"network: the ranks used {other}, so the links between the nodes' own addresses were not measured",
        )
    return Ruling(findings=tuple(findings), absent=tuple(absent), unjudged=unjudged)


def _busy_lines(seen: Observations) -> Iterator[str]:
    """Yield a line for each node that was too busy to answer others; one of several alone may only say so."""
    at_place: defaultdict[str, int] = defaultdict(int)
    for node, entry in seen.nodes.items():
        at_place[entry.place_of_node] |= 1 << node
    for target, sources in sorted(seen.busy.turned().targets.items()):
        name, first = seen.nodes[target].name, next(numbers_of(sources))
        place = seen.nodes[first].place_of_node
        if seen.unheard >> target & 1:
            yield f"connections to {name}, which did not say whether its kernel had dropped some"
        elif not sources & ~(at_place[place] if place else 1 << first) and len(seen.nodes) > 2:
            yield f"connections to {name} from {_listed(seen, sources)}, which alone found it busy"
        else:
            yield f"connections to {name}, which was too busy to answer (others may have kept it so)"


def _untried_lines(seen: Observations, untried: Pairs, no_socket: set[int]) -> Iterator[str]:
    """Yield a line for each node that most others could not try, and for each one that did not try all of the rest."""
    planned, by_most = seen.tried.planned.turned().targets, 0
    for target, sources in sorted(untried.turned().targets.items()):
        # What one of several others says that it reached excuses nobody.
        num_tried = (planned[target] & ~sources).bit_count()
        if planned[target].bit_count() > 1 and num_tried < sources.bit_count():
            by_most |= 1 << target
            whom = "which most others could not try" if num_tried else "which no other node could try"
            yield f"connections to {seen.nodes[target].name}, {whom} (perhaps it shared no address, or time was short)"
    left = untried.between(untried.targets, ~by_most)
    for node in sorted(left.targets.keys() | no_socket):
        others = left.targets.get(node, 0)
        why = "no descriptor or port left" if node in no_socket else f"not tried: {_listed(seen, others)}"
        yield f"all connections of {seen.nodes[node].name} ({why})"


def _listed(seen: Observations, nodes: int) -> str:
    """Return the names of nodes, given as bits, of which the first ones are shown."""
    names = [seen.nodes[node].name for node in islice(numbers_of(nodes), _MOST_LISTED)]
    return listed("node", names, count=nodes.bit_count())


def _doubled(seen: Observations) -> Mapping[str, tuple[int, ...]]:
    """Return the addresses that ranks of several nodes would bind to, with these nodes."""
    by_address: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        by_address[entry.places["data"][0]].append(node)
    return {address: tuple(nodes) for address, nodes in by_address.items() if len(nodes) > 1}


def _pairs(seen: Observations, unclear: int) -> tuple[Mapping[str, Pairs], Mapping[int | None, Pairs]]:
    """Return the closed pairs by how they failed, and those in whose direction large packets are lost, by the largest
    packet that passed. ``unclear``: nodes that are left out, as bits."""
    closed: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    large: defaultdict[int | None, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    from_targets: defaultdict[int | None, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for entry in seen.failed:
        targets = entry.targets & ~unclear
        if entry.role != "data" or entry.how == _NOT_TRIED or not targets:
            continue
        if entry.how not in _LARGE:
            closed[entry.how][entry.source] |= targets
            continue
        way = large if entry.how == _LARGE[0] else from_targets
        # There are few sizes, and each is looked for among all pairs.
        size = entry.passes_bytes if entry.passes_bytes in way or len(way) < _MOST_SIZES else None
        way[size][entry.source] |= targets
    for size, targets_of in from_targets.items():
        for source, targets in Pairs(targets_of).turned().targets.items():
            large[size][source] |= targets
    return (
        {how: Pairs(targets) for how, targets in closed.items()},
        {size: Pairs(targets) for size, targets in large.items()},
    )


def _union(pairs: Mapping[Any, Pairs]) -> Pairs:
    union: defaultdict[int, int] = defaultdict(int)
    for part in pairs.values():
        for source, targets in part.targets.items():
            union[source] |= targets
    return Pairs(union)


def _rendezvous(seen: Observations, closed: Pairs, unclear: int) -> Iterator[Finding]:
    """Yield findings for the rendezvous on the first node, where other ports of that node are open."""
    tried = (seen.tried.pairs - closed - seen.busy).targets
    for role in ("store", "master"):
        # It is the first node that listens; in a record of somebody else all may say so.
        listening = [
            node for node, entry in sorted(seen.nodes.items()) if role in entry.places and not unclear >> node & 1
        ]
        failed = [entry for entry in seen.failed if entry.role == role]
        for target in listening[:_MOST_LISTENING]:
            its_failed = [entry for entry in failed if entry.targets >> target & 1]
            no_socket = {entry.source for entry in its_failed if entry.how == _NOT_TRIED}
            how_of = dict[int, str]()
            for entry in its_failed:
                if entry.how != _NOT_TRIED and (entry.source, target) not in closed:
                    # A source may say a thousand times how it failed.
                    how_of.setdefault(entry.source, entry.how)
            if how_of:
                its_tried = [
                    source for source, targets in tried.items() if targets >> target & 1 and source not in no_socket
                ]
                yield port_finding(seen, target, role, how_of, its_tried)


def _names(seen: Observations) -> Iterator[Finding]:
    """Yield findings for nodes whose own name leads to an address that others do not reach, or that others have too."""
    claimed: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        if entry.own is not None:
            claimed[entry.own].append(node)
    doubled = {address: nodes for address, nodes in claimed.items() if len(nodes) > 1}
    for address, nodes in doubled.items():
        if any(seen.nodes[node].places["data"][0] != address for node in nodes):
            yield duplicate_finding(seen, address, tuple(nodes), of_names=True)
    # The last word of a source about each of its targets.
    heard: defaultdict[int, int] = defaultdict(int)
    by_how: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    for failed in reversed(seen.failed):
        if failed.role == "name" and failed.how != _NOT_TRIED:
            by_how[failure_words(failed.how)][failed.source] |= failed.targets & ~heard[failed.source]
            heard[failed.source] |= failed.targets
    sources: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for how, targets_of in sorted(by_how.items()):
        for target, bits in Pairs(targets_of).turned().targets.items():
            sources[target][how] = bits
    tried = seen.tried.pairs.turned().targets if sources else {}
    unreached: defaultdict[bool, dict[int, dict[str, int]]] = defaultdict(dict)
    for target, hows in sorted(sources.items()):
        if seen.nodes[target].own not in doubled and "name" in seen.nodes[target].places:
            num_failed = sum(bits.bit_count() for bits in hows.values())
            unreached[num_failed >= tried.get(target, 0).bit_count()][target] = hows
    for nobody, their_hows in unreached.items():
        yield name_finding(seen, their_hows, nobody=nobody)


def _hostnames(seen: Observations) -> Iterator[Finding]:
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        by_name[entry.hostname].append(node)
    for hostname, nodes in by_name.items():
        if len(nodes) > 1:
            yield hostname_finding(seen, hostname, tuple(nodes))
