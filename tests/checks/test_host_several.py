"""The host check among several nodes: names, interfaces, MTUs and clocks."""

from __future__ import annotations

import re
from typing import Any

import pytest
from checks.simulated_hosts import host_fleet

from seatrial.checks.host import CHECK
from seatrial.checks.host.params import Params
from seatrial.checks.host.several_nodes import _duration
from seatrial.evidence.findings import Finding

GLOO: dict[str, Any] = {"device_type": "cpu", "backend": "gloo"}


def judge(*fleet: Any, params: Params | None = None, **options: Any) -> tuple[Finding, ...]:
    return CHECK.judge(host_fleet(*fleet, **options), params or Params()).findings


def on_node(number: int, **changes: Any) -> Any:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        if node == number:
            facts |= changes

    return bend


# Names


def named(addresses: list[str] | None, own: str | None) -> Any:
    return on_node(1, name={"name": "n1", "addresses": addresses, "own": own})


@pytest.mark.parametrize(
    ("nodes", "addresses", "own", "words"),
    [
        (2, ["127.0.1.1"], "127.0.1.1", "resolves to 127.0.1.1, which on every host means that host itself"),
        (1000, ["127.0.1.1"], "127.0.1.1", "resolves to 127.0.1.1, which on every host means that host itself"),
        (2, ["::1"], "::1", "resolves to ::1"),
        (2, ["10.9.9.9"], None, "resolves to 10.9.9.9, which is no address of the node"),
        (2, [], None, "is not known to its resolver"),
    ],
)
def test_a_name_that_others_cannot_use_breaks_gloo(
    nodes: int, addresses: list[str], own: str | None, words: str
) -> None:
    (finding,) = judge(nodes, 1, named(addresses, own), **GLOO)
    assert (finding.severity, finding.culprit.nodes) == ("fail", ("n1",))
    assert f"the hostname of node n1 {words}" in finding.what
    assert "/etc/hosts" in finding.action
    assert judge(nodes, 1, named(addresses, own))[0].severity == "warn", "NCCL does not go by it"


def test_gloo_ignores_the_hostname_where_it_has_an_interface() -> None:
    eth0 = {"value": "eth0", "taken": ["eth0"], "unknown": [], "has_own": True, "leaves_host": True}
    loopback = {"name": "n1", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}
    (finding,) = judge(2, 1, on_node(1, name=loopback, chosen={"GLOO_SOCKET_IFNAME": eth0}), **GLOO)
    assert finding.severity == "warn"


def test_a_loopback_name_is_harmless_on_one_node() -> None:
    loopback = {"name": "n0", "addresses": ["127.0.1.1"], "own": "127.0.1.1"}
    (finding,) = judge(1, 2, on_node(0, name=loopback), **GLOO)
    assert (finding.severity, finding.what) == (
        "info",
        "the hostname of node n0 resolves to 127.0.1.1: harmless on one node, fatal on several",
    )
    unknown: tuple[dict[str, Any], ...] = ({"addresses": None, "own": None}, {"addresses": [], "own": None})
    for name in unknown:
        assert judge(1, 2, on_node(0, name=name), **GLOO) == ()


def test_a_resolver_that_does_not_answer_warns() -> None:
    (finding,) = judge(2, 1, named(None, None), **GLOO)
    assert finding.severity == "warn"
    assert "does not look up the node's hostname" in finding.what


# Interfaces


def chosen(variable: str, **choice: Any) -> Any:
    healthy = {"value": "{x}", "taken": ["ib0"], "unknown": [], "has_own": False, "leaves_host": True}
    return on_node(1, chosen={variable: {**healthy, **choice}})


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
def test_a_choice_without_a_way_out_breaks_its_backend(
    variable: str, backend: str, severity: str, choice: dict[str, Any]
) -> None:
    (finding,) = judge(2, 2, chosen(variable, **choice), backend=backend)
    assert (finding.severity, finding.culprit.nodes) == (severity, ("n1",))
    assert f'{variable}="{{x}}" on node n1 ' in finding.what
    assert "eth0" in finding.action


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_another_interface_than_the_controllers_only_warns(variable: str) -> None:
    """It may be a separate network for the data."""
    for backend in ("nccl", "gloo"):
        (finding,) = judge(2, 2, chosen(variable), backend=backend)
        assert finding.severity == "warn"
        assert "leaves out eth0, which leads to the controller" in finding.what


def test_a_choice_that_has_the_way_out_is_fine() -> None:
    assert judge(2, 2, chosen("NCCL_SOCKET_IFNAME", has_own=True)) == ()


def test_without_a_known_route_only_certain_faults_are_reported() -> None:
    def bend(node: int, local_rank: int, facts: dict[str, Any]) -> None:
        chosen("NCCL_SOCKET_IFNAME")(node, local_rank, facts)
        facts |= {"interface": None, "mtu": None}

    assert judge(2, 2, bend) == ()


_WORDS = "eth0 of node n0, which has failed: replace it"
_CHOICE = {"value": _WORDS, "taken": [], "unknown": [_WORDS], "has_own": False, "leaves_host": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"rdma": [_WORDS, {_WORDS: 1}], "memlock_bytes": 1},
        {"interface": _WORDS, "mtu": 1500},
        {"leftovers": [_WORDS]},
        {"name": {"name": _WORDS, "addresses": [_WORDS], "own": None}},
        {"interface": _WORDS, "chosen": {_WORDS: _CHOICE, "A": {**_CHOICE, "unknown": [], "leaves_host": True}}},
    ],
    ids=str,
)
def test_the_words_of_a_host_are_no_sentence_of_ours(changes: dict[str, Any]) -> None:
    findings = judge(3, 2, on_node(1, **changes))
    texts = [text for each in findings for text in (each.what, each.action, each.measured, *each.evidence)]
    assert any(_WORDS in text for text in texts)
    assert not [text for text in texts if _WORDS in re.sub('"[^"]*"', "", text)]


def test_one_node_alone_talks_to_nobody() -> None:
    fleet = host_fleet(1, 2, on_node(0, chosen={"NCCL_SOCKET_IFNAME": {"value": "x", "taken": []}}))
    assert CHECK.judge(fleet, Params()).findings == ()


# MTU


@pytest.mark.parametrize("nodes", [3, 300])
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


@pytest.mark.parametrize(("nodes", "offset_ms"), [(3, 250.0), (3, -5000.0), (4, 250.0), (300, -5000.0)])
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
    (finding,) = judge(1000, 1, lambda node, rank, facts: facts.update(clock=[1000.0 * (node % 2), 0.1]))
    assert finding.culprit.kind == "none"
    assert len(finding.evidence) == 8


def test_the_accuracy_of_the_measurement_is_subtracted() -> None:
    assert judge(3, 1, on_node(1, clock=[250.0, 150.0])) == ()
    assert judge(3, 1, on_node(1, clock=[99.0, 0.01])) == ()
    assert len(judge(3, 1, on_node(1, clock=[99.0, 0.01]), params=Params(max_clock_offset_ms=50))) == 1


def test_the_controllers_clock_may_be_off() -> None:
    assert judge(4, 1, lambda node, rank, facts: facts.update(clock=[86_400_000.0, 0.3])) == ()
    assert judge(1, 4, on_node(0, clock=[86_400_000.0, 0.3])) == ()


def test_a_clock_that_was_not_measured_is_not_compared() -> None:
    (finding,) = judge(3, 1, on_node(1, clock=None))
    assert (finding.severity, finding.culprit.kind) == ("info", "none")
    assert "the clock of node n1 was not compared" in finding.what
    assert judge(1, 4, on_node(0, clock=None)) == ()


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [
        (10_800_000.0, "+3 hours"),
        (-34_560_000_000.0, "-400 days"),
        (300.0, "+300 ms"),
        (2_500.0, "+2.5 s"),
        (-180_000.0, "-3 minutes"),
    ],
)
def test_a_clock_offset_has_a_readable_unit(duration_ms: float, words: str) -> None:
    assert _duration(duration_ms, sign="+") == words


def test_a_shared_memory_that_cannot_be_written_is_named() -> None:
    shm = {"size_bytes": 8 << 30, "free_bytes": 8 << 30, "read_only": True}
    (finding,) = judge(3, 2, on_node(2, shm=shm), **GLOO)
    assert finding.severity == "warn"
    assert "/dev/shm of node n2 is read-only" in finding.what
    assert "remount,rw" in finding.action
