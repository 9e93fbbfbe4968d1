"""The links check on hosts whose cables are really limited, cut, slow or noisy: the culprit is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hosts import Hosts
from live.host_trials import Fault, HostTrial, at_one_rate, limit_both_ways, named
from relay import slow_cable

pytestmark = pytest.mark.hosts

_PLAN = """
deadline_s = 55
checks = ["links"]
[links]
cpu_bytes = 1_048_576
seconds = 0.3
pair_timeout_s = 2.0
"""


def _lose_from_others(hosts: Hosts, share: float) -> None:
    """The traffic from the others to the last of them."""
    *others, last = hosts
    for other in others:
        rule = ["-s", other.address, "-m", "statistic", "--mode", "random", "--probability", str(share)]
        last.firewall("-A", "INPUT", *rule, "-j", "DROP")


_SLOW_CABLE_RATE = "100mbit"
"""A process forwards each frame of such a cable; at 1 Gbit/s (80,000 frames/s) it would need a core for itself."""

FAULTS: dict[str, Fault] = {
    "none": Fault(),
    "node2 at 100 Mbit/s": Fault(
        plant=lambda hosts: limit_both_ways(hosts[2], "100mbit"),
        named=[("node", "node node2")],
    ),
    "node1 sends at 100 Mbit/s": Fault(
        plant=lambda hosts: hosts[1].limit("100mbit"),
        named=[("node", "node node1")],
    ),
    "5 ms on each way from and to node2": Fault(
        plant=lambda hosts: slow_cable(hosts[2], 5.0),
        named=[("node", "node node2")],
        rate=_SLOW_CABLE_RATE,
    ),
    "5 ms between node1 and node3": Fault(
        plant=lambda hosts: slow_cable(hosts[1], 5.0, only_with=hosts[3]),
        named=[("link", "link node1–node3")],
        rate=_SLOW_CABLE_RATE,
    ),
    "node1 hears nothing from node3": Fault(
        plant=lambda hosts: hosts[1].firewall("-A", "INPUT", "-s", hosts[3].address, "-j", "DROP"),
        named=[("link", "link node1–node3")],
    ),
    "node2 resets what node3 connects": Fault(
        plant=lambda hosts: hosts[2].firewall(
            *("-A", "INPUT", "-p", "tcp", "-s", hosts[3].address, "-j", "REJECT", "--reject-with", "tcp-reset")
        ),
        named=[("link", "link node2–node3")],
    ),
    "node3 loses 5 % of what it is sent": Fault(
        plant=lambda hosts: _lose_from_others(hosts, 0.05),
        named=[("node", "node node3")],
    ),
    # Where meeting a lossy one takes ten seconds, three are enough.
    "node2 of three loses 30 % of what it is sent": Fault(
        plant=lambda hosts: _lose_from_others(hosts, 0.3),
        named=[("node", "node node2")],
        hosts=3,
    ),
}
"""By what is planted."""


def links_trial(hosts: Hosts, fault: str) -> dict[str, Any]:
    """Its report, within a minute. Where packets are lost each meeting takes up to ten seconds, and how many there are
    is chance."""
    if "30 %" in fault:
        return HostTrial(hosts, _PLAN.replace("= 55", "= 150")).report(timeout_s=170.0)
    return HostTrial(hosts, _PLAN).report()


def is_right(report: Mapping[str, Any], fault: str) -> bool:
    """Whether those were named that were to be, and nobody else. A lossy node may be clean with somebody by luck."""
    found = named(report)
    if "30 %" in fault:
        return bool(found) and all("node2" in name for _, name in found)
    return found == list(FAULTS[fault].named)


_CHEAP: tuple[str, ...] = (
    "none",
    "node2 at 100 Mbit/s",
    "5 ms between node1 and node3",
    "node1 hears nothing from node3",
)
"""Cases that CI runs; the others run nightly."""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=() if name in _CHEAP else pytest.mark.nightly) for name in FAULTS]
)
def test_only_the_culprit_is_named(hosts: Callable[[int], Hosts], fault: str) -> None:
    made = at_one_rate(hosts(FAULTS[fault].hosts), FAULTS[fault].rate)
    with FAULTS[fault].planted(made):
        report = links_trial(made, fault)
    assert is_right(report, fault), report["findings"]
    assert report["acceptance"]["status"] == ("FAIL" if FAULTS[fault].named else "PASS"), report["findings"]
    rates = [measurement["value"] for measurement in report["measurements"] if measurement["name"] == "gbps"]
    # Of 30 % loss the check of the network may be the one that names the node; then no rate is measured.
    assert max(rates, default=0.0) < 0.15, "1 Gbit/s is 0.125 GB/s, and the limiter lets a burst through"
    sentences = str([finding["what"] for finding in report["findings"]])
    if fault == "node1 sends at 100 Mbit/s":
        assert "node1 (sending) reaches 0.01" in sentences
    if "5 ms" in fault:
        assert "has a latency of" in str(report["findings"])


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_link_that_loses_packets_is_named_in_groups(hosts: Callable[[int], Hosts]) -> None:
    """Above 16 hosts pairs are no longer measured one by one. At 100 Mbit/s two cores carry them all."""
    made = hosts(17)
    for host in made:
        limit_both_ways(host, "100mbit")
    drop = ["-s", made[3].address, "-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP"]
    made[1].firewall("-A", "INPUT", *drop)
    # As on a real cable packets are lost one by one, and not 45 at once or none.
    made[3].ip("link", "set", "dev", "eth0", "gso_max_segs", "1")
    plan = _PLAN.replace("= 55", "= 150").replace("1_048_576", "262_144").replace("s = 2.0", "s = 5.0")
    report = HostTrial(made, plan).report(timeout_s=170.0)
    assert named(report) == [("link", "link node1–node3")], report["findings"]
    assert "(from node3 to node1) makes TCP send again" in str(report["findings"])
    assert any(measurement["name"] == "group_gbps" for measurement in report["measurements"])


@pytest.mark.slow
def test_over_ssh_ranks_run_from_the_bundle_and_links_are_solved(
    hosts: Callable[[int], Hosts],
) -> None:
    made = at_one_rate(hosts(3))
    limit_both_ways(made[2], "100mbit")
    plan = made.folder / "links.toml"
    plan.write_text(_PLAN)
    where = ["--on", "ssh", "--hosts", "node0,node1,node2", "--nproc-per-node", "1", "--device", "cpu"]
    done = made[0].run(*made.seatrial("run", str(plan), *where, "--python", str(made.python), "--json"), timeout_s=58.0)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert named(report) == [("node", "node node2")], report["findings"]
    assert report["acceptance"]["status"] == "FAIL"
