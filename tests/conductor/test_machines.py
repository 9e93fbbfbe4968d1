"""Votes belong to machines of the launcher: a machine may join from any number of addresses."""

from __future__ import annotations

from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram
from conductor.simulated_program import config as program_config

from seatrial.conductor.config import TrialConfig
from seatrial.conductor.machines import Layout, machines_of
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.evidence.statistics import minority
from seatrial.judge.fold import evidence_so_far
from seatrial.protocol.events import ONE_VOTE


def hosts(places: str, ranks_here: int, machines: int | None = None) -> str:
    """Return the host of each node, a letter for a host; ``?`` for those that have one vote together."""
    found = machines_of(dict(enumerate(places)), Layout(ranks_here=ranks_here, machines=machines))
    return "".join("?" if node in found.one_vote else place for node, place in sorted(found.places.items()))


@pytest.mark.parametrize(
    ("places", "ranks_here", "machines", "seen"),
    [
        # A liar with two network namespaces, and one whose ranks were dealt out in turn.
        ("aabbxy", 2, 3, "aabbxx"),
        ("aabbxy", 2, None, "aabbxx"),
        ("aaabbbxyz", 3, None, "aaabbbxxx"),
        ("aaabbbxyx", 3, None, "aaabbbxxx"),
        ("abxaby", 2, None, "ab?ab?"),
        ("axay", 2, 2, "a?a?"),
        # With more ranks than the others have.
        ("axy", 1, 2, "a??"),
        ("abxyz", 1, 3, "a????"),
        ("aabxy", 2, None, "aa???"),
        ("aabbx", 2, None, "aa???"),
        # A liar adds itself to a machine that others are at.
        ("aabbbx", 2, 3, "aabbbx"),
    ],
)
def test_a_machine_at_several_addresses_has_one_vote(
    places: str, ranks_here: int, machines: int | None, seen: str
) -> None:
    assert hosts(places, ranks_here, machines) == seen


@pytest.mark.parametrize(
    ("places", "ranks_here", "machines"),
    [
        ("aabbcc", 2, 3),
        ("abcabc", 2, None),
        ("abc", 1, None),
        # Containers of one machine, or machines behind one address.
        ("aabbbb", 2, 3),
        ("aaaa", 2, 2),
        ("aaaa", 1, 4),
        # Machines with different numbers of ranks.
        ("abb", 1, 2),
        ("aabccc", 2, 3),
        ("aab", 2, None),
    ],
)
def test_machines_at_one_address_each_stay_as_they_are(places: str, ranks_here: int, machines: int | None) -> None:
    found = machines_of(dict(enumerate(places)), Layout(ranks_here=ranks_here, machines=machines))
    assert found.places == dict(enumerate(places))
    assert (found.one_vote, found.notes) == (frozenset(), ())


def test_honest_machines_at_several_addresses_each_keep_their_vote() -> None:
    assert hosts("aabcdefg", 2) == "aabbddff"
    # Behind a proxy no place is known, and each node has its number.
    found = machines_of({0: "0", 1: "1", 2: "2", 3: "3"}, Layout(ranks_here=2))
    assert (found.places, found.notes) == ({0: "0", 1: "0", 2: "2", 3: "2"}, ())


def test_a_note_names_the_addresses_of_one_machine() -> None:
    places = dict(enumerate(("this machine", "this machine", "10.0.0.2", "10.0.0.3")))
    (note,) = machines_of(places, Layout(ranks_here=2)).notes
    assert note == "agents of one machine joined from several addresses: nodes 2 to 3 from 10.0.0.2, 10.0.0.3"
    (note,) = machines_of(places, Layout(ranks_here=1, machines=2)).notes
    assert "which of the 2 addresses 10.0.0.2, 10.0.0.3 are of one machine" in note


@pytest.mark.parametrize(("ranks_here", "num_hosts"), [(2, 2), (1, 2)])
def test_a_conductor_hands_its_votes_to_the_judge(ranks_here: int, num_hosts: int) -> None:
    layout = Layout(ranks_here=ranks_here, machines=2)
    settings = TrialConfig(
        run="r",
        nodes=4,
        nproc_per_node=1,
        layout=layout,
        steps=(),
        deadline_s=60.0,
        env={},
        device="cpu",
        backend="gloo",
        suspects=lambda check, events: (),
    )
    conductor, events = TrialConductor(settings, 0.0), list[Any]()
    for node, place in enumerate(("this machine", "this machine", "10.0.0.2", "10.0.0.3")):
        events += conductor.join(node, 1.0, place).events
    begun = next(event for event in events if event["kind"] == "generation")
    assert [event["severity"] for event in events if event["kind"] == "note"] == ["info"]
    evidence = evidence_so_far("inventory", [begun])
    assert evidence.one_vote == (frozenset() if ranks_here == 2 else frozenset({2, 3}))
    told = evidence.hosts_of_nodes
    assert len(set(told.values())) == num_hosts
    assert told[2] == told[3] == ("10.0.0.2" if ranks_here == 2 else ONE_VOTE)
    assert minority({0: "old", 1: "old", 2: "new", 3: "new"}, told).majority is None


def test_of_a_program_one_machine_at_two_addresses_finishes_once() -> None:
    """Else it is most of three hosts, and the honest one is named as late."""
    late = {(0, 0): (Act(at_s=500.0, what="exit"),), (0, 1): (Act(at_s=500.0, what="exit"),)}
    places = ("this machine", "this machine", "10.0.0.2", "10.0.0.3")
    said = []
    for layout in (None, Layout(ranks_here=2, machines=2)):
        settings = program_config(nodes=4, nproc_per_node=1, layout=layout)
        said.append(str(SimulatedProgram(settings, late, places=places).run()["text"]))
    assert said[0].startswith("rank 0 on node n0, rank 1 on node n1 was still running 60 s after")
    assert said[1].startswith("ranks 2, 3 had finished, ranks 0, 1 had not")
