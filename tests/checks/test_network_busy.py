"""The judge of the network check, and nodes whose port others keep busy: they are neither open nor closed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checks.simulated_network import network_evidence, with_failed

from seatrial.checks.network.interfaces import next_round
from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

BUSY = "connections to node2, which was too busy to answer (others may have kept it so)"


def _ruling_of(evidence: Evidence) -> Ruling:
    return judge(evidence, Params())


def _with_crowded(evidence: Evidence, node: int, said: object, name: str = "crowded") -> Evidence:
    """Let all nodes say which of their ports were crowded, when all have made their calls."""
    facts = [
        Fact(check="network", name=each, value=said if (each, of) == (name, node) else [], node_rank=of, stage="count")
        for of in evidence.nodes
        for each in ("crowded", "kept_waiting")
    ]
    return replace(evidence, facts=(*evidence.facts, *facts))


def test_a_node_that_is_kept_busy_is_not_closed_and_nothing_passes() -> None:
    evidence = network_evidence(4, lambda a, b: "busy" if b == 2 else None)
    assert next_round(evidence, Params()) is None
    ruling = _ruling_of(evidence)
    assert ruling.findings == ()
    assert ruling.absent == (BUSY,)


@pytest.mark.parametrize("how", ["no answer", "refused", "silent", "no route"])
@pytest.mark.parametrize("crowded", [2, 1], ids=["itself", "another"])
def test_a_node_whose_kernel_dropped_calls_is_not_closed(how: str, crowded: int) -> None:
    """A user of that node can fill the queue of its port, and is not the node. Its own word is enough for that."""
    whole = network_evidence(4, lambda a, b: how if b == 2 else None)
    ruling = _ruling_of(_with_crowded(whole, crowded, ["data"]))
    if crowded == 2 and how != "no route":
        assert ruling.findings == ()
        assert ruling.absent == (BUSY,)
    else:
        assert [finding.culprit.name for finding in ruling.findings] == ["node node2"]


@pytest.mark.parametrize("how", ["no answer", "refused", "silent", "another answers", "large from"])
def test_a_node_whose_callers_waited_is_not_closed(how: str) -> None:
    """The kernel takes a call at once, whatever keeps the node from an answer: a closed port of it stays one."""
    whole = network_evidence(4, lambda a, b: how if b == 2 else None)
    ruling = _ruling_of(_with_crowded(whole, 2, ["data"], "kept_waiting"))
    if how == "silent":
        assert (ruling.findings, ruling.absent) == ((), (BUSY,))
    else:
        assert [finding.culprit.name for finding in ruling.findings] == ["node node2"]


@pytest.mark.parametrize("how", ["no answer", "refused", "silent"])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_node_that_did_not_end_its_calls_is_not_closed(how: str, is_asked: bool) -> None:
    """Others may have had its core all the time, and filled its queue: it is missing, an error, and no PASS."""
    whole = network_evidence(4, lambda a, b: how if b == 2 else None)
    whole = replace(
        whole, facts=tuple(fact for fact in whole.facts if (fact.name, fact.node_rank) != ("connections", 2))
    )
    if is_asked:
        whole = _with_crowded(whole, 1, [])
        whole = replace(
            whole, facts=tuple(fact for fact in whole.facts if (fact.stage, fact.node_rank) != ("count", 2))
        )
    ruling = _ruling_of(whole)
    assert any("node2" in line for line in ruling.absent)
    assert ruling.findings == ()


@pytest.mark.parametrize("name", ["crowded", "kept_waiting"])
def test_a_port_that_was_crowded_is_no_other_port(name: str) -> None:
    whole = network_evidence(4, lambda a, b: "silent" if b == 2 else None)
    assert _ruling_of(_with_crowded(whole, 2, ["name", "master"], name)).findings != ()


def test_a_node_that_does_not_say_it_is_not_closed() -> None:
    """A user who fills its queue may keep it too busy to answer in the last stage."""
    whole = _with_crowded(network_evidence(4, lambda a, b: "no answer" if b == 2 else None), 1, [])
    silent = replace(whole, facts=tuple(fact for fact in whole.facts if (fact.name, fact.node_rank) != ("crowded", 2)))
    ruling = _ruling_of(silent)
    assert ruling.findings == ()
    assert ruling.absent == ("connections to node2, which did not say whether its kernel had dropped some",)


@pytest.mark.parametrize("said", [["data"], []], ids=str)
def test_what_a_node_says_after_its_calls_counts_if_the_trial_ends_there(said: list[str]) -> None:
    whole = network_evidence(4, lambda a, b: "no answer" if b == 2 else None)
    fact = Fact(check="network", name="crowded", value=said, node_rank=2, stage="connect")
    assert len(_ruling_of(replace(whole, facts=(*whole.facts, fact))).findings) == (not said)


@pytest.mark.parametrize("said", ["data", 1, [["data"]], {"data": 1}, None, []], ids=str)
def test_nonsense_about_a_queue_excuses_nobody(said: object) -> None:
    whole = network_evidence(4, lambda a, b: "no answer" if b == 2 else None)
    assert len(_ruling_of(_with_crowded(whole, 2, said)).findings) == 1


def test_one_node_that_finds_another_one_busy_is_in_the_line() -> None:
    """It may only say so: the line must lead to both."""
    ruling = _ruling_of(network_evidence(4, lambda a, b: "busy" if (a, b) == (3, 1) else None))
    assert ruling.absent == ("connections to node1 from node node3, which alone found it busy",)


def test_a_node_that_is_kept_busy_is_not_one_that_others_reach() -> None:
    evidence = network_evidence(3, lambda a, b: "busy" if a == 1 else "refused" if (a, b) == (0, 2) else None)
    assert [finding.culprit.kind for finding in _ruling_of(evidence).findings] == ["link"]


@pytest.mark.parametrize("role", ["name", "master"])
def test_a_port_that_is_kept_busy_is_no_finding(role: str) -> None:
    ruling = _ruling_of(with_failed(network_evidence(3), 1, role, 0, "busy"))
    assert ruling.findings == ()
    assert ruling.absent == ("connections to node0 from node node1, which alone found it busy",)


@pytest.mark.parametrize(
    "address",
    [
        "fe80::1%eth0 - node1 is broken",
        "fe80::1%a name of more than 15",
        'fe80::1%"',
        "fe80::1%" + "x" * 16,
        "fe80::1%é",
    ],
)
def test_an_address_brings_no_words_into_a_sentence(address: str) -> None:
    addresses = ["fe80::10%eth0", "fe80::11%enp65s0f1np1", "fe80::12%7", "fe80::1%eth0"]
    whole = network_evidence(4, lambda a, b: "no answer" if b == 3 else None, addresses=addresses)
    assert [finding.culprit.name for finding in _ruling_of(whole).findings] == ["node node3"]
    for lie in ({"addresses": [*addresses[:3], address]}, {"names": [None, None, address, address]}):
        ruling = _ruling_of(network_evidence(4, lambda a, b: "no answer" if b == 3 else None, **lie))
        assert address not in str(ruling.findings)
        assert "a port of node3 to connect to" in ruling.absent
