"""Ranks of a training that stay away from its meeting, and those that wait there for them."""

from __future__ import annotations

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

MEETS = [Act(at_s=999.0, what="never ready", phase="start-up/meet the others")]
CLAIMS = [Act(at_s=999.0, what="move")]
"""It says that it is ready, and no more."""


def ended(*acts: list[Act]) -> tuple[str, list[int]]:
    """The text of the outcome and the ranks that are named. ``acts``: those of ranks 0 to 3, two on each node."""
    fleet = SimulatedProgram(config(), {(0, rank): each for rank, each in enumerate(acts)})
    text = fleet.run()["text"]
    (trouble,) = fleet.recorded("trouble")
    return text, [entry["rank"] for entry in trouble["seen"]]


@pytest.mark.parametrize("phase", ["", "start-up/import torch", "start-up/open device"])
@pytest.mark.parametrize("other", [MEETS, CLAIMS])
def test_a_rank_that_never_comes_to_the_meeting_is_named_alone(phase: str, other: list[Act]) -> None:
    hangs = [Act(at_s=999.0, what="never ready", phase=phase)]
    text, named = ended(MEETS, MEETS, hangs, other)
    where = f" in {phase}" if phase else ""
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
