"""Nodes that fall silent: they are named only where it is known that the conductor would have heard them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from event_streams import Stream

from seatrial.verdict.blame import blame
from seatrial.verdict.findings import Culprit, Finding
from seatrial.verdict.fold import fold


def silent(
    nodes: int,
    *who: int,
    how: str = "silent",
    conductor: str = "gpu-0",
    hostnames: Sequence[str] = (),
    lost: str = "",
) -> tuple[Finding, ...]:
    """What is told of nodes ``gpu-0`` and so on, some of which were no longer heard in the collectives.

    ``lost``: the first event of this kind is.
    """
    stream = Stream(nodes, nodes=nodes, conductor=conductor, hostnames=hostnames).until("collectives")
    left = tuple(sorted(set(range(nodes)) - set(who)))
    stream.trouble(*({"node": node, "how": how, "waited_s": 15.2} for node in who), waiting=left)
    stream.kill(*left)
    events = stream.close(ranks=False, nodes=left).events
    gone = next((event for event in events if event["kind"] == lost), None)
    return blame(fold([event for event in events if event is not gone]))


def test_who_is_silent_while_another_is_heard_over_the_network_is_named() -> None:
    for found in (silent(3, 2), silent(3, 2, conductor="laptop"), silent(2, 1, conductor="laptop")):
        (finding,) = found
        assert (finding.severity, finding.culprit.kind) == ("fail", "node")
    assert [finding.culprit.ranks for finding in silent(4, 2, 3)] == [(2,), (3,)]


def test_of_two_nodes_one_of_which_conducts_it_cannot_be_told_which_end_it_is() -> None:
    (finding,) = silent(2, 1)
    assert finding.severity == "fail"
    assert finding.culprit == Culprit(
        kind="link", name="link gpu-0–gpu-1, endpoints not separable", nodes=("gpu-0", "gpu-1")
    )
    assert finding.what == ("node gpu-1 fell silent in collectives for 15 s: it, or the network between it and gpu-0")


@pytest.mark.parametrize("conductor", ["gpu-0", "laptop"])
@pytest.mark.parametrize("lost", ["run", "node"])
def test_where_events_were_lost_it_is_not_known_where_it_is_conducted_and_nobody_is_named(
    conductor: str, lost: str
) -> None:
    (finding,) = silent(2, 1, conductor=conductor, lost=lost)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "events were lost" in finding.what


def test_a_connection_that_was_closed_is_the_word_of_its_own_end() -> None:
    (finding,) = silent(2, 1, how="lost")
    assert finding.culprit.name == "node gpu-1"
    assert [finding.culprit.ranks for finding in silent(3, 1, 2, how="lost")] == [(1,), (2,)]


def test_a_node_that_is_the_conductors_own_machine_needs_no_network() -> None:
    (finding,) = silent(1, 0)
    assert finding.culprit.name == "node gpu-0"
    (finding,) = silent(3, 0)
    assert finding.culprit.name == "node gpu-0"


@pytest.mark.parametrize(("conductor", "blamed"), [("gpu-0", True), ("laptop", False), ("", True)])
def test_where_all_but_one_fall_silent_at_once_no_node_is_blamed_for_it(conductor: str, blamed: bool) -> None:
    (finding,) = silent(4, 1, 2, 3, conductor=conductor)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "fabric", ())
    assert finding.culprit.name == "the network between node gpu-0 and the others"
    assert "all 3 nodes but gpu-0 fell silent at once in collectives for 15 s: " in finding.what
    assert ("the link of gpu-0, or what gpu-1, gpu-2, gpu-3 share" in finding.what) is blamed
    assert "what gpu-1, gpu-2, gpu-3 share" in finding.action
    assert ("cable and switch port of gpu-0" in finding.action) is blamed


@pytest.mark.parametrize(
    ("nodes", "words"), [(3, "all 3 nodes fell silent at once"), (1, "the only node, gpu-0, fell")]
)
def test_where_all_fall_silent_it_may_be_the_network_of_the_conductor(nodes: int, words: str) -> None:
    (finding,) = silent(nodes, *range(nodes), conductor="laptop")
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert finding.what.startswith(words)


def test_where_it_is_not_known_where_the_trial_is_conducted_it_may_be_on_either_node() -> None:
    """An older version did not tell; and several machines of one name may each be meant."""
    for found in (silent(2, 1, conductor=""), silent(2, 1, conductor="same", hostnames=("same", "same"))):
        (finding,) = found
        assert finding.culprit.kind == "link"
    (finding,) = silent(3, 1, conductor="")
    assert finding.culprit.name == "node gpu-1", "one of the two others at least was heard over the network"
