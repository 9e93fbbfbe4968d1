"""The rules of the host check for several nodes: hostnames, interfaces, MTUs, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.checks.host.host_view import MOST_LINES, HostView, Remark, TrialSetup
from seatrial.checks.host.params import Params
from seatrial.checks.host.rules import clock_rule, lookup_rule
from seatrial.checks.shared.host_inventory import HostInventory, listed, split
from seatrial.probe.names import is_loopback

_ONE_MTU = "give all nodes one MTU; where they differ, large messages may be cut up or lost"


def remarks_among_nodes(hosts: Sequence[HostView], setup: TrialSetup) -> Iterator[Remark]:
    """Yield what keeps the nodes from finding one another, and the settings in which they differ."""
    for host in hosts:
        yield from _hostname(host, setup)
        yield from _interfaces(host, setup)
    yield from _mtus(hosts)
    yield from _clocks(hosts, setup.params)


def _hostname_trouble(name: Mapping[str, Any]) -> str:
    """Return why others cannot reach a node under the addresses of its hostname; empty if they can, or if unknown."""
    addresses, own = name.get("addresses"), name.get("own")
    if addresses is None:
        return ""
    if not addresses:
        return "is not known to its resolver"
    if own is None:
        shown = ", ".join(map(str, addresses[:3]))
        return f"resolves to {shown}, which is no address of the node"
    return f"resolves to {own}, which on every host means that host itself" if is_loopback(str(own)) else ""


def _hostname(host: HostView, setup: TrialSetup) -> Iterator[Remark]:
    name: Mapping[str, Any] = host.facts.get("name") or {}
    trouble = _hostname_trouble(name)
    if trouble:
        is_needed = setup.gloo and "GLOO_SOCKET_IFNAME" not in (host.facts.get("chosen") or {})
        yield Remark(
            severity="fail" if is_needed else "warn",
            what=f"the hostname of {{nodes}} {trouble}: Gloo and torchrun would give that address to the other nodes",
            machine=host.machine,
            action=host.remedy("name"),
        )
    elif name and name.get("addresses") is None:
        yield Remark(
            severity="warn",
            what="the resolver of {nodes} does not look up the node's hostname in time",
            machine=host.machine,
            limit=lookup_rule(setup.params).limit(),
            action="check the name servers in /etc/resolv.conf, or put the hostname into /etc/hosts",
        )


def _interfaces(host: HostView, setup: TrialSetup) -> Iterator[Remark]:
    to_conductor = host.facts.get("interface")
    for variable, choice in (host.facts.get("chosen") or {}).items():
        unknown = ", ".join(map(str, (choice.get("unknown") or ())[:MOST_LINES]))
        if unknown:
            trouble, breaks = f"names {unknown}, which does not exist or is not up", True
        elif not choice.get("leaves_host"):
            trouble, breaks = "leaves no interface to the other nodes", True
        elif to_conductor is not None and not choice.get("has_own"):
            # This may be intended: a separate network for the data.
            trouble, breaks = f"leaves out {to_conductor}, which leads to the controller", False
        else:
            continue
        is_used = setup.gloo == (variable == "GLOO_SOCKET_IFNAME")
        example = f", such as {to_conductor}" if to_conductor else ""
        yield Remark(
            severity="fail" if breaks and is_used else "warn",
            what=f"{variable}={choice.get('value')} on {{nodes}} {trouble}",
            machine=host.machine,
            action=f"unset {variable}, or name the interface that leads to the other nodes{example}",
        )


def _mtus(hosts: Sequence[HostView]) -> Iterator[Remark]:
    known = {host.machine.ranks[0]: host for host in hosts if isinstance(host.facts.get("mtu"), int)}
    mtus = {rank: host.facts["mtu"] for rank, host in known.items()}
    difference = split(mtus, [host.machine for host in known.values()])
    if difference is None:
        return
    lines = {rank: f"{host.machine.name}: {host.facts['interface']} {mtus[rank]}" for rank, host in known.items()}
    if difference.majority is None:
        yield Remark(
            severity="warn",
            what="the interfaces between the nodes have different MTUs, and no MTU is that of more than half of them",
            machine=next(iter(known.values())).machine,
            named=False,
            evidence=tuple(lines[ranks[0]] for ranks in difference.odd.values()),
            action=_ONE_MTU,
        )
        return
    for mtu, ranks in difference.odd.items():
        for rank in ranks:
            yield Remark(
                severity="warn",
                what=f"the interface of {{nodes}} has an MTU of {mtu} where most have {difference.majority}",
                machine=known[rank].machine,
                evidence=(lines[rank],),
                action=_ONE_MTU,
            )


def _duration(duration_ms: float, sign: str = "-") -> str:
    """Return milliseconds in the largest unit of which there are two; ``sign`` as in a format: ``+`` or ``-``."""
    for unit, unit_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("s", 1_000)):
        if abs(duration_ms) >= 2 * unit_ms:
            return f"{duration_ms / unit_ms:{sign}.4g} {unit}"
    return f"{duration_ms:{sign}.4g} ms"


def _clocks(hosts: Sequence[HostView], params: Params) -> Iterator[Remark]:
    """Compare each clock with the median clock; the accuracy of both measurements counts in the node's favor."""
    clocks = [(host.machine, float(clock[0]), float(clock[1])) for host in hosts if (clock := host.facts.get("clock"))]
    missing = [host.machine.name for host in hosts if not host.facts.get("clock")]
    if missing:
        yield Remark(
            severity="info",
            what=f"the clock of {listed('node', missing)} was not compared: it could not be measured in time",
            machine=hosts[0].machine,
            named=False,
        )
    if len(clocks) < 2:
        return
    clocks.sort(key=lambda clock: clock[1])
    _, median_ms, median_accuracy_ms = clocks[(len(clocks) - 1) // 2]
    rule = clock_rule(params)
    beyond: list[tuple[HostInventory, float, str]] = []
    for machine, offset_ms, accuracy_ms in clocks:
        away_ms, error_ms = offset_ms - median_ms, accuracy_ms + median_accuracy_ms
        if not rule.passes(abs(away_ms) - error_ms):
            beyond.append((machine, away_ms, f"{_duration(away_ms, sign='+')}, accurate to {error_ms:.2g} ms"))
    action = "have NTP (chrony) set the clocks of the nodes"
    if 2 * len(beyond) < len(clocks):
        for machine, away_ms, measured in beyond:
            yield Remark(
                severity="warn",
                what="the clock of {nodes} differs from that of most nodes",
                machine=machine,
                limit=rule.limit(),
                measured=measured,
                badness=abs(away_ms),
                action=action,
            )
    else:
        ends = [clocks[0], *clocks[-(MOST_LINES - 1) :]]
        yield Remark(
            severity="warn",
            what="the clocks of the nodes differ, and the measurements do not show which of them are right",
            machine=clocks[-1][0],
            named=False,
            limit=rule.limit(),
            measured=f"{_duration(clocks[-1][1] - clocks[0][1])} between the first and the last",
            evidence=tuple(
                f"{machine.name}: {_duration(offset_ms, sign='+')} from the controller"
                for machine, offset_ms, _ in ends
            ),
            action=action,
        )
