"""A host's cable is pulled at the switch, before a trial or during a collective: that host is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hosts import Hosts
from live.host_trials import HostTrial, named

pytestmark = pytest.mark.hosts

_JOIN_S = 15
_PLAN = """
deadline_s = 50
checks = ["bootstrap", "collectives"]
[collectives]
cpu_sizes = [8, 1_048_576]
minutes = 0.1
"""

PULLED: dict[tuple[int, int | None], list[tuple[str, str]]] = {
    (3, None): [],
    (3, 1): [("node", "node node1")],
    (3, 0): [("fabric", "the network between node node0 and the others")],
    (2, None): [],
    (2, 1): [("link", "link node0–node1, endpoints not separable")],
}
"""(number of hosts, host of the cable) -> the expected culprit. Node 0 conducts: without it all others are silent."""


def trial_without_cable(hosts: Hosts, number: int) -> dict[str, Any]:
    """The report of a trial on which that host never came; what conducts it had this much patience."""
    hosts[number].pull_cable()
    return HostTrial(hosts, _PLAN, env={"SEATRIAL_JOIN_TIMEOUT_S": str(_JOIN_S)}).report()


def trial_that_loses_a_cable(hosts: Hosts, number: int | None) -> dict[str, Any]:
    """The report of a trial in which that host, if any, was cut off as soon as the collectives began."""
    trial = HostTrial(hosts, _PLAN)
    try:
        trial.until(lambda event: event["kind"] == "step" and event["check"] == "collectives")
        if number is not None:
            hosts[number].pull_cable()
    except BaseException:
        trial.end()
        raise
    return trial.report()


def test_a_host_cut_off_from_the_start_blames_nobody(
    hosts: Callable[[int], Hosts],
) -> None:
    report = trial_without_cable(hosts(3), 2)
    assert named(report) == []
    assert report["acceptance"]["status"] == "INCONCLUSIVE"
    reasons = report["acceptance"]["reasons"]
    assert any(reason.startswith(f"node 2 did not join within {_JOIN_S} s;") for reason in reasons), reasons


@pytest.mark.parametrize(
    ("count", "number"),
    [pytest.param(*pulled, marks=() if pulled == (2, 1) else pytest.mark.nightly) for pulled in PULLED],
)
def test_a_host_cut_off_during_a_collective_is_named(
    hosts: Callable[[int], Hosts], count: int, number: int | None
) -> None:
    report = trial_that_loses_a_cable(hosts(count), number)
    assert named(report) == PULLED[count, number], report["findings"]
    assert report["acceptance"]["status"] == ("PASS" if number is None else "FAIL")
    assert number is None or "silent" in report["findings"][0]["what"]


def test_over_ssh_an_unreachable_host_is_a_sentence(hosts: Callable[[int], Hosts]) -> None:
    made = hosts(3)
    made[2].pull_cable()
    where = ["--on", "ssh", "--hosts", "node0,node1,node2", "--nproc-per-node", "1", "--device", "cpu"]
    done = made[0].run(*made.seatrial("run", "smoke", *where, "--python", str(made.python)), timeout_s=40.0)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: node2: no route to the host")
