"""The links check on hosts whose cables are really limited, cut or noisy: who is at fault is named, and nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import time
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
pair_timeout_s = {pair_timeout_s}
"""


def _trial(hosts: Hosts, *, pair_timeout_s: float = 4.0) -> dict[str, Any]:
    """One rank a host, as torchrun would start them; the report of rank 0 and how long it took."""
    plan = hosts.folder / "links.toml"
    plan.write_text(_PLAN.format(pair_timeout_s=pair_timeout_s))
    started = time.monotonic()
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
    assert told[0][0], told[0][1]
    report: dict[str, Any] = json.loads(told[0][0])
    print(f"{time.monotonic() - started:.1f} s", json.dumps(report["findings"], indent=1))
    return report


def _identity(host: Host, hosts: Hosts) -> list[str]:
    size = len(hosts.each)
    known = {"RANK": host.number, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    known |= {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": 29512, "SEATRIAL_TOKEN": "of these hosts"}
    known |= {"GLOO_SOCKET_IFNAME": "eth0"}
    return [f"{name}={value}" for name, value in known.items()]


def _limit_at_switch(host: Host, rate: str) -> None:
    """What it receives."""
    words = f"qdisc replace dev {host.cable} root tbf rate {rate} burst 128kb latency 100ms"
    subprocess.run(["tc", "-n", host.switch, *words.split()], check=True, capture_output=True)


def _named(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(f["culprit"]["kind"], f["culprit"]["name"]) for f in report["findings"] if f["severity"] == "fail"]


@pytest.fixture
def four(hosts: Callable[[int], Hosts]) -> Hosts:
    """Four hosts at 1 Gbit/s each way."""
    made = hosts(4)
    for host in made:
        host.limit("1gbit")
        _limit_at_switch(host, "1gbit")
    return made


def test_four_healthy_hosts_pass(four: Hosts) -> None:
    report = _trial(four)
    assert report["acceptance"]["status"] == "PASS", report["findings"]
    rates = [figure["value"] for figure in report["figures"] if figure["name"] == "gbps"]
    assert len(rates) >= 12
    assert 0.05 < min(rates) < max(rates) < 0.13, "1 Gbit/s is 0.125 GB/s"


def test_a_host_at_100_mbit_among_others_at_1_gbit_is_named(four: Hosts) -> None:
    four[2].limit("100mbit")
    _limit_at_switch(four[2], "100mbit")
    report = _trial(four)
    assert _named(report) == [("node", "node node2")]


def test_one_direction_is_told(four: Hosts) -> None:
    four[1].limit("100mbit")
    report = _trial(four)
    assert _named(report) == [("node", "node node1")]
    (finding,) = (f for f in report["findings"] if f["severity"] == "fail")
    assert finding["what"].startswith("node node1 (sending) reaches 0.01")


def test_a_link_that_carries_nothing_between_two_good_hosts(four: Hosts) -> None:
    four[1].firewall("-A", "INPUT", "-s", four[3].address, "-j", "DROP")
    report = _trial(four)
    assert _named(report) == [("link", "link node1–node3")]


def test_a_link_whose_connections_are_reset(four: Hosts) -> None:
    four[2].firewall("-A", "INPUT", "-p", "tcp", "-s", four[3].address, "-j", "REJECT", "--reject-with", "tcp-reset")
    report = _trial(four)
    assert _named(report) == [("link", "link node2–node3")]


@pytest.mark.parametrize("share", ["0.05", "0.3"])
def test_a_host_that_loses_packets_of_its_data(four: Hosts, share: str) -> None:
    """Of those from the other hosts' ranks; what the conductor on the first host says comes through."""
    for other in (1, 2):
        rule = ["-s", four[other].address, "-m", "statistic", "--mode", "random", "--probability", share]
        four[3].firewall("-A", "INPUT", *rule, "-j", "DROP")
    rule = ["-p", "tcp", "-s", four[0].address, "-m", "statistic", "--mode", "random", "--probability", share]
    four[3].firewall("-A", "INPUT", *rule, "-j", "DROP")
    report = _trial(four)
    assert _named(report) == [("node", "node node3")]
