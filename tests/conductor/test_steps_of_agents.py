"""Steps that agents carry out, before any rank is started: with simulated agents on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import STEPS, RunRecord
from event_streams import event_of

from seatrial.conductor.config import State
from seatrial.conductor.steps import StepPlan
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.judge.blame import blame
from seatrial.judge.conclude import evidence_of
from seatrial.judge.fold import evidence_so_far, fold

OF_AGENTS = (
    StepPlan(check="network", scope="agents", stage="listen", last_stage=False, timeout_s=20.0),
    StepPlan(check="network", scope="agents", stage="connect", timeout_s=20.0),
)
NAMES = [("network", "listen"), ("network", "connect")]


def run(steps: tuple[StepPlan, ...] = (*OF_AGENTS, *STEPS), **options: Any) -> RunRecord:
    fleet = SimulatedFleet(nodes=3, nproc_per_node=2, steps=steps, **options)
    record = fleet.run()
    assert fleet.conductor.state is State.OVER
    assert record.refused == []
    return record


@pytest.mark.parametrize("seed", range(3))
def test_they_come_before_the_ranks_start(seed: int) -> None:
    record = run(seed=seed)
    assert record.steps(0) == [*NAMES, *((step.check, step.stage) for step in STEPS)]
    assert [event["nodes"] for event in record.of("step")[:2]] == [[0, 1, 2]] * 2
    kinds = [(event["kind"], event.get("stage", "")) for event in record.events]
    assert kinds.index(("step", "connect")) < kinds.index(("rank", ""))
    trial = fold(record.events)
    assert trial.missing == ()
    assert all(step.complete() for step in trial.steps)
    assert blame(trial) == ()


def test_a_trial_of_agents_alone_starts_no_rank() -> None:
    record = run(OF_AGENTS)
    assert record.steps(0) == NAMES
    trial = fold(record.events)
    assert trial.missing == ()
    assert not trial.started


def test_after_a_failure_what_needs_the_network_is_left_out() -> None:
    record = run(fails=lambda check, events: check == "network")
    assert record.steps(0) == [*NAMES, ("compute", "measure")]
    (note,) = record.of("note")
    assert note["text"] == "bootstrap, collectives, training were not started, as network failed"
    assert fold(record.events).missing == ()


def test_a_late_node_ends_its_check_and_the_ranks_start() -> None:
    record = run(late_nodes=frozenset({1}))
    assert record.steps(0) == [NAMES[0], *((step.check, step.stage) for step in STEPS)]
    first = fold(record.events).steps[0]
    assert (first.outcome, first.nodes_done, first.complete()) == ("deadline", (0, 2), False)
    (note,) = record.of("note")
    assert (note["severity"], note["text"].partition(" within ")[0]) == (
        "error",
        "node 1 did not finish network/listen",
    )


COUNT = StepPlan(check="network", scope="agents", stage="count", excuses=True, timeout_s=20.0)


@pytest.mark.parametrize("late", [{1}, {0, 1, 2}], ids=["one", "all"])
def test_what_excuses_others_is_asked_without_a_late_node(late: set[int]) -> None:
    """Else one that lies keeps from all others what shows that nobody is to blame. It takes no second deadline."""
    steps = (replace(OF_AGENTS[1], last_stage=False), COUNT, *STEPS)
    other = ((), {"interface": "eth1"})
    record = run(steps, late_nodes=frozenset(late), next_round=lambda check, events: other)
    asked = [(event["stage"], event["nodes"]) for event in record.of("step") if event["check"] == "network"]
    assert asked == [("connect", [0, 1, 2]), ("count", [0, 2])][: 2 if len(late) == 1 else 1]
    assert [event["outcome"] for event in record.of("step_end")][:2] == ["deadline", "done"]
    assert len([note for note in record.of("note") if "did not finish network" in note["text"]]) == 1


def test_all_nodes_take_part_in_a_round_after_what_excuses() -> None:
    steps = (replace(OF_AGENTS[1], last_stage=False), COUNT)
    record = run(steps, next_round=lambda check, events: ((), {"interface": "eth1"}))
    assert [event["nodes"] for event in record.of("step")] == [[0, 1, 2]] * 3


def test_a_round_that_brings_nothing_is_not_repeated() -> None:
    record = run(next_round=lambda check, events: ((), {"interface": "eth1"}) if check == "network" else None)
    assert record.steps(0)[:4] == [*NAMES, ("network", "round 1"), ("compute", "measure")]


def test_the_interface_that_a_check_chose_is_on_record() -> None:
    """By this the judge knows what the ranks used: a node may say something else at the end."""
    asked: list[list[str]] = []

    def fails(check: str, events: list[dict[str, Any]]) -> bool:
        asked.append([check, evidence_so_far(check, events).interface])
        return False

    fleet = SimulatedFleet(nodes=3, steps=(*OF_AGENTS, *STEPS), fails=fails)
    fleet.config = replace(fleet.config, interface=lambda check, events: "eth1" if check == "network" else "")
    fleet.conductor = TrialConductor(fleet.config, fleet.now)
    record = fleet.run()
    assert [(event["check"], event["name"]) for event in record.of("interface")] == [("network", "eth1")]
    assert asked == [["network", "eth1"]]
    assert fold(record.events).interfaces == {"network": "eth1"}
    assert evidence_of(fold(record.events), "network").interface == "eth1"
    assert record.of("interface")[0]["src"] == "conductor"


@pytest.mark.parametrize(
    ("disturb", "how"),
    [(lambda fleet: fleet.lose(1), "lost"), (lambda fleet: fleet.mute(1), "silent")],
)
def test_a_node_that_vanishes_meanwhile_is_named(disturb: Callable[[SimulatedFleet], None], how: str) -> None:
    record = run(on_state={State.AGENTS: disturb})
    assert record.seen() == [(how, 1)]
    findings = blame(fold(record.events))
    assert [finding.culprit.kind for finding in findings if finding.severity == "fail"] == ["node"]


def test_nodes_that_vanish_together_are_all_told() -> None:
    """A launcher that ends all agents does so one after the other: the first one alone would be named."""

    def disturb(fleet: SimulatedFleet) -> None:
        for node in (0, 1):
            fleet.lose(node)

    record = run(on_state={State.AGENTS: disturb})
    assert record.seen() == [("lost", 0), ("lost", 1)]
    assert [event["outcome"] for event in record.of("step_end")] == ["trouble"]
    assert record.steps(0) == NAMES[:1]


def test_an_interruption_ends_it() -> None:
    record = run(on_state={State.AGENTS: lambda fleet: fleet.interrupt()})
    assert [event["outcome"] for event in record.of("step_end")] == ["interrupted"]
    assert len(record.of("interrupted")) == 1


def test_what_a_node_shares_is_not_nested_deeper_than_a_command() -> None:
    """All others drop a command that is, so that each of them would be late."""
    share: list[Any] = []
    for _ in range(60):
        share = [share]

    def say(fleet: SimulatedFleet) -> None:
        agent = fleet._agents[0]
        with pytest.raises(ValueError, match="node 0 shares no plain list"):
            fleet.conductor.message(0, {**event_of(agent.source, "node_done", **where), "share": share}, fleet.now)

    where = {"gen": 0, "step": 0, "seconds": 0.1, "error": ""}
    SimulatedFleet(nodes=3, steps=OF_AGENTS, on_state={State.AGENTS: say}).run()
