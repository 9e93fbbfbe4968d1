"""Ranks of a training that stay away from its meeting or its end, and those that wait there for them."""

from __future__ import annotations

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

MEETS = [Act(at_s=999.0, what="never ready", phase="start-up/meet the others")]
CLAIMS = [Act(at_s=999.0, what="move")]
"""It says that it is ready, and no more."""


DONE = [Act(at_s=4.9, what="result"), Act(at_s=5.0, what="exit")]
STAYS = [Act(at_s=4.9, what="result"), Act(at_s=999.0, what="exit")]
"""It says that it has finished, and keeps its connections."""


def ended(*acts: list[Act], nproc_per_node: int = 2) -> tuple[str, list[int]]:
    """The text of the outcome and the ranks that are named. ``acts``: those of each rank."""
    settings = config(nodes=len(acts) // nproc_per_node, nproc_per_node=nproc_per_node)
    fleet = SimulatedProgram(settings, {(0, rank): each for rank, each in enumerate(acts)})
    text = fleet.run()["text"]
    (trouble,) = fleet.recorded("trouble")
    return text, [entry["rank"] for entry in trouble["seen"]]


def waits(phase: str) -> list[Act]:
    """The acts of a rank that waits in this phase for ever."""
    return [Act(at_s=4.0, what="move", phase=phase), Act(at_s=999.0, what="exit")]


@pytest.mark.parametrize("phase", ["", "start-up/import torch", "start-up/open device"])
@pytest.mark.parametrize("other", [MEETS, CLAIMS])
def test_a_rank_that_never_comes_to_the_meeting_is_named_alone(phase: str, other: list[Act]) -> None:
    hangs = [Act(at_s=999.0, what="never ready", phase=phase)]
    text, named = ended(MEETS, MEETS, hangs, other)
    where = f' in "{phase}"' if phase else ""
    assert (text, named) == (f"rank 2 on node n1 was not ready 180 s after it was started{where}", [2])
    assert ended(hangs, MEETS, hangs, other)[1] == [0, 2]


@pytest.mark.parametrize(
    ("acts", "who"),
    [
        ((MEETS, MEETS, MEETS, CLAIMS), "rank 3 said that it had, ranks 0, 1, 2 still waited for others"),
        ((MEETS, MEETS, CLAIMS, CLAIMS), "ranks 2, 3 said that they had, ranks 0, 1 still waited for others"),
        ((CLAIMS, CLAIMS, CLAIMS, MEETS), "ranks 0, 1, 2 said that they had, rank 3 still waited for others"),
        ((MEETS, MEETS, MEETS, MEETS), "ranks 0, 1, 2, 3 still waited for others"),
    ],
)
def test_ranks_that_wait_in_the_meeting_are_not_late(acts: tuple[list[Act], ...], who: str) -> None:
    """Nobody is ready before all have come: one that says so, and stays away, would have all others named."""
    assert ended(*acts) == (
        f"the ranks had not all met 180 s after they were started: {who}, which says of none that it stays away;"
        " check the network of their hosts with seatrial run",
        [],
    )


@pytest.mark.parametrize("phase", ["compare digests", "step 7 forward"])
@pytest.mark.parametrize("liar", [DONE, STAYS])
def test_a_rank_that_waits_for_one_that_has_finished_is_not_late(phase: str, liar: list[Act]) -> None:
    """What a rank sends last in a ring goes to its neighbor alone: kept back, it leaves that one waiting."""
    text, named = ended(DONE, liar, waits(phase), nproc_per_node=1)
    assert (text, named) == (
        f'ranks 0, 1 had finished, rank 2 had not 60 s later, in phase "{phase}": a rank may wait there for any other'
        " one; check the hosts and their network with seatrial run",
        [],
    )
    text, named = ended(DONE, waits(phase), liar, DONE)
    assert text.startswith("ranks 0, 2, 3 had finished, rank 1 had not 60 s later, in phase")
    assert named == []


def test_ranks_in_several_phases_are_told_with_these() -> None:
    text, named = ended(DONE, DONE, waits("compare digests"), waits("end"))
    assert (named, text.partition(":")[0]) == (
        [],
        'ranks 0, 1 had finished, ranks 2, 3 had not 60 s later, in phases "compare digests" and end',
    )


def test_a_rank_that_was_held_up_until_the_deadline_has_time_to_exit() -> None:
    """Only one that has told its result waits for nobody, so only from then on its end is due."""
    held_up = [Act(at_s=64.8, what="result"), Act(at_s=66.0, what="exit")]
    late = 'rank 1 on node n1 was still running 60 s after all ranks had finished in "step 7 forward"'
    assert ended(DONE, STAYS, held_up, nproc_per_node=1) == (late, [1])


def test_a_rank_that_tells_its_result_again_and_again_ends_as_late() -> None:
    again = [Act(at_s=50.0 * number, what="result") for number in range(1, 100)]
    fleet = SimulatedProgram(config(), {(0, 3): [*again, Act(at_s=4999.0, what="exit")]})
    assert fleet.run()["text"].startswith("rank 3 on node n1 was still running")
    assert fleet.asked("terminate")[0][0] < 120.0


def test_a_failure_just_before_the_deadline_is_the_one_that_is_told() -> None:
    fails = [Act(at_s=64.5, what="exit", code=1)]
    text, named = ended(DONE, DONE, fails, waits("end"))
    assert text.startswith('rank 2 on node n1 failed with exit code 1 in "step 7 forward"')
    assert named == [2]
