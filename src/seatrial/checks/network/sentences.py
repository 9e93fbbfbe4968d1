"""The sentences of the network check: who, whom, where, how, in which direction, and what to do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from seatrial.checks.network.causes import Cause
from seatrial.checks.network.observations import Observations
from seatrial.checks.network.pairs import Pair, Pairs, numbers_of
from seatrial.checks.shared.host_inventory import listed
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Severity
from seatrial.util.text import as_name

_CHECK = "network"
_SHOWN = 8
"""Names in the name of a culprit, and lines of evidence."""
_LEAST_HOSTS = 2
"""Hosts whose word names the node that they do not reach, where more do not reach it than reach it."""
_HOW = {
    "no answer": "no answer",
    "refused": "refused",
    "no route": "no route",
    "silent": "accepted, but then no data came",
    "another answers": "another machine answers",
}
_OPEN = "open all TCP ports between the hosts (firewalld, iptables or nftables on them; in a cloud the security group)"
_OPEN_IN = {
    "kubernetes": "allow all TCP ports between the pods of the job in every NetworkPolicy of the namespace, ingress and"
    " egress",
}
_MEND: Mapping[str, str] = {
    "no route": "look at netmasks and routes (ip route get ADDRESS); where these are right, a firewall says it: ",
    "silent": "find the proxy or load balancer between the hosts that accepts in place of the node; else ",
    "another answers": "find the machine that answers there (ip neigh), and give each one an address that no other one"
    " has; else ",
}
_MAP_NAME = (
    "map the name to the address that the other nodes reach, in DNS or /etc/hosts of the node, or set"
    " GLOO_SOCKET_IFNAME to the interface with that address"
)


def one_machine_finding(evidence: Evidence) -> Finding:
    """Return the finding for a job of several nodes, all of which are one machine."""
    names = tuple(dict.fromkeys(evidence.nodes[node] for node in sorted(evidence.nodes)))
    nodes = listed("node", names) if len(names) > 1 else f"the {len(evidence.nodes)} nodes of {names[0]}"
    return Finding(
        severity="info",
        check=_CHECK,
        what=f"{nodes} are one machine: nothing between machines is checked, and each uses all its cores",
        culprit=Culprit(kind="none", name="nobody can be named"),
        action="If they should be several machines, look where the launcher started them.",
    )


def closed_finding(seen: Observations, cause: Cause, closed: Mapping[str, Pairs], other: str | None) -> Finding:
    """Return the finding for pairs that cannot connect.

    ``closed``: by how they failed; ``other``: an interface over which all can, and ranks do.
    """
    sources, targets = _named(seen, cause.sources), _named(seen, cause.targets)
    _, example = next(iter(cause.pairs))
    where = f"{_how(cause.pairs, closed)} at {_place(seen, example)}"
    works = _what_works(seen, cause)
    named = listed("node", [seen.nodes[node].name for node in cause.sources])
    several = len(cause.sources) > 1
    action = _MEND.get(_hows(cause.pairs, closed)[0], "") + _open_action(seen)
    match cause.shape:
        case "all":
            what = f"no node can connect to another one: {where}{works}"
        case "in":
            what = f"{named} take{'' if several else 's'} no connections from the other nodes: {where}{works}"
            own = [seen.nodes[node] for node in cause.sources if seen.nodes[node].because == "name"]
            if own and len(own) == len(cause.sources):
                whose = f"the own name{'s' if several else ''} of {named} lead{'' if several else 's'} to"
                addresses = ", ".join(node.places["data"][0] for node in own[:_SHOWN])
                what, action = f"{whose} {addresses}, which no other node reaches ({where})", _MAP_NAME
        case "out":
            what = f"{named} cannot connect to any other node: {where}, and other nodes can connect there{works}"
            action = action.replace("open all TCP ports", "open all TCP ports, also outgoing ones,")
        case "both":
            what = f"{named} can neither connect to the other nodes nor be reached by them: {where}{works}"
        case "among":
            what = f"{sources} cannot connect to one another: {where}; other nodes can connect to them{works}"
        case "between" | "pair":
            back = ", nor the other way" if cause.mutual else ""
            what = f"{sources} cannot connect to {targets}{back}: {where}{works}"
            reported = all((cause.targets[0], source) in seen.tried.pairs for source in cause.sources)
            if not cause.mutual and cause.shape == "pair" and reported:
                what += f"; {targets} can connect to {sources}"
        case "rest":
            what = f"{len(cause.pairs)} more connections between {sources} failed: {where}"
    if other is not None:
        what += f"; over {other} all nodes reach one another, so the ranks use that"
        action = f"set GLOO_SOCKET_IFNAME={other} and NCCL_SOCKET_IFNAME=={other} for trainings too, or {action}"
    severity: Severity = "fail" if other is None else "warn"
    return _finding(severity, what, _culprit(seen, cause), action, _lines(seen, cause.pairs, closed))


def large_finding(seen: Observations, cause: Cause, large: Mapping[int | None, Pairs]) -> Finding:
    """Return the finding for paths on which large packets are lost. ``large``: by the largest packet that passed."""
    passes = [size for size, pairs in large.items() if size is not None and pairs & cause.pairs]
    packets = f"packets above {min(passes):,} bytes" if passes else "packets of full size"
    sources, targets = _named(seen, cause.sources), _named(seen, cause.targets)
    named = listed("node", [seen.nodes[node].name for node in cause.sources])
    match cause.shape:
        case "all":
            way = "between all nodes"
        case "in":
            way = f"to {named}"
        case "out":
            way = f"from {named}"
        case "both":
            way = f"to and from {named}"
        case "among":
            way = f"among {sources}"
        case "rest":
            way = f"between {sources} on {len(cause.pairs)} more paths"
        case _:
            way = f"between {sources} and {targets}" if cause.mutual else f"from {sources} to {targets}"
    action = (
        "set the MTU of the interfaces to what the path carries, or enlarge it along the path (tunnels, VLANs and"
        " VPNs take some bytes of each packet), and let ICMP pass"
    )
    lines = [
        f"{_arrow(seen, pair)}: small packets pass"
        + "".join(f", up to {size:,} bytes" for size, pairs in large.items() if size and pair in pairs)
        for pair in islice(cause.pairs, _SHOWN)
    ]
    return _finding("fail", f"{packets} are lost {way}, smaller ones pass", _culprit(seen, cause), action, lines)


def duplicate_finding(seen: Observations, address: str, nodes: Sequence[int], *, of_names: bool = False) -> Finding:
    """Return the finding for an address that several nodes have. ``of_names``: only their names lead to it."""
    if not of_names and len({seen.nodes[node].says_machine for node in nodes}) == 1:
        return _one_machine(seen, address, nodes)
    by_name = of_names or all(seen.nodes[node].because == "name" for node in nodes)
    because = ": the own name of each leads to it" if by_name else ""
    action = _MAP_NAME if by_name else "give each node an address that no other one has"
    severity: Severity = "warn" if of_names else "fail"
    what = f"{len(nodes)} nodes claim the address {address}{because}"
    culprit = _nodes(seen, nodes)
    if not of_names:
        # One of them may have it, and the others, which may be agents of one host, only say so.
        some = "one" if len(nodes) == 2 else "some"
        culprit = Culprit(kind="none", name=f"{some} of {culprit.name}, not separable", nodes=culprit.nodes)
    return _finding(severity, what, culprit, action)


def _one_machine(seen: Observations, address: str, nodes: Sequence[int]) -> Finding:
    """Return the finding for nodes that say they are one machine, which joined from several places.

    A machine may take two ways to the controller, and a host may claim the machine and the address of another one: then
    connections to either prove nothing.
    """
    places = [seen.nodes[node].place_of_node or "an unknown address" for node in nodes]
    what = (
        f"{listed('node', [seen.nodes[node].name for node in nodes])} say that they are one machine with the address"
        f" {address}, and joined from {', '.join(dict.fromkeys(places[:_SHOWN]))}"
    )
    action = (
        "if they are one machine, name the controller by one address (MASTER_ADDR), so that all take the same way to"
        " it; if not, one of them is not what it says"
    )
    culprit = Culprit(kind="none", name="nobody could be named", nodes=_hostnames(seen, nodes))
    return _finding("error", what, culprit, action)


def failure_words(how: str) -> str:
    """Return how a connection failed, in words of ours."""
    return _HOW.get(how, "no answer")


def name_finding(seen: Observations, hows: Mapping[int, Mapping[str, int]], *, nobody: bool) -> Finding:
    """Return the finding for nodes whose own names lead to addresses that others do not reach.

    ``hows``: node -> how connections to it failed -> of which sources, as bits. ``nobody``: no source reaches any of
    these addresses.
    """
    several = len(hows) > 1
    places = [seen.nodes[target].places["name"] for target in hows]
    counts, all_sources = Counter[str](), 0
    for of_target in hows.values():
        for how, bits in of_target.items():
            counts[how] += bits.bit_count()
            all_sources |= bits
    (how, _), *_ = counts.most_common(1)
    reached = "no other node reaches" if nobody else f"{_named(seen, [*numbers_of(all_sources)])} cannot reach"
    addresses = listed("", [address for address, _ in places]).partition(" ")[2]
    names = f"the own name{'s' if several else ''} of {listed('node', [seen.nodes[target].name for target in hows])}"
    what = (
        f"{names} lead{'' if several else 's'} to {addresses}, which {reached} ({how}); this"
        f" trial uses {'other addresses' if several else 'another address'}"
    )
    lines = [
        f"{seen.nodes[source].name} -> {_written(*seen.nodes[target].places['name'])}: {failure}"
        for target, of_target in islice(hows.items(), _SHOWN)
        for source, failure in sorted(
            (source, failure) for failure, bits in of_target.items() for source in islice(numbers_of(bits), _SHOWN)
        )[:_SHOWN]
    ]
    return _finding("warn", what, _nodes(seen, tuple(hows)), _MAP_NAME, lines)


def port_finding(seen: Observations, target: int, role: str, hows: Mapping[int, str], tried: Sequence[int]) -> Finding:
    """Return the finding for the rendezvous of a node whose other ports are open.

    ``hows``: source -> how its connection failed; ``tried``: the sources that tried it, as far as they are known.
    """
    node, sources = seen.nodes[target], sorted(hows)
    is_master = role == "master"
    is_needed = not is_master or node.master_port_set
    meaning = ("MASTER_PORT" if node.master_port_set else "the usual MASTER_PORT") if is_master else "the rendezvous"
    place = f"node {node.name} at {_written(*node.places[role])} ({meaning})"
    (how, _), *_ = Counter(hows.values()).most_common(1)
    what = f"{_named(seen, sources)} cannot connect to {place}: {_HOW.get(how, 'no answer')}"
    ends = sorted((target, *sources))
    num_failed, num_tried = len(_places_of(seen, sources)), len(_places_of(seen, {*sources, *tried}))
    if len(sources) == 1:
        # The word of one node against another one.
        names = f"link {seen.nodes[ends[0]].name}–{seen.nodes[ends[1]].name}, endpoints not separable"
        culprit = Culprit(kind="link", name=names, nodes=_hostnames(seen, ends))
    elif num_failed < _LEAST_HOSTS or 2 * num_failed <= num_tried:
        culprit = _between(seen, ends)  # of one host against another one, or of few hosts against many
    else:
        culprit = _nodes(seen, (target,))
    return _finding("fail" if is_needed else "warn", what, culprit, _open_action(seen))


def _places_of(seen: Observations, nodes: Iterable[int]) -> set[str | int]:
    """Return the hosts of these nodes: where each one joined, else the node itself."""
    return {seen.nodes[node].place_of_node or node for node in nodes}


def hostname_finding(seen: Observations, hostname: str, nodes: Sequence[int]) -> Finding:
    """Return the finding for a host name that several nodes have."""
    what = f"{len(nodes)} nodes have the hostname {as_name(hostname)}"
    return _finding("warn", what, _nodes(seen, nodes), "give each node a hostname that no other one has")


def _finding(severity: Severity, what: str, culprit: Culprit, action: str, evidence: Iterable[str] = ()) -> Finding:
    return Finding(
        severity=severity,
        check=_CHECK,
        what=what,
        culprit=culprit,
        evidence=tuple(evidence)[:_SHOWN],
        action=f"{action}.",
    )


def _culprit(seen: Observations, cause: Cause) -> Culprit:
    if cause.shape in ("in", "out", "both"):
        return _nodes(seen, cause.sources)
    ends = tuple(sorted({*cause.sources, *cause.targets}))
    names = tuple(seen.nodes[node].name for node in ends)
    if cause.shape == "pair":
        return Culprit(kind="link", name=f"link {names[0]}–{names[1]}", nodes=_hostnames(seen, ends))
    if len(seen.nodes) == 2:
        return Culprit(kind="link", name=f"link {names[0]}–{names[1]}", nodes=_hostnames(seen, ends))
    return _between(seen, ends)


def _between(seen: Observations, ends: Sequence[int]) -> Culprit:
    names = [seen.nodes[node].name for node in ends]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return Culprit(kind="fabric", name=f"the network between {shown}", nodes=_hostnames(seen, ends))


def _nodes(seen: Observations, nodes: Sequence[int]) -> Culprit:
    names = [seen.nodes[node].name for node in nodes]
    return Culprit(kind="node", name=listed("node", names), nodes=_hostnames(seen, nodes))


def _hostnames(seen: Observations, nodes: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(seen.nodes[node].host for node in nodes))


def _named(seen: Observations, nodes: Sequence[int]) -> str:
    """Return the names of nodes: ``node0``, ``node0 and node1``, ``node0, node1, node2, node3 and 12 more``."""
    return listed("", [seen.nodes[node].name for node in nodes]).partition(" ")[2] if nodes else ""


def _how(pairs: Pairs, closed: Mapping[str, Pairs]) -> str:
    return " or ".join(_HOW.get(how, "no answer") for how in _hows(pairs, closed))


def _hows(pairs: Pairs, closed: Mapping[str, Pairs]) -> list[str]:
    """Return in which one or two ways most of the pairs failed."""
    counts = +Counter({how: len(its & pairs) for how, its in closed.items()})
    return [how for how, _ in counts.most_common(2)]


def _place(seen: Observations, node: int) -> str:
    return _written(*seen.nodes[node].places["data"])


def _written(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _arrow(seen: Observations, pair: Pair) -> str:
    return f"{seen.nodes[pair[0]].name} -> {seen.nodes[pair[1]].name}"


def _lines(seen: Observations, pairs: Pairs, closed: Mapping[str, Pairs]) -> list[str]:
    shown = list(islice(pairs, _SHOWN - 1))
    lines = [
        f"{_arrow(seen, pair)} at {_place(seen, pair[1])}: {_HOW.get(how, 'no answer')}"
        for pair in shown
        for how in [next(how for how, its in closed.items() if pair in its)]
    ]
    return [*lines, f"and {len(pairs) - len(shown)} more"] if len(pairs) > len(shown) else lines


def _what_works(seen: Observations, cause: Cause) -> str:
    """Return what shows that these nodes are not down."""
    nodes = [seen.nodes[node] for node in (*cause.sources, *cause.targets)]
    if all(node.by_ssh for node in nodes):
        return " (ssh works)"
    return " (its control connection works)" if len(nodes) == 1 else ""


def _open_action(seen: Observations) -> str:
    environments: set[str] = {node.environment for node in seen.nodes.values()}
    return next((_OPEN_IN[environment] for environment in environments if environment in _OPEN_IN), _OPEN)
