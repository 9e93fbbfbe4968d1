"""The machine with a few simulated agents: every fault at every time, in random orders."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import QUIT, SLOW_S, START, STEPS, Planted, Told
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.conductor.machine import Machine
from seatrial.conductor.records import State
from seatrial.conductor.watch import PATIENCE_S
from seatrial.verdict.blame import blame
from seatrial.verdict.fold import fold

ALL_TIMES = (START, *range(len(STEPS)))
STORE, WORLD = 1, 2
TOGETHER = (2, 3, 4)
"""Steps in which all ranks wait for one another."""


def _run(*planted: Planted, nodes: int = 3, nproc_per_node: int = 2, **options: Any) -> Told:
    fleet = SimulatedFleet(nodes=nodes, nproc_per_node=nproc_per_node, planted=planted, **options)
    told = fleet.run()
    assert fleet.machine.state is State.OVER
    assert told.events[-1]["kind"] == "end"
    assert told.refused == []
    return told


def _blamed(told: Told) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.severity, finding.culprit.ranks) for finding in blame(fold(told.events))}


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_trial_asks_every_step_once_loses_nothing_and_blames_nobody(seed: int) -> None:
    told = _run(seed=seed)
    assert told.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert [event["outcome"] for event in told.of("step_end")] == ["done"] * len(STEPS)
    assert (told.seen(), told.generations) == ([], [tuple(range(6))])
    trial = fold(told.events)
    assert trial.missing == ()
    assert blame(trial) == ()


# The store is rank 0's alone.
@pytest.mark.parametrize(
    ("at", "rank"), [(at, rank) for at in ALL_TIMES for rank in (0, 5) if (at, rank) != (STORE, 5)]
)
def test_a_death_is_named_and_the_rest_go_on_without_it(at: int, rank: int) -> None:
    told = _run(Planted(kind="dead", rank=rank, at=at), seed=at)
    # Its peers' complaints came first and are kept, and they are not what the next generation goes by.
    assert told.seen("dead") == [("dead", rank)]
    assert told.seen("frozen", "absent", "late", "stuck") == []
    if at in TOGETHER:
        assert len(told.seen("error")) == 5
    assert told.generations == [tuple(range(6)), tuple(other for other in range(6) if other != rank)]
    checks = [check for check, _ in told.steps(1)]
    failed = STEPS[max(at, 0)].check
    assert ("bootstrap", "world") in told.steps(1)
    assert checks[-1] == "training"
    assert failed in checks
    assert _blamed(told) == {("fail", (rank,))}


@pytest.mark.parametrize("cause", ["own", "memory", "device", "request"])
def test_an_error_of_its_own_takes_a_rank_out(cause: str) -> None:
    told = _run(Planted(kind="error", rank=4, at=3, cause=cause))
    assert told.seen() == [("error", 4)]
    assert told.generations[1:] == [(0, 1, 2, 3, 5)]
    assert _blamed(told) == {("fail", (4,))} if cause in ("memory", "device") else {("error", ())}


def test_a_communication_error_alone_takes_nobody_out() -> None:
    told = _run(Planted(kind="error", rank=4, at=3, cause="fabric"))
    assert told.seen() == [("error", 4)]
    assert len(told.generations) == 1
    assert _blamed(told) == {("fail", ())}


@pytest.mark.parametrize("at", [START, 0, *TOGETHER])
def test_a_stopped_rank_is_frozen_within_the_time_of_patience(at: int) -> None:
    told = _run(Planted(kind="stopped", rank=2, at=at), seed=at)
    assert told.seen() == [("frozen", 2)]
    assert told.of("trouble")[0]["seen"][0]["waited_s"] <= PATIENCE_S + 1.0
    began = max((event["t"] for event in told.of("step") if event["step"] == at), default=told.of("generation")[0]["t"])
    assert told.of("trouble")[0]["t"] - began < PATIENCE_S + 3.0
    assert told.generations[1:] == [(0, 1, 3, 4, 5)]
    assert _blamed(told) == {("fail", (2,))}


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
@pytest.mark.parametrize("kind", ["absent", "hang"])
@pytest.mark.parametrize("at", TOGETHER)
def test_who_does_not_come_is_named_before_the_deadline(at: int, kind: Literal["absent", "hang"], spins: bool) -> None:
    told = _run(Planted(kind=kind, rank=3, at=at), seed=at, spins=spins)
    assert told.seen() == [("absent", 3)]
    trouble, step = told.of("trouble")[0], told.of("step")[at]
    assert trouble["t"] - step["t"] < PATIENCE_S + 4.0
    assert told.generations[1:] == [(0, 1, 2, 4, 5)]
    assert _blamed(told) == {("fail", (3,))}


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
def test_who_computes_for_long_is_waited_for(spins: bool) -> None:
    told = _run(Planted(kind="slow", rank=3, at=3), spins=spins)
    assert told.seen() == []
    assert len(told.generations) == 1
    assert told.of("step_end")[3]["seconds"] == pytest.approx(SLOW_S, abs=1.0)


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
def test_who_hangs_while_another_computes_for_long_is_named_once_that_one_waits_too(spins: bool) -> None:
    steps = tuple(replace(step, timeout_s=90.0) for step in STEPS)
    told = _run(Planted(kind="hang", rank=1, at=3), Planted(kind="slow", rank=3, at=3), spins=spins, steps=steps)
    assert told.seen() == [("absent", 1)]
    waited_s = told.of("trouble")[0]["t"] - told.of("step")[3]["t"]
    assert SLOW_S <= waited_s < SLOW_S + 2 * PATIENCE_S + 4.0


def test_a_rank_that_hangs_alone_is_late_at_the_deadline_of_its_step() -> None:
    told = _run(Planted(kind="absent", rank=3, at=0))
    assert told.of("step_end")[0]["outcome"] == "trouble"
    assert told.seen() == [("absent", 3)]
    told = _run(Planted(kind="absent", rank=0, at=STORE))
    assert told.of("step_end")[1]["outcome"] == "deadline"
    assert told.of("step_end")[1]["seconds"] == pytest.approx(STEPS[STORE].timeout_s, abs=0.5)


def test_a_check_asks_for_rounds_as_long_as_it_has_something_to_ask() -> None:
    wishes: dict[str, list[Any]] = {"compute": [((1, 4), {"parts": [1]}), ((0, 1, 2), {"parts": [2]})]}
    told = _run(next_round=lambda check, events: wishes[check].pop(0) if wishes.get(check) else None)
    steps = [(event["check"], event["stage"], event["ranks"]) for event in told.of("step")]
    assert steps[:4] == [
        ("compute", "measure", [0, 1, 2, 3, 4, 5]),
        ("compute", "round 1", [1, 4]),
        ("compute", "round 2", [0, 1, 2]),
        (STEPS[1].check, STEPS[1].stage, [0]),
    ]


def test_after_a_death_no_round_of_before_is_asked_again() -> None:
    wishes: list[Any] = [((1, 4), {}), ((0, 1, 2), {})]
    told = _run(
        Planted(kind="dead", rank=4, at=1), next_round=lambda check, events: wishes.pop(0) if wishes else None, seed=1
    )
    assert [stage for _, stage in told.steps(0)] == ["measure", "round 1"]
    assert {stage for _, stage in told.steps(1)} == {step.stage for step in STEPS}


def test_two_die_at_once_and_both_are_named() -> None:
    told = _run(Planted(kind="dead", rank=1, at=3), Planted(kind="dead", rank=4, at=3))
    assert sorted(told.seen("dead")) == [("dead", 1), ("dead", 4)]
    assert told.generations[1:] == [(0, 2, 3, 5)]


def test_fewer_than_two_ranks_are_no_next_generation() -> None:
    told = _run(Planted(kind="dead", rank=1, at=3), nodes=2, nproc_per_node=1)
    assert told.generations == [(0, 1)]
    told = _run(Planted(kind="dead", rank=1, at=3), nodes=3, nproc_per_node=1)
    assert told.generations == [(0, 1, 2), (0, 2)]


@pytest.mark.parametrize("kind", ["agent-lost", "agent-silent", "agent-ended"])
@pytest.mark.parametrize("at", ALL_TIMES)
def test_a_node_that_vanishes_is_named_and_one_that_was_told_to_end_interrupts(
    at: int, kind: Literal["agent-lost", "agent-silent", "agent-ended"]
) -> None:
    if at == STORE:
        node, left = 0, (2, 3, 4, 5)
    else:
        node, left = 1, (0, 1, 4, 5)
    told = _run(Planted(kind=kind, rank=node, at=at), seed=at)
    if kind == "agent-ended":
        assert [event["by"] for event in told.of("interrupted")] == [f"a signal to the agent of node {node}"]
        assert (told.seen(), len(told.generations)) == ([], 1)
        return
    assert told.seen() == [(kind.removeprefix("agent-"), node)]
    assert told.generations[1:] == [left]
    assert {finding.culprit.nodes for finding in blame(fold(told.events))} == {(f"n{node}",)}
    trouble = told.of("trouble")[0]["seen"][0]
    assert trouble["waited_s"] <= 16.0


def test_a_node_that_vanishes_at_the_end_does_not_hold_it_up_and_does_not_pass_unseen() -> None:
    for kind in ("agent-lost", "agent-silent"):
        told = _run(Planted(kind=kind, rank=1, at=QUIT))
        assert told.steps(0) == [(step.check, step.stage) for step in STEPS]
        assert fold(told.events).missing
        # Of the ranks of a node that is gone nobody can say that they had to be ended.
        assert len(told.of("note")) == (kind == "agent-silent")
        assert told.seconds < 30.0


def test_a_rank_that_does_not_quit_is_ended_and_told() -> None:
    told = _run(Planted(kind="deaf", rank=2, at=QUIT))
    assert "ranks 2 did not end by themselves" in told.of("note")[0]["text"]
    assert fold(told.events).missing


@pytest.mark.parametrize("state", [state for state in State if state is not State.OVER])
def test_the_user_may_stop_it_at_any_time(state: State) -> None:
    planted = (Planted(kind="dead", rank=1, at=3),) if state is State.KILL else ()
    told = _run(*planted, on_state={state: lambda fleet: fleet.interrupt()})
    assert len(told.of("interrupted")) == (state is not State.STOP)
    assert len(told.generations) == (state is not State.GATHER)
    assert told.seconds < 20.0


@pytest.mark.parametrize("state", [state for state in State if state is not State.OVER])
def test_a_connection_may_break_at_any_time(state: State) -> None:
    planted = (Planted(kind="dead", rank=1, at=3),) if state is State.KILL else ()

    told = _run(
        *planted,
        on_state={state: lambda fleet: fleet.lose(2)} if state is not State.GATHER else {},
        at_s=[(1.9, lambda fleet: [fleet.lose(node) for node in (1, 2)])] if state is State.GATHER else [],
    )
    named = told.seen("lost") or [event["text"] for event in told.of("note")]
    assert named or state in (State.QUIT, State.STOP)
    assert fold(told.events).missing or named
    assert told.seconds < 60.0


def test_a_node_that_does_not_answer_when_its_ranks_are_to_end_is_named() -> None:
    told = _run(
        Planted(kind="error", rank=4, at=3, cause="fabric"), on_state={State.KILL: lambda fleet: fleet.silence(0)}
    )
    assert told.seen() == [("error", 4), ("silent", 0)]
    assert told.generations[1:] == [(2, 3, 4, 5)]
    # What rank 4 complained of came from there.
    assert {finding.culprit.nodes for finding in blame(fold(told.events))} == {("n0",)}


def test_nobody_joins() -> None:
    told = _run(absent_nodes=frozenset(range(3)))
    assert [event["text"] for event in told.of("note")] == [
        f"node {node} did not join within 60 s" for node in range(3)
    ]
    assert told.generations == []
    assert 60.0 <= told.seconds < 61.0


def test_an_agent_that_ended_before_it_joined_is_not_waited_for_and_the_others_end_in_order() -> None:
    told = _run(
        absent_nodes=frozenset({1, 2}), at_s=[(3.0, lambda fleet: fleet.lose(1)), (3.0, lambda fleet: fleet.lose(2))]
    )
    assert [event["text"] for event in told.of("note")] == ["node 1 was lost before the ranks were started: never came"]
    assert told.seconds < 4.0
    assert "node0" in [event["src"] for event in told.events if event["kind"] == "end"]


def test_who_joins_when_all_is_over_is_sent_home() -> None:
    config = SimulatedFleet(nodes=3).config
    machine = Machine(config, 0.0)
    machine.joined(0, 0.1)
    machine.interrupt("SIGINT", 0.2)
    assert [message["kind"] for _, message in machine.joined(1, 0.3).send] == ["welcome", "stop"]


def test_a_node_that_never_joins_is_told_and_the_others_are_sent_home() -> None:
    told = _run(absent_nodes=frozenset({1}), deadline_s=30.0)
    assert [event["text"] for event in told.of("note")] == ["node 1 did not join within 30 s"]
    assert 30.0 <= told.seconds < 31.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("at_s", [0.5, 2.5, 2.8, 3.1, 3.4, 3.7])
def test_a_controller_that_was_suspended_blames_nobody(at_s: float, seed: int) -> None:
    told = _run(suspended=(at_s, 20.0), seed=seed)
    assert (told.seen(), told.of("interrupted")) == ([], [])
    assert told.steps(0) == [(step.check, step.stage) for step in STEPS]
    # After half a minute without a word the agents have ended their ranks themselves.
    told = _run(suspended=(at_s, 60.0), seed=seed)
    assert told.seen() == []
    assert {finding.severity for finding in blame(fold(told.events))} <= {"error"}


def test_a_node_that_gave_the_controller_up_before_the_start_is_not_started() -> None:
    told = _run(absent_nodes=frozenset({2}), suspended=(5.0, 40.0))
    assert (told.generations, told.seen()) == ([], [])
    assert told.seconds < 50.0


def test_time_that_was_missed_does_not_hide_a_fault_after_it() -> None:
    told = _run(Planted(kind="stopped", rank=2, at=4), suspended=(2.0, 20.0))
    assert told.seen() == [("frozen", 2)]
    assert told.of("trouble")[0]["t"] - told.of("step")[4]["t"] < PATIENCE_S + 3.0


def test_the_deadline_of_the_trial_ends_it() -> None:
    told = _run(Planted(kind="hang", rank=3, at=4), deadline_s=10.0)
    step = told.of("step")[-1]
    assert step["timeout_s"] < 10.0
    assert told.of("step_end")[-1]["outcome"] == "deadline"
    assert 10.0 <= told.seconds < 16.0
    assert len(told.generations) == 1
    # Nobody had the time that the plan gives, so nobody was late.
    assert {severity for severity, _ in _blamed(told)} == {"error"}


def test_ranks_in_doubt_are_measured_again_one_at_a_time() -> None:
    asked: list[tuple[str, int]] = []

    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        asked.append((check, sum(event["kind"] == "figures" for event in events)))
        return (4, 1) if check == "compute" else ()

    told = _run(suspects=suspects)
    assert told.steps(0)[:4] == [
        ("compute", "measure"),
        ("compute", "repeat"),
        ("compute", "repeat"),
        ("bootstrap", "store"),
    ]
    assert [event["ranks"] for event in told.of("step")[1:3]] == [[4], [1]]
    # Each check once, with its own figures: not again after the repeats, nor after the first of two stages.
    assert asked == [("compute", 6), ("bootstrap", 7), ("collectives", 6), ("training", 6)]
    assert blame(fold(told.events)) == ()


def test_a_check_that_cannot_say_whom_it_doubts_does_not_hold_up_the_trial() -> None:
    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        raise KeyError("src")

    told = SimulatedFleet(nodes=1, nproc_per_node=2, suspects=suspects).run()
    assert told.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert [type(error) for error in told.refused] == [KeyError] * 4


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**400) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KINDS = ("status", "killed", "end", "rank", "figures", "facts", "done", "error", "stack", "exit", "left", "note", "")
_WILD = st.fixed_dictionaries(
    {"kind": st.sampled_from(_KINDS) | _ANY},
    optional={
        "gen": st.integers(-1, 2) | _ANY,
        "step": st.integers(-1, 5) | _ANY,
        "rank": st.integers(-1, 9) | _ANY,
        "ranks": st.dictionaries(st.sampled_from(["0", "1", "x"]), st.lists(_ANY, min_size=4, max_size=4) | _ANY)
        | _ANY,
        "src": st.sampled_from(["node0", "node1", "rank0.0"]) | _ANY,
        "share": st.just({}) | _ANY,
        "cause": _ANY,
        "phase": _ANY,
        "code": _ANY,
        "ours": _ANY,
        "text": _ANY,
    },
)


@settings(max_examples=60)
@given(wild=st.lists(st.tuples(st.floats(0, 8), st.integers(0, 2), _WILD), max_size=12), seed=st.integers(0, 9))
def test_no_message_of_an_agent_breaks_the_machine(wild: list[tuple[float, int, dict[str, Any]]], seed: int) -> None:
    at_s = [(delay_s, partial(_say, node=node, message=message)) for delay_s, node, message in wild]
    told = SimulatedFleet(nodes=3, nproc_per_node=2, seed=seed, deadline_s=60.0, at_s=at_s).run()
    assert told.seconds < 60.0 + 3 * 45.0


def _say(fleet: SimulatedFleet, node: int, message: dict[str, Any]) -> None:
    fleet.say(node, message)


@pytest.mark.parametrize("seed", range(4))
def test_messages_that_come_twice_change_nothing(seed: int) -> None:
    told = _run(Planted(kind="dead", rank=3, at=3), seed=seed, echo=0.5)
    assert set(told.seen("dead")) == {("dead", 3)}
    assert told.seen("absent", "late", "stuck", "frozen", "lost", "silent") == []
    assert told.generations == [tuple(range(6)), (0, 1, 2, 4, 5)]
