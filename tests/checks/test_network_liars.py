"""The judge of the network check where nodes lie, or a record does: no other node is hidden or named for it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from checks.simulated_network import network_evidence
from checks.test_network_judge import into, named, ruling_of


def test_the_number_of_a_node_that_does_not_listen_takes_no_memory() -> None:
    evidence = network_evidence(20, max_nodes=10)
    evidence = replace(evidence, nodes={**evidence.nodes, 10**9: "node20"})
    tracemalloc.start()
    try:
        ruling = ruling_of(evidence)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ruling.absent == ("a port of node20 to connect to",)
    assert peak_bytes < 10 << 20  # as a bit of a number it would take 125 MB


def test_a_connection_that_failed_was_tried_whosever_turn_it_was() -> None:
    """A host names one machine to the nodes and another to the judge, which believes in other turns then."""
    evidence = network_evidence(200, lambda a, b: "no answer" if (a, b) == (8, 12) else None, max_nodes=100)
    assert named(evidence) == [("link", "link node8–node12")]
    facts = tuple(
        replace(fact, value={**fact.value, "machine": "m3"}) if (fact.name, fact.node_rank) == ("node", 10) else fact
        for fact in evidence.facts
    )
    places = {**evidence.places_of_nodes, 10: evidence.places_of_nodes.get(3, "")}
    assert named(replace(evidence, facts=facts, places_of_nodes=places)) == named(evidence)


def test_a_node_that_says_two_things_moves_no_other_in_the_schedule() -> None:
    """Where each node calls some others, it counts them as all nodes shared their addresses."""
    whole = network_evidence(200, into(2), max_nodes=100)
    (said,) = (fact for fact in whole.facts if (fact.name, fact.node_rank) == ("node", 100))
    ruling = ruling_of(replace(whole, facts=(*whole.facts, said)))
    assert [finding.culprit.name for finding in ruling.findings] == ["node node2"]
