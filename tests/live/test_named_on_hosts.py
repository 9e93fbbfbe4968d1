"""Hosts over ssh: closed ports are named with both ends, and hosts have the names that were typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hosts import SSH_PORT, Hosts
from live.host_trials import at_one_rate, limit_both_ways, named

pytestmark = pytest.mark.hosts


def _over_ssh(hosts: Hosts, plan: str, *, planted: str = "") -> dict[str, Any]:
    """Return the report of a trial with one rank on each host."""
    file = hosts.folder / "over_ssh.toml"
    file.write_text(plan)
    names = ",".join(host.name for host in hosts)
    where = ["--on", "ssh", "--hosts", names, "--nproc-per-node", "1", "--device", "cpu"]
    argv = hosts.seatrial("run", str(file), *where, "--python", str(hosts.python), "--json")
    done = hosts[0].run("env", f"SEATRIAL_PLANT={planted}", *argv, timeout_s=58.0)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _close_ports(hosts: Hosts) -> None:
    """The security group of a new cluster: ssh in, and nothing else."""
    for host in hosts:
        host.firewall("-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
        host.firewall("-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
        host.firewall("-A", "INPUT", "-p", "tcp", "--dport", str(SSH_PORT), "-j", "ACCEPT")
        host.firewall("-A", "INPUT", "-p", "icmp", "-j", "ACCEPT")
        host.firewall("-A", "INPUT", "-j", "DROP")


@pytest.mark.parametrize(
    "checks", [pytest.param('["links", "bootstrap"]', marks=pytest.mark.nightly), '["bootstrap", "collectives"]']
)
def test_closed_ports_name_both_ends_once(hosts: Callable[[int], Hosts], checks: str) -> None:
    made = hosts(3)
    _close_ports(made)
    report = _over_ssh(made, f"deadline_s = 55\nchecks = {checks}\n")
    errors = [finding for finding in report["findings"] if finding["severity"] in ("fail", "error")]
    assert named(report) == [("fabric", "the network between node0 and node1, node2")], report["findings"]
    assert len(errors) == 1
    assert errors[0]["what"].startswith("node1, node2 cannot connect to node0 at 10.77.0.10:")
    assert errors[0]["what"].endswith("(no answer)")
    assert report["acceptance"]["status"] == "FAIL"


_LINKS = """
deadline_s = 55
checks = ["links"]
[links]
cpu_bytes = 1_048_576
seconds = 0.3
pair_timeout_s = 2.0
"""


def test_hosts_that_share_a_name_are_told_apart(hosts: Callable[..., Hosts]) -> None:
    """Clones of one image: the user typed node0, node1, ..., and all of them call themselves worker."""
    made = at_one_rate(hosts(3, called="worker"))
    limit_both_ways(made[2], "100mbit")
    report = _over_ssh(made, _LINKS)
    assert named(report) == [("node", "node node2 (calls itself worker)")], report["findings"]
    (finding,) = (finding for finding in report["findings"] if finding["severity"] == "fail")
    assert finding["culprit"]["nodes"] == ["node2"]


@pytest.mark.nightly
def test_a_dead_rank_is_on_the_host_that_was_typed(hosts: Callable[..., Hosts]) -> None:
    made = hosts(3, called="worker")
    plan = 'deadline_s = 55\nchecks = ["bootstrap", "collectives"]\n'
    report = _over_ssh(made, plan, planted="kill@collectives:2")
    assert [name.partition(" on ")[0] for _, name in named(report)] == ["rank 2"]
    assert "on node node2 (calls itself worker)" in named(report)[0][1]


@pytest.mark.nightly
def test_closed_ports_are_one_error_on_one_screen(hosts: Callable[..., Hosts]) -> None:
    """The check of the network names it; what hangs afterwards, if anything, follows from that."""
    made = hosts(3)
    _close_ports(made)
    where = ["--on", "ssh", "--hosts", "node0,node1,node2", "--nproc-per-node", "1", "--device", "cpu"]
    argv = made.seatrial("run", "smoke", *where, "--python", str(made.python), "--skip", "compute,memory")
    done = made[0].run(*argv, timeout_s=58.0)
    shown = done.stdout.splitlines()
    assert "FINAL ACCEPTANCE: FAIL" in shown, done.stderr
    assert len([line for line in shown if line.startswith("- Error")]) == 1, done.stdout
    assert any(line.startswith("- Communication") and "FAIL" in line for line in shown), done.stdout
    assert sum(-(-len(line) // 80) for line in shown) <= 23, done.stdout
