"""The rules of the host check for more than one node: names, interfaces, MTUs, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seatrial.checks._fleet import listed, split
from seatrial.checks._host_scene import LINES, Node, Remark, Scene
from seatrial.probe.names import is_loopback
from seatrial.verdict.findings import Limit

if TYPE_CHECKING:
    from seatrial.checks.host import Params

__all__ = ["among_nodes"]


def among_nodes(nodes: Sequence[Node], scene: Scene) -> Iterator[Remark]:
    """What keeps the nodes from finding one another, and what they have unlike."""
    for node in nodes:
        yield from _name(node, scene)
        yield from _interfaces(node, scene)
    yield from _mtus(nodes)
    yield from _clocks(nodes, scene.params)


def _trouble_of(name: Mapping[str, Any]) -> str:
    """Why others cannot reach a node by what its name resolves to on it; empty where they can, or nobody knows."""
    addresses, own = name.get("addresses"), name.get("own")
    if addresses is None:
        return ""
    if not addresses:
        return "is not known to its resolver"
    if own is None:
        return f"resolves to {', '.join(map(str, addresses[:3]))}, which is no address of the node"
    return f"resolves to {own}, by which every host means itself" if is_loopback(str(own)) else ""


def _name(node: Node, scene: Scene) -> Iterator[Remark]:
    name: Mapping[str, Any] = node.facts.get("name") or {}
    trouble = _trouble_of(name)
    if trouble:
        by_name = scene.gloo and "GLOO_SOCKET_IFNAME" not in (node.facts.get("chosen") or {})
        yield Remark(
            severity="fail" if by_name else "warn",
            what=f"the name of {{who}} {trouble}: Gloo and torchrun would tell that to the other nodes",
            machine=node.machine,
            action=node.remedy("name"),
        )
    elif name and name.get("addresses") is None:
        yield Remark(
            severity="warn",
            what="the resolver of {who} does not answer for the node's own name in time",
            machine=node.machine,
            limit=Limit(value=scene.params.resolve_timeout_s, unit="s", origin="host.resolve_timeout_s"),
            action="look at the name servers in /etc/resolv.conf, or put the name into /etc/hosts",
        )


def _interfaces(node: Node, scene: Scene) -> Iterator[Remark]:
    own = node.facts.get("interface")
    for variable, choice in (node.facts.get("chosen") or {}).items():
        unknown = ", ".join(map(str, choice.get("unknown") or ()))
        if unknown:
            which, breaks = f"names {unknown}, which is not there or not up", True
        elif not choice.get("leaves_host"):
            which, breaks = "leaves no interface to the other nodes", True
        elif own is not None and not choice.get("has_own"):
            # It may be meant: a network of its own for the data.
            which, breaks = f"leaves out {own}, which leads to the controller", False
        else:
            continue
        used = scene.gloo == (variable == "GLOO_SOCKET_IFNAME")
        such_as = f", such as {own}" if own else ""
        yield Remark(
            severity="fail" if breaks and used else "warn",
            what=f"{variable}={choice.get('value')} on {{who}} {which}",
            machine=node.machine,
            action=f"unset {variable}, or name the interface that leads to the other nodes{such_as}",
        )


def _mtus(nodes: Sequence[Node]) -> Iterator[Remark]:
    known = [node for node in nodes if isinstance(node.facts.get("mtu"), int)]
    values = {node.machine.ranks[0]: node.facts["mtu"] for node in known}
    found = split(values, [node.machine for node in known])
    if found is None:
        return
    lines = {
        node.machine.ranks[0]: f"{node.machine.name}: {node.facts['interface']} {node.facts['mtu']}" for node in known
    }
    if found.majority is None:
        yield Remark(
            severity="warn",
            what="the interfaces between the nodes have different MTUs, and no MTU is that of more than half of them",
            machine=known[0].machine,
            named=False,
            evidence=tuple(lines[ranks[0]] for ranks in found.odd.values()),
            action="give all nodes one MTU; where they differ, large messages may be cut up or lost",
        )
        return
    for mtu, ranks in found.odd.items():
        for node in known:
            if node.machine.ranks[0] in ranks:
                yield Remark(
                    severity="warn",
                    what=f"the interface of {{who}} has an MTU of {mtu} where most have {found.majority}",
                    machine=node.machine,
                    evidence=(lines[node.machine.ranks[0]],),
                    action="give all nodes one MTU; where they differ, large messages may be cut up or lost",
                )


def _clocks(nodes: Sequence[Node], params: Params) -> Iterator[Remark]:
    """Against the clock in the middle; what the measurement may be wrong by is taken off before anything is said."""
    told = [(node.machine, float(clock[0]), float(clock[1])) for node in nodes if (clock := node.facts.get("clock"))]
    silent = [node.machine.name for node in nodes if not node.facts.get("clock")]
    if silent:
        yield Remark(
            severity="info",
            what=f"the clock of {listed('node', silent)} was not compared, as it was not told in time",
            machine=nodes[0].machine,
            named=False,
        )
    if len(told) < 2:
        return
    told.sort(key=lambda entry: entry[1])
    _, middle_ms, middle_accuracy_ms = told[(len(told) - 1) // 2]
    limit = Limit(value=params.max_clock_offset_ms, unit="ms", origin="host.max_clock_offset_ms")
    beyond = []
    for machine, offset_ms, accuracy_ms in told:
        away_ms, unsure_ms = offset_ms - middle_ms, accuracy_ms + middle_accuracy_ms
        if abs(away_ms) - unsure_ms > limit.value:
            beyond.append((machine, away_ms, f"{away_ms:+.4g} ms, accurate to {unsure_ms:.2g} ms"))
    action = "have NTP (chrony) set the clocks of the nodes"
    if 2 * len(beyond) < len(told):
        for machine, away_ms, measured in beyond:
            yield Remark(
                severity="warn",
                what="the clock of {who} differs from that of most nodes",
                machine=machine,
                limit=limit,
                measured=measured,
                worse=abs(away_ms),
                action=action,
            )
    else:
        ends = [told[0], *told[-(LINES - 1) :]]
        yield Remark(
            severity="warn",
            what="the clocks of the nodes differ, and which of them are right cannot be told",
            machine=told[-1][0],
            named=False,
            limit=limit,
            measured=f"{told[-1][1] - told[0][1]:.4g} ms between the first and the last",
            evidence=tuple(
                f"{machine.name}: {offset_ms:+.4g} ms from the controller" for machine, offset_ms, _ in ends
            ),
            action=action,
        )
