"""The checks that look at hosts, on two that are network namespaces of this machine: what really breaks is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hosts import Hosts

pytestmark = pytest.mark.hosts

_OWN = "127.0.0.1 localhost\n10.77.0.10 node0\n{} node1\n"
"""/etc/hosts of the second."""


def _trial(made: Hosts, second: dict[str, str], *, checks: str = "inventory,host", **both: str) -> dict[str, Any]:
    """These checks on both, as a launcher would start them.

    ``second``: variables of the second one only; ``both``: of each one.
    """
    running = []
    for host in made:
        command = [
            *made.seatrial("run", "smoke", "--only", checks, "--json"),
            "--out",
            str(host.home / "out"),
        ]
        identity = {"RANK": str(host.number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        identity |= {
            "MASTER_ADDR": made[0].address,
            "MASTER_PORT": "29512",
            "SEATRIAL_TOKEN": "the secret of these two",
            **both,
        }
        variables = [f"{name}={value}" for name, value in {**identity, **(second if host.number else {})}.items()]
        running.append(
            subprocess.Popen(
                host.argv("env", *variables, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [process.communicate(timeout=55) for process in running]
    report: dict[str, Any] = json.loads(outputs[0][0])
    return report


def _findings(report: dict[str, Any]) -> dict[str, str]:
    return {finding["what"]: finding["severity"] for finding in report["findings"]}


def test_two_hosts_with_different_mtus_are_otherwise_fine(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    made[1].ip("link", "set", "eth0", "mtu", "1400")
    report = _trial(made, {"GLOO_SOCKET_IFNAME": "eth0"})
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    (what,) = _findings(report)
    assert "different MTUs" in what
    facts = [fact["value"] for fact in report["facts"] if fact["name"] == "host"]
    assert [(each["mtu"], each["name"]["own"]) for each in facts] == [(1500, "10.77.0.10"), (1400, "10.77.0.11")]
    assert all(abs(each["clock"][0]) <= each["clock"][1] + 1.0 for each in facts), "one machine has one clock"


def test_a_loopback_name_and_a_useless_variable_are_named(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(2)
    (made[1].etc / "hosts").write_text(_OWN.format("127.0.1.1"))
    report = _trial(made, {"NCCL_SOCKET_IFNAME": "lo"})
    assert report["exit_code"] == 1
    found = _findings(report)
    assert sorted(found.values()) == ["fail", "warn"]
    (what,) = (what for what, severity in found.items() if severity == "fail")
    assert "the hostname of node node1 resolves to 127.0.1.1" in what
    assert any(what.startswith("NCCL_SOCKET_IFNAME=lo on node node1 leaves no interface") for what in found)


def test_a_first_host_whose_own_name_is_a_loopback_address_for_itself(hosts: Callable[[int], Hosts]) -> None:
    """As the installers of Debian and Ubuntu write it, and torch works with: GLOO_SOCKET_IFNAME names the interface."""
    made = hosts(2)
    (made[0].etc / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 node0\n10.77.0.11 node1\n")
    report = _trial(made, {}, checks="inventory,bootstrap", MASTER_ADDR="node0", GLOO_SOCKET_IFNAME="eth0")
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    assert [node["address"] for node in report["nodes"]] == ["10.77.0.10", "10.77.0.11"]
