"""The trial conductor with 4,096 simulated ranks: correct, and fast enough."""

from __future__ import annotations

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import QUIT, START, STEPS, Planted, RunRecord

from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.protocol.timeouts import PATIENCE_S

RANKS = 4_096
SHAPES = {"one rank a node": (RANKS, 1), "eight ranks a node": (RANKS // 8, 8)}
CULPRIT = 2_741
WORLD = 2


def _run(shape: str, *planted: Planted, seed: int = 0) -> RunRecord:
    nodes, nproc_per_node = SHAPES[shape]
    fleet = SimulatedFleet(nodes=nodes, nproc_per_node=nproc_per_node, planted=planted, seed=seed)
    record = fleet.run()
    assert record.refused == []
    assert record.generations[0] == tuple(range(RANKS))
    return record


def _all_but_the_culprit() -> tuple[int, ...]:
    return tuple(rank for rank in range(RANKS) if rank != CULPRIT)


@pytest.mark.parametrize("at", [3, *(pytest.param(at, marks=pytest.mark.slow) for at in (START, 0, WORLD, 4))])
def test_a_death_among_thousands_at_every_step(at: int) -> None:
    record = _run("eight ranks a node", Planted(kind="dead", rank=CULPRIT, at=at), seed=at)
    assert record.seen("dead") == [("dead", CULPRIT)]
    assert record.generations[1:] == [_all_but_the_culprit()]
    assert record.steps(1)[-1] == ("training", "measure")
    assert len(record.of("trouble")[0]["waiting"]) <= 16


@pytest.mark.slow
def test_thousands_complain_and_the_dead_one_alone_is_blamed() -> None:
    record = _run("one rank a node", Planted(kind="dead", rank=CULPRIT, at=3))
    assert len(record.seen("error")) == RANKS - 1
    trial = fold(record.events)
    assert trial.missing == ()
    assert [(finding.severity, finding.culprit.ranks) for finding in blame(trial)] == [("fail", (CULPRIT,))]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("stopped", "absent")])
def test_a_rank_that_thousands_wait_for(kind: str) -> None:
    record = _run("eight ranks a node", Planted(kind=kind, rank=CULPRIT, at=3))  # type: ignore[arg-type]
    assert record.seen() == [("frozen" if kind == "stopped" else "absent", CULPRIT)]
    # A rank stands still for as long as its statuses show, and these come once a second; two follow its stack.
    assert record.of("trouble")[0]["t"] - record.of("step")[3]["t"] < PATIENCE_S + 6.0
    assert record.generations[1:] == [_all_but_the_culprit()]


@pytest.mark.slow
def test_a_silent_node_among_thousands() -> None:
    record = _run("one rank a node", Planted(kind="agent-silent", rank=CULPRIT, at=WORLD))
    assert record.seen() == [("silent", CULPRIT)]
    assert record.generations[1:] == [_all_but_the_culprit()]


@pytest.mark.slow
def test_the_end_of_thousands() -> None:
    record = _run("one rank a node", Planted(kind="dead", rank=CULPRIT, at=QUIT))
    assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert record.seen() == []
