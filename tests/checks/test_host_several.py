"""The host check among several nodes: names, interfaces, MTUs and clocks."""

from __future__ import annotations

from typing import Any

import pytest
from checks.simulated_hosts import host_fleet

from seatrial.checks.host import CHECK, Params
from seatrial.verdict.findings import Finding

GLOO: dict[str, Any] = {"device_type": "cpu", "backend": "gloo"}


def judge(*fleet: Any, params: Params | None = None, **options: Any) -> tuple[Finding, ...]:
    return CHECK.judge(host_fleet(*fleet, **options), params or Params()).findings


def on_node(number: int, **facts: Any) -> Any:
    def bend(node: int, local_rank: int, told: dict[str, Any]) -> None:
        if node == number:
            told |= facts

    return bend


# Names


def named(addresses: list[str] | None, own: str | None) -> Any:
    return on_node(1, name={"name": "n1", "addresses": addresses, "own": own})


@pytest.mark.parametrize(
    ("addresses", "own", "words"),
    [
        (["127.0.1.1"], "127.0.1.1", "resolves to 127.0.1.1, by which every host means itself"),
        (["::1"], "::1", "resolves to ::1"),
        (["10.9.9.9"], None, "resolves to 10.9.9.9, which is no address of the node"),
        ([], None, "is not known to its resolver"),
    ],
)
@pytest.mark.parametrize("nodes", [2, 1000])
def test_a_name_that_others_cannot_use_breaks_gloo(
    nodes: int, addresses: list[str], own: str | None, words: str
) -> None:
    (finding,) = judge(nodes, 1, named(addresses, own), **GLOO)
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n1",))
    assert f"the name of node n1 {words}" in finding.what
    assert "/etc/hosts" in finding.action
    assert judge(nodes, 1, named(addresses, own))[0].severity == "warn", "NCCL does not go by it"


def test_gloo_does_not_go_by_the_name_where_it_is_told_an_interface() -> None:
    eth0 = {"value": "eth0", "taken": ["eth0"], "unknown": [], "has_own": True, "leaves_host": True}
    loopback = {"name": "n1", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}
    (finding,) = judge(2, 1, on_node(1, name=loopback, chosen={"GLOO_SOCKET_IFNAME": eth0}), **GLOO)
    assert finding.severity == "warn"


def test_a_loopback_name_is_told_of_one_node_only_as_harmless() -> None:
    loopback = {"name": "n0", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}
    (finding,) = judge(1, 2, on_node(0, name=loopback), **GLOO)
    assert (finding.severity, finding.what) == (
        "info",
        "the name of node n0 resolves to 127.0.1.1, which does no harm with one node",
    )
    unknown: tuple[dict[str, Any], ...] = ({"addresses": None, "own": None}, {"addresses": [], "own": None})
    for name in unknown:
        assert judge(1, 2, on_node(0, name=name), **GLOO) == ()


def test_a_resolver_that_does_not_answer_warns() -> None:
    (finding,) = judge(2, 1, named(None, None), **GLOO)
    assert finding.severity == "warn"
    assert "does not answer" in finding.what


# Interfaces


def chosen(variable: str, **choice: Any) -> Any:
    told = {"value": "{x}", "taken": ["ib0"], "unknown": [], "has_own": False, "leaves_host": True}
    return on_node(1, chosen={variable: {**told, **choice}})


@pytest.mark.parametrize(
    ("variable", "backend", "severity"),
    [
        ("NCCL_SOCKET_IFNAME", "nccl", "fail"),
        ("NCCL_SOCKET_IFNAME", "gloo", "warn"),
        ("GLOO_SOCKET_IFNAME", "gloo", "fail"),
        ("GLOO_SOCKET_IFNAME", "nccl", "warn"),
    ],
)
@pytest.mark.parametrize(
    "choice",
    [
        {"taken": [], "leaves_host": False},
        {"taken": ["lo"], "leaves_host": False},
        {"unknown": ["eth9"], "has_own": True},
    ],
)
def test_a_choice_that_leaves_no_way_out_breaks_the_backend_that_reads_it(
    variable: str, backend: str, severity: str, choice: dict[str, Any]
) -> None:
    (finding,) = judge(2, 2, chosen(variable, **choice), backend=backend)
    assert (finding.severity, finding.culprit.nodes) == (severity, ("n1",))
    assert f"{variable}={{x}} on node n1 " in finding.what
    assert "eth0" in finding.action


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_another_interface_than_the_controllers_only_warns(variable: str) -> None:
    """It may be a network of its own for the data."""
    for backend in ("nccl", "gloo"):
        (finding,) = judge(2, 2, chosen(variable), backend=backend)
        assert finding.severity == "warn"
        assert "leaves out eth0, which leads to the controller" in finding.what


def test_a_choice_that_has_the_way_out_is_fine() -> None:
    assert judge(2, 2, chosen("NCCL_SOCKET_IFNAME", has_own=True)) == ()


def test_where_the_way_is_not_known_only_what_surely_breaks_is_told() -> None:
    def bend(node: int, local_rank: int, told: dict[str, Any]) -> None:
        chosen("NCCL_SOCKET_IFNAME")(node, local_rank, told)
        told |= {"interface": None, "mtu": None}

    assert judge(2, 2, bend) == ()


def test_one_node_alone_talks_to_nobody() -> None:
    fleet = host_fleet(1, 2, on_node(0, chosen={"NCCL_SOCKET_IFNAME": {"value": "x", "taken": []}}))
    assert CHECK.judge(fleet, Params()).findings == ()


# MTU


@pytest.mark.parametrize("nodes", [3, 1000])
def test_the_node_with_another_mtu_is_named(nodes: int) -> None:
    (finding,) = judge(nodes, 2, on_node(1, mtu=1500))
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n1",))
    assert finding.what == "the interface of node n1 has an MTU of 1500 where most have 9000"
    assert finding.evidence == ("n1: eth0 1500",)


def test_two_nodes_with_two_mtus_name_nobody() -> None:
    (finding,) = judge(2, 2, on_node(1, mtu=1500))
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")
    assert set(finding.evidence) == {"n0: eth0 9000", "n1: eth0 1500"}


def test_an_mtu_that_is_not_known_is_nobodys_minority() -> None:
    assert judge(3, 2, on_node(1, mtu=None)) == ()


# Clocks


@pytest.mark.parametrize("nodes", [3, 4, 1000])
@pytest.mark.parametrize("offset_ms", [250.0, -5000.0])
def test_the_node_whose_clock_is_off_is_named(nodes: int, offset_ms: float) -> None:
    (finding,) = judge(nodes, 2, on_node(2, clock=[offset_ms, 0.2]))
    assert (finding.severity, finding.culprit.nodes) == ("warn", ("n2",))
    assert finding.what == "the clock of node n2 differs from that of most nodes"
    assert finding.limit is not None
    assert finding.limit.value == 100


def test_two_clocks_name_nobody() -> None:
    (finding,) = judge(2, 2, on_node(1, clock=[250.0, 0.2]))
    assert (finding.severity, finding.culprit.kind) == ("warn", "none")
    assert finding.measured == "250 ms between the first and the last"
    assert finding.evidence == ("n0: +0 ms from the controller", "n1: +250 ms from the controller")


def test_two_equal_halves_of_clocks_name_nobody() -> None:
    (finding,) = judge(1000, 1, lambda node, rank, told: told.update(clock=[1000.0 * (node % 2), 0.1]))
    assert finding.culprit.kind == "none"
    assert len(finding.evidence) == 8


def test_what_the_measurement_may_be_wrong_by_is_taken_off() -> None:
    assert judge(3, 1, on_node(1, clock=[250.0, 150.0])) == ()
    assert judge(3, 1, on_node(1, clock=[99.0, 0.01])) == ()
    assert len(judge(3, 1, on_node(1, clock=[99.0, 0.01]), params=Params(max_clock_offset_ms=50))) == 1


def test_a_controller_whose_own_clock_is_off_concerns_nobody() -> None:
    assert judge(4, 1, lambda node, rank, told: told.update(clock=[86_400_000.0, 0.3])) == ()
    assert judge(1, 4, on_node(0, clock=[86_400_000.0, 0.3])) == ()


def test_a_clock_that_was_not_told_is_not_checked_and_says_so() -> None:
    (finding,) = judge(3, 1, on_node(1, clock=None))
    assert (finding.severity, finding.culprit.kind) == ("info", "none")
    assert "the clock of node n1 was not compared" in finding.what
    assert judge(1, 4, on_node(0, clock=None)) == ()
