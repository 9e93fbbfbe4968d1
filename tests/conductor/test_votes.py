"""A machine has one vote: it may join from several addresses where each of its ranks has an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram
from conductor.simulated_program import config as program_config

from seatrial.conductor.config import TrialConfig
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.judge.fold import evidence_so_far

_HERE = "this machine"


def _joined(places: Sequence[str], machines: int | None, hosts: Sequence[str] = ()) -> tuple[list[str], list[Any]]:
    """Return the places that the judge gets, and the notes."""
    settings = TrialConfig(
        run="r",
        nodes=len(places),
        nproc_per_node=1,
        machines=machines,
        hosts=tuple(hosts),
        steps=(),
        deadline_s=60.0,
        env={},
        device="cpu",
        backend="gloo",
        suspects=lambda check, events: (),
    )
    conductor, events = TrialConductor(settings, 0.0), list[Any]()
    for node, place in enumerate(places):
        events += conductor.join(node, 1.0, place).events
    begun = next(event for event in events if event["kind"] == "generation")
    known = evidence_so_far("inventory", [begun]).places_of_nodes
    return [known[node] for node in range(len(places))], [event for event in events if event["kind"] == "note"]


@pytest.mark.parametrize(
    ("places", "machines"),
    [([_HERE, _HERE, "h", "k"], 2), ([_HERE, _HERE, "b", "b", "h", "k"], 3), ([_HERE, "h", "b", "k"], 3)],
)
def test_more_addresses_than_machines_blame_nobody(places: list[str], machines: int) -> None:
    """Some machine would have a vote for each of its addresses."""
    found, (note,) = _joined(places, machines)
    assert found == places
    assert (note["severity"], note["untrusted"]) == ("error", [*range(len(places))])
    addresses = f"{len(set(places))} addresses"
    assert note["text"].startswith(f"agents joined from {addresses}, and the launcher started them on {machines}")


def test_the_doubt_names_the_addresses_of_fewest_nodes() -> None:
    """A person sees there which machine joined from several."""
    _, (note,) = _joined([_HERE, _HERE, "b", "b", "h", "b"], 2)
    assert note["text"].endswith(f"; they are h (node 4), {_HERE} (nodes 0 and 1), b (nodes 2, 3 and 5)")
    places = [_HERE, _HERE, "b", "b", "h", "b", "k", "k", "m", "m"]
    _, (note,) = _joined(places, 4)
    assert note["text"].endswith(
        f"; those of the fewest nodes are h (node 4), {_HERE} (nodes 0 and 1), k (nodes 6 and 7), m (nodes 8 and 9)"
    )


@pytest.mark.parametrize(
    ("places", "machines"),
    [
        ([_HERE, _HERE, "b", "b"], 2),
        # Containers of one machine, or machines behind one address.
        ([_HERE, _HERE, "b", "b", "b", "b"], 3),
        ([_HERE] * 4, 4),
        # Behind a proxy no place is known.
        ([_HERE, "", "", ""], 2),
        # mpirun does not say how many machines there are.
        ([_HERE, "b", "c", "d"], None),
    ],
)
def test_one_address_for_each_machine_is_no_reason_to_doubt(places: list[str], machines: int | None) -> None:
    found, notes = _joined(places, machines)
    assert found == [place or str(node) for node, place in enumerate(places)]
    assert notes == []


def test_a_host_of_the_request_is_one_from_whatever_addresses_it_joins() -> None:
    """With --on mpirun each rank has an agent, and the request says which host starts it."""
    hosts = ["a", "a", "b", "b", "c", "c", "c"]
    found, notes = _joined(["1", "1", "2", "2", "3", "4", "5"], None, hosts)
    assert found == ["1", "1", "2", "2", "3", "3", "3"]
    assert notes == []


@pytest.mark.parametrize(
    ("changed", "places"),
    [
        ({"machines": 3}, (_HERE, _HERE, "b", "b", "h", "k")),
        # mpirun does not say how many machines there are: two of four hosts are not most.
        ({}, (_HERE, _HERE, "b", "b", "h", "k")),
    ],
)
def test_a_rank_that_moves_for_ever_does_not_keep_a_program_from_its_end(
    changed: dict[str, Any], places: tuple[str, ...]
) -> None:
    goes_on = {(0, 4): (Act(at_s=1e9, what="exit"),), (0, 5): (Act(at_s=1e9, what="exit"),)}
    program = SimulatedProgram(program_config(nodes=6, nproc_per_node=1, **changed), goes_on, places=places)
    text = str(program.run()["text"])
    assert text.startswith("ranks 0, 1, 2, 3 had finished, ranks 4, 5 had not")


@pytest.mark.parametrize("machines", [3, None])
def test_a_rank_that_has_a_result_and_does_not_exit_ends_no_controller(machines: int | None) -> None:
    """NCCL may hang as it is torn down, also in a run in which some machine counts twice."""
    hangs = {(0, 5): (Act(at_s=4.9, what="result"), Act(at_s=1e9, what="exit"))}
    places = (_HERE, _HERE, "b", "b", "h", "k")
    settings = program_config(nodes=6, nproc_per_node=1, machines=machines)
    outcome = SimulatedProgram(settings, hangs, places=places).run()
    assert outcome["how"] == "failed"
    assert "rank 5" in str(outcome["text"])
