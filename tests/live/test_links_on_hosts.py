"""The links check on hosts whose cables are really limited, cut or noisy: who is at fault is named, and nobody else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hosts import Host, Hosts

pytestmark = pytest.mark.hosts

_PLAN = """
deadline_s = 55
checks = ["links"]
[links]
cpu_bytes = 1_048_576
seconds = 0.3
pair_timeout_s = 2.0
"""


def run_trial(hosts: Hosts) -> dict[str, Any]:
    """One rank a host, as torchrun would start them; the report of rank 0."""
    plan = hosts.folder / "links.toml"
    plan.write_text(_PLAN)
    running = [
        subprocess.Popen(
            host.argv(
                "env",
                *_identity(host, hosts),
                *hosts.seatrial("run", str(plan), "--json", "--out", str(host.home / f"out{host.number}")),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    try:
        told = [process.communicate(timeout=58) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    assert told[0][0], told[0][1]
    report: dict[str, Any] = json.loads(told[0][0])
    return report


def _identity(host: Host, hosts: Hosts) -> list[str]:
    known: dict[str, object] = {"RANK": host.number, "WORLD_SIZE": len(hosts.each), "LOCAL_RANK": 0}
    known |= {"LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": hosts[0].address, "MASTER_PORT": 29512}
    known |= {"SEATRIAL_TOKEN": "of these hosts", "GLOO_SOCKET_IFNAME": "eth0"}
    return [f"{name}={value}" for name, value in known.items()]


def _limit(host: Host, rate: str) -> None:
    """What it sends, and at the switch what it receives."""
    host.limit(rate)
    words = f"qdisc replace dev {host.cable} root tbf rate {rate} burst 128kb latency 100ms"
    subprocess.run(["tc", "-n", host.switch, *words.split()], check=True, capture_output=True)


def at_one_gbit(hosts: Hosts) -> Hosts:
    """What this machine's virtual cables reach depends on its cores; this rate they all reach."""
    for host in hosts:
        _limit(host, "1gbit")
    return hosts


def _lose(hosts: Hosts) -> None:
    for other in (0, 1):
        rule = ["-s", hosts[other].address, "-m", "statistic", "--mode", "random", "--probability", "0.3"]
        hosts[2].firewall("-A", "INPUT", *rule, "-j", "DROP")


FAULTS: dict[str, tuple[Callable[[Hosts], object], list[tuple[str, str]]]] = {
    "none": (lambda hosts: None, []),
    "node2 at 100 Mbit/s": (lambda hosts: _limit(hosts[2], "100mbit"), [("node", "node node2")]),
    "node1 sends at 100 Mbit/s": (lambda hosts: hosts[1].limit("100mbit"), [("node", "node node1")]),
    "node1 hears nothing from node3": (
        lambda hosts: hosts[1].firewall("-A", "INPUT", "-s", hosts[3].address, "-j", "DROP"),
        [("link", "link node1–node3")],
    ),
    "node2 resets what node3 connects": (
        lambda hosts: hosts[2].firewall(
            *("-A", "INPUT", "-p", "tcp", "-s", hosts[3].address, "-j", "REJECT", "--reject-with", "tcp-reset")
        ),
        [("link", "link node2–node3")],
    ),
    "node2 of three loses 30 % of what it is sent": (_lose, [("node", "node node2")]),
}
"""What is planted -> how, and who is to be named."""


def hosts_of(fault: str) -> int:
    """On how many hosts: where meeting a lossy one takes ten seconds, three are enough."""
    return 3 if "of three" in fault else 4


def is_right(found: list[tuple[str, str]], fault: str) -> bool:
    """Whether those were to be named and nobody else. A lossy node may be clean with somebody by luck: its links."""
    if "loses" in fault:
        return bool(found) and all("node2" in name for _, name in found)
    return found == FAULTS[fault][1]


def named(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who is at fault by the report."""
    return [(f["culprit"]["kind"], f["culprit"]["name"]) for f in report["findings"] if f["severity"] == "fail"]


@pytest.mark.parametrize("fault", FAULTS)
def test_who_is_at_fault_is_named_and_nobody_else(hosts: Callable[[int], Hosts], fault: str) -> None:
    made = at_one_gbit(hosts(hosts_of(fault)))
    plant, expected = FAULTS[fault]
    plant(made)
    report = run_trial(made)
    assert is_right(named(report), fault), report["findings"]
    assert report["acceptance"]["status"] == ("FAIL" if expected else "PASS"), report["findings"]
    rates = [figure["value"] for figure in report["figures"] if figure["name"] == "gbps"]
    assert max(rates) < 0.15, "1 Gbit/s is 0.125 GB/s, and the limiter lets a burst through"
    if fault == "node1 sends at 100 Mbit/s":
        assert any("node1 (sending) reaches 0.01" in finding["what"] for finding in report["findings"])


@pytest.mark.slow
def test_over_ssh_the_ranks_run_from_the_file_that_travels_and_the_solver_is_at_home(
    hosts: Callable[[int], Hosts],
) -> None:
    made = at_one_gbit(hosts(3))
    _limit(made[2], "100mbit")
    plan = made.folder / "links.toml"
    plan.write_text(_PLAN)
    where = ["--on", "ssh", "--hosts", "node0,node1,node2", "--nproc-per-node", "1", "--device", "cpu"]
    done = made[0].run(*made.seatrial("run", str(plan), *where, "--python", str(made.python), "--json"), timeout_s=58.0)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert named(report) == [("node", "node node2")], report["findings"]
    assert report["acceptance"]["status"] == "FAIL"
