"""Hosts over ssh whose network is odd: routes, neighbors, addresses, ports, losses, delays, firewalls that count.

Each row is one oddity with whom the trial must name, nobody if it does no harm.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from hosts import SSH_PORT, Host, Hosts
from live.host_faults import COLLECTIVES, HostFault, faults_of, on, run_fault

pytestmark = [pytest.mark.hosts, pytest.mark.nightly, pytest.mark.timeout(200)]

_CHECKS = ("network", *COLLECTIVES)
_NOT_SSH = ("-p", "tcp", "-m", "multiport", "!", "--ports", str(SSH_PORT))


def _inside(host: Host, *command: str) -> None:
    subprocess.run(["nsenter", f"--net=/run/netns/{host.namespace}", *command], check=True, capture_output=True)


def _kernel_setting(host: Host, path: str, value: str) -> None:
    """A setting below /proc/sys/net/ipv4 of this host."""
    _inside(host, "sh", "-c", 'printf %s "$2" >"/proc/sys/net/ipv4/$1"', "sh", path, value)


def _asymmetric_route(hosts: Hosts) -> None:
    """What node1 sends to node2 takes another way than what node2 sends back, and node2 is strict about that."""
    for host in hosts:
        host.join_network(f"10.88.0.{10 + host.number}/24")
    hosts[1].ip("route", "add", f"{hosts[2].address}/32", "via", "10.88.0.12", "src", hosts[1].address)
    _kernel_setting(hosts[2], "conf/all/arp_ignore", "1")  # all interfaces are at one switch here
    for interface in ("all", "eth0", "eth1"):
        _kernel_setting(hosts[2], f"conf/{interface}/rp_filter", "1")


def _stale_neighbor(hosts: Hosts) -> None:
    words = f"neigh replace {hosts[2].address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
    hosts[1].ip(*words.split())


def _lose_large_inbound(hosts: Hosts) -> None:
    hosts[2].firewall("-A", "INPUT", "-m", "length", "--length", "1401:65535", *_NOT_SSH, "-j", "DROP")


def _few_ports(hosts: Hosts) -> None:
    _kernel_setting(hosts[2], "ip_local_port_range", "61000 61003")


def _flapping(hosts: Hosts) -> None:
    """The cable of node2 is out for half a second of each three."""
    host = hosts[2]

    def flap() -> None:
        try:
            while True:
                time.sleep(2.5)
                host.pull_cable()
                time.sleep(0.5)
                host.plug_cable()
        except AssertionError:
            return  # the host is gone

    threading.Thread(target=flap, daemon=True).start()


def _lose_some(hosts: Hosts) -> None:
    words = ("-m", "statistic", "--mode", "random", "--probability", "0.05")
    hosts[2].firewall("-A", "OUTPUT", *_NOT_SSH, *words, "-j", "DROP")


def _firewall_that_resets(hosts: Hosts) -> None:
    """A firewall lets connections begin and resets them at the first packet of data."""
    hosts[2].firewall(
        "-A", "INPUT", *_NOT_SSH, "-m", "connbytes", "--connbytes", "4:", "--connbytes-dir", "both",
        "--connbytes-mode", "packets", "-j", "REJECT", "--reject-with", "tcp-reset",
    )  # fmt: skip


def _stale_hosts_file(hosts: Hosts) -> None:
    """On node2, the names of the others lead to addresses that nobody has any more."""
    file = hosts[2].etc / "hosts"
    file.write_text(file.read_text().replace("10.77.0.10 ", "10.77.0.210 ").replace("10.77.0.11 ", "10.77.0.211 "))


def _wrong_first_address(hosts: Hosts) -> None:
    """The own name of node2 leads to two addresses; the first one is of a network that nobody else has."""
    hosts[2].ip("link", "add", "storage0", "type", "bridge")
    hosts[2].ip("addr", "add", "10.55.0.12/24", "dev", "storage0")
    hosts[2].ip("link", "set", "storage0", "up")
    file = hosts[2].etc / "hosts"
    file.write_text(f"10.55.0.12 node2\n{file.read_text()}")


def _privacy_addresses(hosts: Hosts) -> None:
    """Each host has three IPv6 addresses beside that of its name, as privacy extensions make them."""
    for host in hosts:
        for number in range(3):
            host.ip("-6", "addr", "add", f"fd77::a{host.number}{number}:1/64", "dev", "eth0", "nodad")


def _route(kind: str) -> Callable[[Hosts], None]:
    return lambda hosts: hosts[2].ip("route", "add", kind, f"{hosts[1].address}/32")


FAULTS: dict[str, HostFault] = {
    "none, network": HostFault(checks=_CHECKS, verdict="PASS"),
    "node1 reaches node2 by a way that node2 does not take back": HostFault(
        plant=_asymmetric_route,
        checks=_CHECKS,
        verdict="PASS",
        words=["node1 cannot connect to node2", "over eth1 all nodes reach one another"],
    ),
    "node1 keeps a stale neighbor for node2": HostFault(
        plant=_stale_neighbor, checks=_CHECKS, named=["link node1–node2"]
    ),
    "large packets are lost on the way to node2": HostFault(
        plant=_lose_large_inbound, checks=_CHECKS, named=["node node2"], words=["packets above 1,400 bytes", "to node"]
    ),
    "node2 has four ports for connections": HostFault(plant=_few_ports, checks=_CHECKS, verdict="PASS"),
    "the cable of node2 flaps": HostFault(plant=_flapping, checks=_CHECKS, verdict="PASS"),
    "node2 loses 5 % of what it sends": HostFault(plant=_lose_some, checks=_CHECKS, verdict="PASS"),
    "a firewall of node2 resets connections with data": HostFault(
        plant=_firewall_that_resets, checks=_CHECKS, named=["node node2"]
    ),
    "node2 has a stale /etc/hosts": HostFault(plant=_stale_hosts_file, checks=_CHECKS, verdict="PASS"),
    "node2's own name leads to a wrong address first": HostFault(
        plant=_wrong_first_address, checks=_CHECKS, verdict="PASS", words=["node2", "10.55.0.12"]
    ),
    "privacy addresses": HostFault(plant=_privacy_addresses, checks=_CHECKS, verdict="PASS"),
    "variables of a proxy on node2": HostFault(
        plant=on(2, "export http_proxy=http://10.99.0.1:3128 https_proxy=http://10.99.0.1:3128 ALL_PROXY=socks5://x:1"),
        checks=_CHECKS,
        verdict="PASS",
    ),
    "node2 may open 64 files": HostFault(plant=on(2, "ulimit -n 64"), checks=_CHECKS, verdict="PASS", words=["node2"]),
    "node2 has a blackhole route to node1": HostFault(
        plant=_route("blackhole"), checks=_CHECKS, named=["link node1–node2"], words=["no route"]
    ),
    "node2 has a prohibiting route to node1": HostFault(
        plant=_route("prohibit"), checks=_CHECKS, named=["link node1–node2"], words=["no route"]
    ),
    "the loopback of node2 is down": HostFault(
        plant=lambda hosts: hosts[2].ip("link", "set", "lo", "down"),
        checks=_CHECKS,
        named=["node node2"],
        words=["the loopback interface of node node2 is down"],
    ),
}
"""By what is planted."""


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_is_at_fault_is_named(hosts: Callable[..., Hosts], fault: str) -> None:
    row = FAULTS[fault]
    outcome = run_fault(hosts(row.hosts, row.called), row)
    assert faults_of(outcome, row) == [], (outcome.named, outcome.said)
