"""The machine with 4,096 simulated ranks: what is right for six must be right, and quick enough, for thousands."""

from __future__ import annotations

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import QUIT, START, STEPS, Planted, Told

from seatrial.conductor.watch import PATIENCE_S
from seatrial.verdict.blame import blame
from seatrial.verdict.fold import fold

RANKS = 4_096
SHAPES = {"one rank a node": (RANKS, 1), "eight ranks a node": (RANKS // 8, 8)}
CULPRIT = 2_741
WORLD = 2


def _run(shape: str, *planted: Planted, seed: int = 0) -> Told:
    nodes, nproc_per_node = SHAPES[shape]
    fleet = SimulatedFleet(nodes=nodes, nproc_per_node=nproc_per_node, planted=planted, seed=seed)
    told = fleet.run()
    assert told.refused == []
    assert told.generations[0] == tuple(range(RANKS))
    return told


def _all_but_the_culprit() -> tuple[int, ...]:
    return tuple(rank for rank in range(RANKS) if rank != CULPRIT)


@pytest.mark.parametrize("at", [3, *(pytest.param(at, marks=pytest.mark.slow) for at in (START, 0, WORLD, 4))])
def test_a_death_among_thousands_at_every_step(at: int) -> None:
    told = _run("eight ranks a node", Planted(kind="dead", rank=CULPRIT, at=at), seed=at)
    assert told.seen("dead") == [("dead", CULPRIT)]
    assert told.generations[1:] == [_all_but_the_culprit()]
    assert told.steps(1)[-1] == ("training", "measure")
    assert len(told.of("trouble")[0]["waiting"]) <= 16


@pytest.mark.slow
def test_thousands_complain_and_the_dead_one_alone_is_blamed() -> None:
    told = _run("one rank a node", Planted(kind="dead", rank=CULPRIT, at=3))
    assert len(told.seen("error")) == RANKS - 1
    trial = fold(told.events)
    assert trial.missing == ()
    assert [(finding.severity, finding.culprit.ranks) for finding in blame(trial)] == [("fail", (CULPRIT,))]


@pytest.mark.parametrize("kind", [pytest.param("stopped", marks=pytest.mark.slow), "absent"])
def test_one_that_thousands_wait_for(kind: str) -> None:
    told = _run("eight ranks a node", Planted(kind=kind, rank=CULPRIT, at=3))  # type: ignore[arg-type]
    assert told.seen() == [("frozen" if kind == "stopped" else "absent", CULPRIT)]
    assert told.of("trouble")[0]["t"] - told.of("step")[3]["t"] < PATIENCE_S + 3.0
    assert told.generations[1:] == [_all_but_the_culprit()]


@pytest.mark.slow
def test_a_node_of_thousands_falls_silent() -> None:
    told = _run("one rank a node", Planted(kind="agent-silent", rank=CULPRIT, at=WORLD))
    assert told.seen() == [("silent", CULPRIT)]
    assert told.generations[1:] == [_all_but_the_culprit()]


@pytest.mark.slow
def test_the_end_of_thousands() -> None:
    told = _run("one rank a node", Planted(kind="dead", rank=CULPRIT, at=QUIT))
    assert told.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert told.seen() == []
