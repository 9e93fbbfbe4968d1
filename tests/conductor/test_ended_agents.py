"""Agents that end, or tell a signal, while others are lost: what excuses one of them hides no other one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import STEPS, Planted, RunRecord
from conductor.test_steps_of_agents import OF_AGENTS
from event_streams import event_of

from seatrial.conductor.config import State
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold

_SIGNAL = {"kind": "signal", "number": 15}
Disturb = Callable[[SimulatedFleet], None]


def _run(disturb: Disturb, *, at: State = State.STEP, nodes: int = 4, planted: tuple[Planted, ...] = ()) -> RunRecord:
    fleet = SimulatedFleet(
        nodes=nodes, steps=(*OF_AGENTS, *STEPS), complain=False, on_state={at: disturb}, planted=planted
    )
    return fleet.run()


def _end(fleet: SimulatedFleet, node: int) -> None:
    agent = fleet._agents[node]
    fleet._send(agent, event_of(agent.source, "end"))


def _named(record: RunRecord) -> set[str]:
    return {finding.culprit.name for finding in blame(fold(record.events)) if finding.severity == "fail"}


@pytest.mark.parametrize("says", ["end", "signal"])
@pytest.mark.parametrize("at", [State.AGENTS, State.STEP])
def test_an_agent_that_ends_hides_no_loss(at: State, says: str) -> None:
    def disturb(fleet: SimulatedFleet) -> None:
        fleet.lose(2)
        tell = (lambda: _end(fleet, 0)) if says == "end" else (lambda: fleet.say(0, _SIGNAL))
        fleet.later(0.5, tell)
        fleet.later(0.7, lambda: fleet.lose(3))

    record = _run(disturb, at=at)
    assert set(record.seen("lost")) == {("lost", 2), ("lost", 3)}
    assert record.of("interrupted") == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at", [State.AGENTS, State.STEP])
def test_all_whom_a_launcher_ended_are_heard_where_one_agent_ends_first(at: State, seed: int) -> None:
    """One host has the launcher end the others, and its agent ends meanwhile: half of the nodes would be named."""

    def disturb(fleet: SimulatedFleet) -> None:
        for node in range(1, 16):
            fleet.later(0.05 + rng.uniform(0, 0.05), partial(fleet.lose, node))
        fleet.later(0.07, lambda: _end(fleet, 0))

    rng = random.Random(seed)
    assert len(_run(disturb, at=at, nodes=16).seen("lost")) == 15


def test_a_node_that_told_a_signal_while_ranks_were_killed_starts_none() -> None:
    def disturb(fleet: SimulatedFleet) -> None:
        if fleet.conductor.state is not State.KILL:
            return
        if 1 in fleet.conductor._awaited:
            fleet.later(0.001, lambda: disturb(fleet))
            return
        fleet.say(1, _SIGNAL)
        told.append(fleet.now)
        fleet._agents[1].silent = True
        fleet.later(1.5, lambda: fleet.lose(1))

    told: list[float] = []
    record = _run(disturb, at=State.KILL, planted=(Planted(kind="dead", rank=3, at=2),))
    assert told
    assert record.generations == [(0, 1, 2, 3), (0, 2)]
    assert record.seen("lost", "silent", "late") == []


@pytest.mark.parametrize("then", ["is killed", "is slow"])
def test_a_node_that_told_a_signal_is_not_lost(then: str) -> None:
    """Open MPI 4.1 sends SIGTERM to all when one is lost, and SIGKILL a second later."""

    def disturb(fleet: SimulatedFleet) -> None:
        fleet.lose(2)
        fleet.later(0.2, lambda: signal_all(fleet))

    def signal_all(fleet: SimulatedFleet) -> None:
        for node in (0, 1, 3):
            fleet.say(node, _SIGNAL)
            fleet._end_ranks(fleet._agents[node])
        fleet._agents[1].silent = True
        for node in (0, 3):
            fleet._end_agent(fleet._agents[node])
        if then == "is killed":
            fleet.later(1.0, lambda: fleet.lose(1))

    record = _run(disturb)
    assert record.seen("lost", "silent") == [("lost", 2)]
    assert _named(record) == {"node n2"}
