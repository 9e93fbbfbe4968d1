"""The judge of the network check: from failed connections to as few findings as explain them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from seatrial.checks.network.causes import find_causes
from seatrial.checks.network.observations import Observations, observe
from seatrial.checks.network.pairs import Pairs, bits_of, numbers_of
from seatrial.checks.network.params import Params
from seatrial.checks.network.sentences import (
    closed_finding,
    duplicate_finding,
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
    for target, sources in sorted(seen.busy.turned().targets.items()):
        name, of = seen.nodes[target].name, list(numbers_of(sources))
        places = {seen.nodes[source].place_of_node or source for source in of}
        if seen.unheard >> target & 1:
            yield f"connections to {name}, which did not say whether its kernel had dropped some"
        elif len(places) == 1 and len(seen.nodes) > 2:
            names = listed("node", [seen.nodes[source].name for source in of])
            yield f"connections to {name} from {names}, which alone found it busy"
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
        others = [seen.nodes[target].name for target in numbers_of(left.targets.get(node, 0))]
        why = "no descriptor or port left" if node in no_socket else f"not tried: {listed('node', others)}"
        yield f"all connections of {seen.nodes[node].name} ({why})"


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
    for entry in seen.failed:
        if entry.role != "data" or entry.how == _NOT_TRIED:
            continue
        targets = entry.targets & ~unclear
        if targets and entry.how not in _LARGE:
            closed[entry.how][entry.source] |= targets
        elif targets and entry.how == "large to":
            large[entry.passes_bytes][entry.source] |= targets
        else:
            for target in numbers_of(targets):
                large[entry.passes_bytes][target] |= 1 << entry.source
    return (
        {how: Pairs(targets) for how, targets in closed.items()},
        {size: Pairs(targets) for size, targets in large.items()},
    )


def _union(pairs: Mapping[Any, Pairs]) -> Pairs:
    return reduce(Pairs.__or__, pairs.values(), Pairs())


def _rendezvous(seen: Observations, closed: Pairs, unclear: int) -> Iterator[Finding]:
    """Yield findings for the rendezvous on the first node, where other ports of that node are open."""
    tried = (seen.tried.pairs - closed - seen.busy).targets
    for role in ("store", "master"):
        hows: defaultdict[int, dict[int, str]] = defaultdict(dict)
        no_socket: defaultdict[int, int] = defaultdict(int)
        for entry in seen.failed:
            for target in numbers_of(entry.targets & ~unclear) if entry.role == role else ():
                if entry.how == _NOT_TRIED:
                    no_socket[entry.source] |= 1 << target
                elif (entry.source, target) not in closed:
                    # A source may say a thousand times how it failed.
                    hows[target].setdefault(entry.source, entry.how)
        for target, how_of in hows.items():
            if role in seen.nodes[target].places:
                its_tried = [
                    source for source, targets in tried.items() if (targets & ~no_socket[source]) >> target & 1
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
    sources: defaultdict[int, dict[int, str]] = defaultdict(dict)
    for failed in seen.failed:
        if failed.role == "name" and failed.how != _NOT_TRIED:
            for target in numbers_of(failed.targets):
                sources[target][failed.source] = failed.how
    unreached: defaultdict[bool, dict[int, dict[int, str]]] = defaultdict(dict)
    for target, hows in sorted(sources.items()):
        if seen.nodes[target].own not in doubled and "name" in seen.nodes[target].places:
            num_tried = sum((source, target) in seen.tried.pairs for source in seen.nodes)
            unreached[len(hows) >= num_tried][target] = hows
    for nobody, their_hows in unreached.items():
        yield name_finding(seen, their_hows, nobody=nobody)


def _hostnames(seen: Observations) -> Iterator[Finding]:
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        by_name[entry.hostname].append(node)
    for hostname, nodes in by_name.items():
        if len(nodes) > 1:
            yield hostname_finding(seen, hostname, tuple(nodes))
