"""The check network over ssh, on hosts whose firewalls, names, addresses and MTUs are really wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hosts import SSH_PORT, Host, Hosts
from live.host_trials import named

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(150)]

_ONLY_NETWORK = ("--only", "network")
_UNTIL_COLLECTIVES = ("--only", "network,host,collectives")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFault:
    """A fault of the network, and what the trial must say."""

    plant: Callable[[Hosts], object] = lambda hosts: None
    named: Sequence[tuple[str, str]] = ()
    """Kind and name of each culprit of a failure."""
    words: Sequence[str] = ()
    """Parts of the sentences, of warnings too."""
    hosts: int = 4
    options: Sequence[str] = _ONLY_NETWORK
    is_cheap: bool = False
    """CI runs it; the others run nightly."""


def close_ports(host: Host, *target: str, source: str = "0.0.0.0/0", ports: str = "1:65535") -> None:
    """A firewall as on most clusters: ssh, ping and answers come in, and other connections do not."""
    for rule in (
        ("-i", "lo"),
        ("-m", "state", "--state", "ESTABLISHED,RELATED"),
        ("-p", "tcp", "--dport", str(SSH_PORT)),
        ("-p", "icmp"),
    ):
        host.firewall("-A", "INPUT", *rule, "-j", "ACCEPT")
    host.firewall("-A", "INPUT", "-p", "tcp", "-s", source, "--dport", ports, "-j", *(target or ("DROP",)))


def each(hosts: Hosts, plant: Callable[[Host], None], first: int = 0) -> None:
    """Plant a fault on several hosts. The first one also conducts, and reaches itself by its name."""
    for host in hosts.each[first:]:
        plant(host)


def close_output(host: Host) -> None:
    """Connections do not leave the host."""
    host.firewall("-A", "OUTPUT", "-p", "tcp", "--syn", "-j", "DROP")


def _lose_answers(hosts: Hosts, by: int) -> None:
    """Calls to one host arrive and are repeated, since no answer comes back. Its kernel counts these as dropped."""
    answers = ("-p", "tcp", "-s", hosts[by].address, "--tcp-flags", "SYN,ACK", "SYN,ACK")
    for host in hosts:
        host.firewall("-A", "INPUT", *answers, "!", "--sport", str(SSH_PORT), "-j", "DROP")


def lose_large(host: Host, *peer: str) -> None:
    """Packets above 1,400 bytes are lost on the way to and from the host, but not those of ssh."""
    size = ("-p", "tcp", "-m", "length", "--length", "1401:65535")
    from_peer = ("-s", *peer) if peer else ()
    to_peer = ("-d", *peer) if peer else ()
    host.firewall("-A", "INPUT", *size, *from_peer, "-m", "multiport", "!", "--ports", str(SSH_PORT), "-j", "DROP")
    host.firewall("-A", "OUTPUT", *size, *to_peer, "-m", "multiport", "!", "--ports", str(SSH_PORT), "-j", "DROP")


def name_itself(host: Host, address: str) -> None:
    """The host's own name leads to an address, on that host only."""
    file = host.etc / "hosts"
    lines = [line for line in file.read_text().splitlines() if not line.endswith(f" {host.name}")]
    file.write_text("\n".join([*lines, f"{address} {host.name}"]) + "\n")


def add_interface(host: Host, name: str, address: str) -> None:
    """An interface that leads nowhere, such as docker0."""
    host.ip("link", "add", name, "type", "bridge")
    host.ip("addr", "add", address, "dev", name)
    host.ip("link", "set", name, "up")


def isolate_management(hosts: Hosts) -> None:
    """Another network between all hosts; on the one that ssh uses, workers do not see one another."""
    for host in hosts:
        host.join_network(f"10.88.0.{10 + host.number}/24")
    for host in hosts.each[1:]:
        for other in hosts.each[1:]:
            if other is not host:
                host.firewall("-A", "INPUT", "-s", other.address, "-j", "DROP")


def leave_ipv4(hosts: Hosts) -> None:
    """The hosts have IPv6 addresses only."""
    names = [f"fd77::{10 + host.number} {host.name}" for host in hosts]
    for host in hosts:
        host.ip("-4", "addr", "flush", "dev", "eth0")
        host.ip("-6", "addr", "add", f"fd77::{10 + host.number}/64", "dev", "eth0", "nodad")
        (host.etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *names, ""]))


def _close_ipv6(hosts: Hosts) -> None:
    leave_ipv4(hosts)
    for rule in (("-i", "lo"), ("-p", "tcp", "--dport", str(SSH_PORT)), ("-p", "icmpv6")):
        hosts[2].ipv6_firewall("-A", "INPUT", *rule, "-j", "ACCEPT")
    hosts[2].ipv6_firewall("-A", "INPUT", "-m", "state", "--state", "ESTABLISHED", "-j", "ACCEPT")
    hosts[2].ipv6_firewall("-A", "INPUT", "-j", "DROP")


def kill_resolver(hosts: Hosts) -> None:
    """Own names are known to a resolver only, which does not answer."""
    for host in hosts.each[1:]:
        (host.etc / "hosts").write_text("127.0.0.1 localhost\n")
        (host.etc / "resolv.conf").write_text("nameserver 10.77.0.250\n")


def _docker(hosts: Hosts, *, own_name: bool) -> None:
    for host in hosts:
        add_interface(host, "docker0", "172.17.0.1/16")
        if own_name and host.number:
            name_itself(host, "172.17.0.1")


def _unreached_name(hosts: Hosts) -> None:
    add_interface(hosts[1], "storage0", "10.55.0.11/24")
    name_itself(hosts[1], "10.55.0.11")


def _wrong_netmask(hosts: Hosts) -> None:
    hosts[3].ip("addr", "flush", "dev", "eth0")
    hosts[3].ip("addr", "add", f"{hosts[3].address}/29", "dev", "eth0")  # .8 to .15: it still sees all four
    hosts[3].ip("route", "add", "unreachable", hosts[1].address)


FAULTS: dict[str, NetworkFault] = {
    "none": NetworkFault(is_cheap=True),
    "none, 2 hosts": NetworkFault(hosts=2, options=_UNTIL_COLLECTIVES),
    "node2 takes no connections": NetworkFault(
        plant=lambda hosts: close_ports(hosts[2]),
        named=[("node", "node node2")],
        words=["node2 takes no connections", "no answer at 10.77.0.12:", "(ssh works)", "open all TCP ports"],
        is_cheap=True,
    ),
    "node0 takes no connections": NetworkFault(
        plant=lambda hosts: close_ports(hosts[0]), named=[("node", "node node0")], words=["takes no connections"]
    ),
    "all are closed": NetworkFault(
        plant=lambda hosts: each(hosts, close_ports),
        named=[("fabric", "the network between node0, node1, node2, node3")],
        words=["no node can connect to another one: no answer"],
    ),
    "all reject": NetworkFault(
        plant=lambda hosts: each(hosts, lambda host: close_ports(host, "REJECT")),
        named=[("fabric", "the network between node0, node1, node2, node3")],
        words=["no node can connect to another one: refused"],
    ),
    "node2 rejects as prohibited": NetworkFault(
        plant=lambda hosts: close_ports(hosts[2], "REJECT", "--reject-with", "icmp-admin-prohibited"),
        named=[("node", "node node2")],
        words=["no route at 10.77.0.12:"],
    ),
    "node2 may not connect": NetworkFault(
        plant=lambda hosts: close_output(hosts[2]),
        named=[("node", "node node2")],
        words=["node2 cannot connect to any other node", "outgoing"],
    ),
    "node1 of 2 takes no connections": NetworkFault(
        plant=lambda hosts: close_ports(hosts[1]),
        named=[("link", "link node0–node1")],
        words=["node0 cannot connect to node1", "node1 can connect to node0"],
        hosts=2,
    ),
    "node3 drops what node1 connects": NetworkFault(
        plant=lambda hosts: close_ports(hosts[3], source=hosts[1].address),
        named=[("link", "link node1–node3")],
        words=["node1 cannot connect to node3", "node3 can connect to node1"],
    ),
    "node2 closes the ports of the kernel's choice": NetworkFault(
        plant=lambda hosts: close_ports(hosts[2], ports="32768:60999"),
        named=[("node", "node node2")],
        words=["takes no connections"],
    ),
    "node0 closes MASTER_PORT": NetworkFault(
        plant=lambda hosts: close_ports(hosts[0], ports="29500:29500"),
        words=["10.77.0.10:29500 (the usual MASTER_PORT)"],
    ),
    "node3 has no route to node1": NetworkFault(
        plant=_wrong_netmask, named=[("link", "link node1–node3")], words=["no route"]
    ),
    "large packets are lost at node2": NetworkFault(
        plant=lambda hosts: lose_large(hosts[2]),
        named=[("node", "node node2")],
        words=["packets above 1,400 bytes are lost to and from node node2", "MTU"],
        is_cheap=True,
    ),
    "large packets are lost between node1 and node3": NetworkFault(
        plant=lambda hosts: lose_large(hosts[1], hosts[3].address),
        named=[("link", "link node1–node3")],
        words=["packets above 1,400 bytes are lost between node1 and node3"],
    ),
    "own names lead to 127.0.1.1": NetworkFault(
        plant=lambda hosts: each(hosts, lambda host: name_itself(host, "127.0.1.1"), first=1),
        options=_UNTIL_COLLECTIVES,
    ),
    "own names in a resolver that is dead": NetworkFault(plant=kill_resolver, options=_UNTIL_COLLECTIVES),
    "IPv6 only": NetworkFault(plant=leave_ipv4, options=_UNTIL_COLLECTIVES),
    "IPv6 only, node2 takes no connections": NetworkFault(
        plant=_close_ipv6,
        named=[("node", "node node2")],
        words=["node2 takes no connections", "no answer at [fd77::12]:", "(ssh works)"],
    ),
    "docker0 on all": NetworkFault(plant=lambda hosts: _docker(hosts, own_name=False), options=_UNTIL_COLLECTIVES),
    "own names lead to docker0": NetworkFault(
        plant=lambda hosts: _docker(hosts, own_name=True),
        words=["3 nodes claim the address 172.17.0.1: the own name of each leads to it"],
        options=_UNTIL_COLLECTIVES,
    ),
    "own name of node1 leads to a network of its own": NetworkFault(
        plant=_unreached_name,
        words=["the own name of node node1 leads to 10.55.0.11, which no other node reaches"],
        options=_UNTIL_COLLECTIVES,
    ),
    "answers of node2 are lost": NetworkFault(
        plant=lambda hosts: _lose_answers(hosts, by=2),
        named=[("node", "node node2")],
        words=["node2 takes no connections", "no answer at"],
    ),
    "ssh by a network on which workers are isolated": NetworkFault(
        plant=isolate_management,
        words=["node1, node2 and node3 cannot connect to one another", "over eth1 all nodes reach one another"],
        options=_UNTIL_COLLECTIVES,
        is_cheap=True,
    ),
}
"""By what is planted."""


def network_trial(hosts: Hosts, fault: NetworkFault) -> dict[str, Any]:
    """Return the report of the trial that a user starts on node0."""
    where = ("--on", "ssh", "--hosts", ",".join(host.name for host in hosts), "--device", "cpu")
    words = hosts.seatrial("run", "quick", *fault.options, *where, "--nproc-per-node", "1", "--json")
    done = hosts[0].run(*words, "--python", str(hosts.python), timeout_s=140.0)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def is_right(report: Mapping[str, Any], fault: NetworkFault) -> bool:
    """Return whether those who had to be named were, in the right words, and nobody else."""
    said = " ".join(f"{finding['what']} {finding['action']}" for finding in report["findings"])
    return (
        named(report) == list(fault.named)
        and report["acceptance"]["status"] == ("FAIL" if fault.named else "PASS")
        and all(words in said for words in fault.words)
    )


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if row.is_cheap else pytest.mark.nightly) for name, row in FAULTS.items()]
)
def test_only_the_culprit_is_named(hosts: Callable[[int], Hosts], fault: str) -> None:
    row = FAULTS[fault]
    made = hosts(row.hosts)
    row.plant(made)
    report = network_trial(made, row)
    assert is_right(report, row), (report["acceptance"], report["findings"])
    assert report["missing"] == []
