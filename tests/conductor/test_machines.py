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


def hosts(places: str, ranks_here: int, machines: int) -> str:
    """Return the place of each node, a letter for a place."""
    found, _ = machines_of(dict(enumerate(places)), Layout(ranks_here=ranks_here, machines=machines))
    return "".join(place for _, place in sorted(found.items()))


@pytest.mark.parametrize(
    ("places", "ranks_here", "machines", "seen"),
    [
        # A liar with two network namespaces.
        ("aabbxy", 2, 3, "aabbxx"),
        ("aaabbbxyz", 3, 3, "aaabbbxxx"),
        ("aaabbbxyx", 3, 3, "aaabbbxxx"),
        # And one whose ranks were dealt out in turn.
        ("abxaby", 2, 3, "abxabx"),
        ("axay", 2, 2, "axax"),
        # Beside machines behind one router.
        ("aabbbbxy", 2, 4, "aabbbbxx"),
        ("abbxabby", 2, 4, "abbxabbx"),
        # Honest machines at several addresses each.
        ("aabcdefg", 2, 4, "aabbddff"),
    ],
)
def test_a_machine_at_several_addresses_has_one_place(places: str, ranks_here: int, machines: int, seen: str) -> None:
    assert hosts(places, ranks_here, machines) == seen


@pytest.mark.parametrize(
    ("places", "ranks_here", "machines"),
    [
        ("aabbcc", 2, 3),
        ("abcabc", 2, 3),
        ("abc", 1, 3),
        # Containers of one machine, or machines behind one address.
        ("aabbbb", 2, 3),
        ("aaaa", 2, 2),
        ("aaaa", 1, 4),
        # Machines with different numbers of ranks: nobody knows which agents are on one.
        ("abb", 1, 2),
        ("aabccc", 2, 3),
        ("aaaabxxxxxxx", 4, 3),
        ("aab", 2, 2),
        ("axy", 1, 2),
        # A machine that the ranks were dealt out to, and one that was filled.
        ("abaabb", 2, 3),
    ],
)
def test_other_places_stay_as_they_are(places: str, ranks_here: int, machines: int) -> None:
    assert hosts(places, ranks_here, machines) == places


def test_a_note_names_the_addresses_of_one_machine() -> None:
    places = dict(enumerate(("this machine", "this machine", "10.0.0.2", "10.0.0.3")))
    _, (note,) = machines_of(places, Layout(ranks_here=2, machines=2))
    assert note == "agents of one machine joined from several addresses: nodes 2, 3 from 10.0.0.2, 10.0.0.3"
    # Behind a proxy no place is known, and each node has its number.
    assert machines_of({0: "0", 1: "1"}, Layout(ranks_here=2, machines=1)) == ({0: "0", 1: "0"}, ())


def test_a_conductor_hands_the_places_to_the_judge() -> None:
    settings = TrialConfig(
        run="r",
        nodes=4,
        nproc_per_node=1,
        layout=Layout(ranks_here=2, machines=2),
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
    places = evidence_so_far("inventory", [begun]).places_of_nodes
    assert [*places.values()] == ["this machine", "this machine", "10.0.0.2", "10.0.0.2"]
    assert minority({0: "old", 1: "old", 2: "new", 3: "new"}, places).majority is None


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
