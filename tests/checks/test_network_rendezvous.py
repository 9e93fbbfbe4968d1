"""The judge of the network check, and few nodes that alone say that a rendezvous of another one is closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from checks.simulated_network import network_evidence, with_failed

from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding


def _finding(sources: Iterable[int], count: int = 6, places: dict[int, str] | None = None) -> Finding:
    evidence = network_evidence(count)
    for source in sources:
        evidence = with_failed(evidence, source, "master", 0)
    (finding,) = _findings(replace(evidence, places_of_nodes=places or {}))
    return finding


def _findings(evidence: Evidence) -> tuple[Finding, ...]:
    return judge(evidence, Params()).findings


@pytest.mark.parametrize(
    ("count", "failed", "kind"),
    [(6, 1, "link"), (6, 2, "fabric"), (7, 3, "fabric"), (6, 3, "node"), (6, 5, "node"), (64, 2, "fabric")],
)
def test_most_hosts_that_tried_a_rendezvous_name_its_node(count: int, failed: int, kind: str) -> None:
    """Two that lie, of many hosts, name no node that all others reach."""
    assert _finding(range(1, failed + 1), count).culprit.kind == kind


def test_many_agents_of_two_hosts_name_no_node() -> None:
    """What several nodes at one place say is one word, also where they are most of the nodes."""
    places = {node: f"10.0.0.{node if node < 5 else 5 + node % 2}" for node in range(40)}
    finding = _finding(range(5, 40), 40, places)
    assert finding.culprit.kind == "fabric"
    assert _finding(range(1, 40), 40, places).culprit.name == "node node0"


def test_hosts_that_did_not_try_a_rendezvous_do_not_speak_for_it() -> None:
    """They report nothing, or found it busy."""
    evidence = network_evidence(8, silent=(5, 6))
    for source, how in ((1, "refused"), (2, "refused"), (3, "busy"), (4, "not tried")):
        evidence = with_failed(evidence, source, "master", 0, how)
    (finding,) = _findings(evidence)
    assert (finding.culprit.kind, finding.what.partition(" cannot")[0]) == ("node", "node1 and node2")


def test_a_source_that_says_it_often_is_named_once() -> None:
    finding = _finding([3] * 500)
    assert finding.what.startswith("node3 cannot connect to node node0 at ")
    assert finding.culprit.name == "link node0–node3, endpoints not separable"


def test_others_that_claim_the_rendezvous_do_not_hide_the_first_node() -> None:
    evidence = network_evidence(20)
    for source in range(1, 20):
        evidence = with_failed(evidence, source, "master", 0)
    facts = [
        replace(fact, value=fact.value | {"places": [*fact.value["places"], ["master", "10.0.0.9", 29_500]]})
        if fact.name == "node" and fact.node_rank
        else fact
        for fact in evidence.facts
    ]
    (finding,) = _findings(replace(evidence, facts=tuple(reversed(facts))))
    assert finding.culprit.name == "node node0"
