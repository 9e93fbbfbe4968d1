"""The judge of the network check: from failed connections to as few findings as explain them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from seatrial.checks.network.causes import Pair, find_causes
from seatrial.checks.network.interfaces import chosen_interface
from seatrial.checks.network.observations import Observations, observe
from seatrial.checks.network.params import Params
from seatrial.checks.network.sentences import (
    closed_finding,
    duplicate_finding,
    hostname_finding,
    large_finding,
    name_finding,
    port_finding,
)
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Ruling

_LARGE = ("large to", "large from")
_NOT_TRIED = "not tried"


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Name the nodes, groups and links that cannot connect, and addresses and names that lead elsewhere."""
    seen = observe(evidence)
    absent = [f"a port of {evidence.nodes[node]} to connect to" for node in seen.deaf]
    if len(seen.nodes) < 2:
        return Ruling(is_moot=not absent, absent=tuple(absent))
    doubled = _doubled(seen)
    # A connection to an address that several nodes have may end anywhere.
    unclear = {node for nodes in doubled.values() for node in nodes}
    closed, large = _pairs(seen, unclear)
    addresses = {node: entry.places["data"][0] for node, entry in seen.nodes.items()}
    findings = [duplicate_finding(seen, address, nodes) for address, nodes in doubled.items()]
    causes = find_causes(closed, seen.tried, addresses)
    other = chosen_interface(evidence, params)
    findings += [closed_finding(seen, cause, closed, other) for cause in causes]
    if not any(cause.shape == "all" for cause in causes):
        findings += [
            large_finding(seen, cause, large)
            for cause in find_causes(large.keys() - closed.keys(), seen.tried, addresses)
        ]
    findings += _rendezvous(seen, closed, unclear)
    findings += _names(seen)
    findings += _hostnames(seen)
    absent += [f"the connections of {seen.nodes[node].name}" for node in seen.silent]
    untried = {source: targets for source, targets in seen.tried.untried.items() if targets}
    no_socket = {entry.source for entry in seen.failed if entry.how == _NOT_TRIED}
    if (untried or no_socket) and not any(finding.severity == "fail" for finding in findings):
        absent += [
            f"all connections of {seen.nodes[node].name}"
            + (" (no descriptor or port left)" if node in no_socket else "")
            for node in sorted(untried.keys() | no_socket)
        ]
    near = [node for node in seen.tried.near if node not in seen.tried.everybody]
    unjudged: tuple[str, ...] = ()
    if near:
        each = max(len(seen.tried.near[node]) for node in near)
        unjudged = (f"network: each of {len(seen.nodes)} nodes connected to {each} others, not to all",)
    return Ruling(findings=tuple(findings), absent=tuple(absent), unjudged=unjudged)


def _doubled(seen: Observations) -> Mapping[str, tuple[int, ...]]:
    """Return the addresses that ranks of several nodes would bind to, with these nodes."""
    by_address: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        by_address[entry.places["data"][0]].append(node)
    return {address: tuple(nodes) for address, nodes in by_address.items() if len(nodes) > 1}


def _pairs(seen: Observations, unclear: Collection[int]) -> tuple[dict[Pair, str], dict[Pair, int | None]]:
    """Return the closed pairs with how they failed, and those in whose direction large packets are lost, with the
    largest packet that passed."""
    closed: dict[Pair, str] = {}
    large: dict[Pair, int | None] = {}
    for entry in seen.failed:
        if entry.role != "data" or entry.how == _NOT_TRIED:
            continue
        for target in entry.targets - {entry.source, *unclear}:
            if entry.how not in _LARGE:
                closed[entry.source, target] = entry.how
            elif entry.how == "large to":
                large[entry.source, target] = entry.passes_bytes
            else:
                large[target, entry.source] = entry.passes_bytes
    return closed, large


def _rendezvous(seen: Observations, closed: Mapping[Pair, str], unclear: Collection[int]) -> Iterator[Finding]:
    """Yield findings for the rendezvous on the first node, where other ports of that node are open."""
    for role in ("store", "master"):
        hows: Counter[str] = Counter()
        sources: defaultdict[int, list[int]] = defaultdict(list)
        for entry in seen.failed:
            for target in entry.targets:
                if entry.role == role and (entry.source, target) not in closed and target not in unclear:
                    sources[target].append(entry.source)
                    hows[entry.how] += 1
        for target, its_sources in sources.items():
            if role in seen.nodes[target].places and hows.most_common(1)[0][0] != _NOT_TRIED:
                yield port_finding(seen, target, role, tuple(sorted(its_sources)), hows.most_common(1)[0][0])


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
            for target in failed.targets:
                sources[target][failed.source] = failed.how
    for target, hows in sorted(sources.items()):
        if seen.nodes[target].own not in doubled and "name" in seen.nodes[target].places:
            num_tried = sum(seen.tried.is_tried(source, target) for source in seen.nodes)
            yield name_finding(seen, target, hows, nobody=len(hows) >= num_tried)


def _hostnames(seen: Observations) -> Iterator[Finding]:
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for node, entry in seen.nodes.items():
        by_name[entry.hostname].append(node)
    for hostname, nodes in by_name.items():
        if len(nodes) > 1:
            yield hostname_finding(seen, hostname, tuple(nodes))
