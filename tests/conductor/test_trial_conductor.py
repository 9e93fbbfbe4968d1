"""The trial conductor with a few simulated agents: every fault at every time, in random orders."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import QUIT, SLOW_S, START, STEPS, Planted, RunRecord
from event_streams import event_of
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial.conductor.config import State
from seatrial.conductor.origin import NumberError
from seatrial.conductor.trial_conductor import TrialConductor
from seatrial.judge.blame import blame
from seatrial.judge.fold import fold
from seatrial.protocol.timeouts import PATIENCE_S

_STATES = (State.GATHER, State.START, State.STEP, State.KILL, State.QUIT, State.STOP)
ALL_TIMES = (START, *range(len(STEPS)))
STORE, WORLD = 1, 2
TOGETHER = (2, 3, 4)
"""Steps in which all ranks wait for one another."""


def _run(*planted: Planted, nodes: int = 3, nproc_per_node: int = 2, **options: Any) -> RunRecord:
    fleet = SimulatedFleet(nodes=nodes, nproc_per_node=nproc_per_node, planted=planted, **options)
    record = fleet.run()
    assert fleet.conductor.state is State.OVER
    assert record.events[-1]["kind"] == "end"
    # An event that comes again has the number of one before.
    assert [error for error in record.refused if not ("echo" in options and isinstance(error, NumberError))] == []
    return record


def _blamed(record: RunRecord) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.severity, finding.culprit.ranks) for finding in blame(fold(record.events))}


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_trial_runs_each_step_once_and_blames_nobody(seed: int) -> None:
    record = _run(seed=seed)
    assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert [event["outcome"] for event in record.of("step_end")] == ["done"] * len(STEPS)
    assert (record.seen(), record.generations) == ([], [tuple(range(6))])
    trial = fold(record.events)
    assert trial.missing == ()
    assert blame(trial) == ()


# The store is rank 0's alone.
@pytest.mark.parametrize(
    ("at", "rank"), [(at, rank) for at in ALL_TIMES for rank in (0, 5) if (at, rank) != (STORE, 5)]
)
def test_a_dead_rank_is_named_and_the_rest_go_on(at: int, rank: int) -> None:
    record = _run(Planted(kind="dead", rank=rank, at=at), seed=at)
    # Its peers' complaints came first and are kept, and they are not what the next generation goes by.
    assert record.seen("dead") == [("dead", rank)]
    assert record.seen("frozen", "absent", "late", "stuck") == []
    if at in TOGETHER:
        assert len(record.seen("error")) == 5
    assert record.generations == [tuple(range(6)), tuple(other for other in range(6) if other != rank)]
    checks = [check for check, _ in record.steps(1)]
    failed = STEPS[max(at, 0)].check
    assert ("bootstrap", "world") in record.steps(1)
    assert checks[-1] == "training"
    assert failed in checks
    assert _blamed(record) == {("fail", (rank,))}


@pytest.mark.parametrize("share", [{"storage/key": "0" * 16}, {"store": "elsewhere"}, ["x"]])
def test_after_a_false_share_no_rank_accuses_the_network(share: object) -> None:
    record = _run(shares={0: share})
    assert [event["outcome"] for event in record.of("step_end")] == ["done", "trouble"]
    assert (record.seen(), record.generations) == ([], [tuple(range(6))])
    notes = [event["text"] for event in record.of("note") if event["severity"] == "error"]
    assert len([text for text in notes if "shares other values than bootstrap/store does" in text]) == 1
    assert _blamed(record) == {("error", ())}


@pytest.mark.parametrize(
    "share",
    # 262,110 bytes would have left no room for the others.
    [{"x": "a" * 262_110}, {"store": {"host": "liar", "port": 2}}, {"storage/key": "../../x"}, ["x"]],
    ids=["much", "store", "key", "no names"],
)
def test_a_rank_that_shares_unasked_hurts_no_other(share: object) -> None:
    record = _run(shares={3: share})
    assert [event["outcome"] for event in record.of("step_end")] == ["done"] * len(STEPS)
    assert record.seen() == []
    notes = record.of("note")
    assert {event["severity"] for event in notes} == {"error"}
    assert all(event["text"].startswith("rank 3 shares values with later steps that no check") for event in notes)
    assert _blamed(record) == {("error", ())}


@pytest.mark.parametrize("cause", ["own", "memory", "device", "request"])
def test_an_error_takes_its_rank_out(cause: str) -> None:
    record = _run(Planted(kind="error", rank=4, at=3, cause=cause))
    assert record.seen() == [("error", 4)]
    assert record.generations[1:] == [(0, 1, 2, 3, 5)]
    assert _blamed(record) == {("fail", (4,))} if cause in ("memory", "device") else {("error", ())}


def test_a_fabric_error_alone_takes_no_rank_out() -> None:
    record = _run(Planted(kind="error", rank=4, at=3, cause="fabric"))
    assert record.seen() == [("error", 4)]
    assert len(record.generations) == 1
    assert _blamed(record) == {("fail", ())}


def test_an_error_with_words_of_ours_as_its_cause_is_refused() -> None:
    """The words of another event would stand where the judge reads them."""
    planted = Planted(kind="error", rank=1, at=3, cause="out of memory: x")
    record = SimulatedFleet(nodes=1, nproc_per_node=2, planted=(planted,)).run()
    assert [type(error) for error in record.refused] == [ValueError]
    assert ("error", 1) not in record.seen()


@pytest.mark.parametrize("at", [START, 0, *TOGETHER])
def test_a_stopped_rank_is_frozen_within_patience(at: int) -> None:
    record = _run(Planted(kind="stopped", rank=2, at=at), seed=at)
    assert record.seen() == [("frozen", 2)]
    # As soon as a status shows it: they come once a second.
    assert record.of("trouble")[0]["seen"][0]["waited_s"] <= PATIENCE_S + 2.0
    began = max(
        (event["t"] for event in record.of("step") if event["step"] == at), default=record.of("generation")[0]["t"]
    )
    assert record.of("trouble")[0]["t"] - began < PATIENCE_S + 3.0
    assert record.generations[1:] == [(0, 1, 3, 4, 5)]
    assert _blamed(record) == {("fail", (2,))}


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
@pytest.mark.parametrize("kind", ["absent", "hang"])
@pytest.mark.parametrize("at", TOGETHER)
def test_an_absent_rank_is_named_before_the_deadline(at: int, kind: Literal["absent", "hang"], spins: bool) -> None:
    record = _run(Planted(kind=kind, rank=3, at=at), seed=at, spins=spins)
    assert record.seen() == [("absent", 3)]
    trouble, step = record.of("trouble")[0], record.of("step")[at]
    assert trouble["t"] - step["t"] < PATIENCE_S + 6.0
    assert record.generations[1:] == [(0, 1, 2, 4, 5)]
    assert _blamed(record) == {("fail", (3,))}


@pytest.mark.parametrize(("nodes", "nproc_per_node"), [(1, 2), (2, 1), (2, 2), (3, 1), (4, 4)])
def test_a_hang_is_named_on_any_number_of_hosts(nodes: int, nproc_per_node: int) -> None:
    record = _run(Planted(kind="hang", rank=1, at=3), nodes=nodes, nproc_per_node=nproc_per_node)
    assert record.seen() == [("absent", 1)]
    assert _blamed(record) == {("fail", (1,))}


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
def test_a_rank_that_computes_long_is_waited_for(spins: bool) -> None:
    record = _run(Planted(kind="slow", rank=3, at=3), spins=spins)
    assert record.seen() == []
    assert len(record.generations) == 1
    assert record.of("step_end")[3]["seconds"] == pytest.approx(SLOW_S, abs=1.0)


@pytest.mark.parametrize("spins", [False, True], ids=["who waits sleeps", "who waits spins"])
def test_a_hang_is_named_once_a_slow_rank_waits_too(spins: bool) -> None:
    steps = tuple(replace(step, timeout_s=90.0) for step in STEPS)
    record = _run(Planted(kind="hang", rank=1, at=3), Planted(kind="slow", rank=3, at=3), spins=spins, steps=steps)
    assert record.seen() == [("absent", 1)]
    waited_s = record.of("trouble")[0]["t"] - record.of("step")[3]["t"]
    assert SLOW_S <= waited_s < SLOW_S + 2 * PATIENCE_S + 6.0


def test_a_rank_that_hangs_alone_is_late_at_the_deadline() -> None:
    record = _run(Planted(kind="absent", rank=3, at=0))
    assert record.of("step_end")[0]["outcome"] == "trouble"
    assert record.seen() == [("absent", 3)]
    record = _run(Planted(kind="absent", rank=0, at=STORE))
    assert record.of("step_end")[1]["outcome"] == "deadline"
    # The statuses that follow the stacks, too.
    assert record.of("step_end")[1]["seconds"] == pytest.approx(STEPS[STORE].timeout_s + 1.5, abs=1.5)


def test_a_check_gets_all_its_rounds() -> None:
    wishes: dict[str, list[Any]] = {"compute": [((1, 4), {"parts": [1]}), ((0, 1, 2), {"parts": [2]})]}
    record = _run(next_round=lambda check, events: wishes[check].pop(0) if wishes.get(check) else None)
    steps = [(event["check"], event["stage"], event["ranks"]) for event in record.of("step")]
    assert steps[:4] == [
        ("compute", "measure", [0, 1, 2, 3, 4, 5]),
        ("compute", "round 1", [1, 4]),
        ("compute", "round 2", [0, 1, 2]),
        (STEPS[1].check, STEPS[1].stage, [0]),
    ]


def test_rounds_are_not_repeated_after_a_death() -> None:
    wishes: list[Any] = [((1, 4), {}), ((0, 1, 2), {})]
    record = _run(
        Planted(kind="dead", rank=4, at=1), next_round=lambda check, events: wishes.pop(0) if wishes else None, seed=1
    )
    assert [stage for _, stage in record.steps(0)] == ["measure", "round 1"]
    assert {stage for _, stage in record.steps(1)} == {step.stage for step in STEPS}


def test_two_die_at_once_and_both_are_named() -> None:
    record = _run(Planted(kind="dead", rank=1, at=3), Planted(kind="dead", rank=4, at=3))
    assert sorted(record.seen("dead")) == [("dead", 1), ("dead", 4)]
    assert record.generations[1:] == [(0, 2, 3, 5)]


def test_fewer_than_two_ranks_are_no_next_generation() -> None:
    record = _run(Planted(kind="dead", rank=1, at=3), nodes=2, nproc_per_node=1)
    assert record.generations == [(0, 1)]
    record = _run(Planted(kind="dead", rank=1, at=3), nodes=3, nproc_per_node=1)
    assert record.generations == [(0, 1, 2), (0, 2)]


@pytest.mark.parametrize("kind", ["agent-lost", "agent-silent", "agent-signaled"])
@pytest.mark.parametrize("at", ALL_TIMES)
def test_a_vanished_node_is_named_and_a_signaled_one_interrupts(
    at: int, kind: Literal["agent-lost", "agent-silent", "agent-signaled"]
) -> None:
    if at == STORE:
        node, left = 0, (2, 3, 4, 5)
    else:
        node, left = 1, (0, 1, 4, 5)
    record = _run(Planted(kind=kind, rank=node, at=at), seed=at)
    if kind == "agent-signaled":
        assert [event["by"] for event in record.of("interrupted")] == [f"a signal to the agent of node {node}"]
        assert (record.seen(), len(record.generations)) == ([], 1)
        return
    assert record.seen() == [(kind.removeprefix("agent-"), node)]
    assert record.generations[1:] == [left]
    assert {finding.culprit.nodes for finding in blame(fold(record.events))} == {(f"n{node}",)}
    trouble = record.of("trouble")[0]["seen"][0]
    assert trouble["waited_s"] <= 16.0


def test_a_signal_explains_complaints_that_came_before_it_and_no_loss() -> None:
    def complain(fleet: SimulatedFleet) -> None:
        fleet._fail(fleet._agents[0], fleet._agents[0].ranks[0], 3, "fabric")

    def signal(fleet: SimulatedFleet) -> None:
        fleet.say(1, {"kind": "signal", "number": 15})

    record = _run(at_s=[(2.0, complain), (2.5, signal)])
    assert [event["by"] for event in record.of("interrupted")] == ["a signal to the agent of node 1"]
    assert record.seen() == []
    # What the launcher of the job makes of a lost node does not hide that one.
    record = _run(at_s=[(2.0, lambda fleet: fleet.lose(2)), (2.5, signal)])
    assert (record.seen("lost"), record.of("interrupted")) == ([("lost", 2)], [])


@pytest.mark.parametrize("at", ALL_TIMES)
def test_an_agent_that_ends_by_itself_is_named(at: int) -> None:
    node = 0 if at == STORE else 1
    record = _run(Planted(kind="agent-quits", rank=node, at=at), seed=at)
    (note,) = [finding for finding in blame(fold(record.events)) if finding.severity == "error"]
    assert note.what == f"the agent of node {node} ended before the trial was over"


@pytest.mark.parametrize("at", ALL_TIMES)
def test_a_canceled_job_blames_no_rank_that_ended_before_its_agent(at: int) -> None:
    """scancel sends SIGTERM to ranks and agents alike."""
    record = _run(Planted(kind="canceled", rank=0, at=at), seed=at)
    assert [event["by"] for event in record.of("interrupted")] == ["a signal to the agent of node 0"]
    assert (record.seen(), len(record.generations)) == ([], 1)
    # Without such a signal to its agent, the rank is named.
    record = _run(Planted(kind="terminated", rank=0, at=at), seed=at)
    assert record.seen("dead") == [("dead", 0)]
    assert not record.of("interrupted")
    # Nor does the signal hide who died of another cause.
    record = _run(Planted(kind="canceled", rank=0, at=at), Planted(kind="dead", rank=3, at=at), seed=at)
    if at != STORE:  # the store is rank 0's alone
        assert ("dead", 3) in record.seen("dead")


def test_a_node_that_vanishes_at_the_end_is_recorded() -> None:
    for kind in ("agent-lost", "agent-silent"):
        record = _run(Planted(kind=kind, rank=1, at=QUIT))
        assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
        assert fold(record.events).missing
        # Of the ranks of a node that is gone nobody can say that they had to be ended.
        assert len(record.of("note")) == (kind == "agent-silent")
        assert record.seconds < 30.0


def test_a_rank_that_does_not_quit_is_killed_and_noted() -> None:
    record = _run(Planted(kind="deaf", rank=2, at=QUIT))
    assert "rank 2 did not exit in time and was killed" in record.of("note")[0]["text"]
    assert fold(record.events).missing


@pytest.mark.parametrize("state", _STATES)
def test_an_interrupt_at_any_time(state: State) -> None:
    planted = (Planted(kind="dead", rank=1, at=3),) if state is State.KILL else ()
    record = _run(*planted, on_state={state: lambda fleet: fleet.interrupt()})
    assert len(record.of("interrupted")) == (state is not State.STOP)
    assert len(record.generations) == (state is not State.GATHER)
    assert record.seconds < 20.0


@pytest.mark.parametrize("state", _STATES)
def test_a_lost_connection_at_any_time(state: State) -> None:
    planted = (Planted(kind="dead", rank=1, at=3),) if state is State.KILL else ()

    record = _run(
        *planted,
        on_state={state: lambda fleet: fleet.lose(2)} if state is not State.GATHER else {},
        at_s=[(1.9, lambda fleet: [fleet.lose(node) for node in (1, 2)])] if state is State.GATHER else [],
    )
    named = record.seen("lost") or [event["text"] for event in record.of("note")]
    assert named or state in (State.QUIT, State.STOP)
    assert fold(record.events).missing or named
    assert record.seconds < 60.0


def test_a_node_that_does_not_answer_the_kill_is_named() -> None:
    record = _run(
        Planted(kind="error", rank=4, at=3, cause="fabric"), on_state={State.KILL: lambda fleet: fleet.mute(0)}
    )
    assert record.seen() == [("error", 4), ("silent", 0)]
    assert record.generations[1:] == [(2, 3, 4, 5)]
    # What rank 4 complained of came from there.
    assert {finding.culprit.nodes for finding in blame(fold(record.events))} == {("n0",)}


def test_no_node_joins() -> None:
    record = _run(absent_nodes=frozenset(range(3)))
    assert [event["text"].partition(";")[0] for event in record.of("note")] == [
        f"node {node} did not join within 60 s" for node in range(3)
    ]
    assert record.generations == []
    assert 60.0 <= record.seconds < 61.0


def test_an_agent_that_ended_before_it_joined_stops_the_trial() -> None:
    record = _run(
        absent_nodes=frozenset({1, 2}), at_s=[(3.0, lambda fleet: fleet.lose(1)), (3.0, lambda fleet: fleet.lose(2))]
    )
    assert [event["text"] for event in record.of("note")] == [
        "node 1 was lost before the ranks were started: never came"
    ]
    assert record.seconds < 4.0
    assert "node0" in [event["src"] for event in record.events if event["kind"] == "end"]


def test_an_agent_that_joins_too_late_is_stopped() -> None:
    config = SimulatedFleet(nodes=3).config
    conductor = TrialConductor(config, 0.0)
    conductor.join(0, 0.1)
    conductor.interrupt("SIGINT", 0.2)
    assert [message["kind"] for _, message in conductor.join(1, 0.3).send] == ["welcome", "stop"]


def test_a_node_that_never_joins_is_named() -> None:
    record = _run(absent_nodes=frozenset({1}), deadline_s=30.0)
    (note,) = record.of("note")
    assert note["text"].startswith("node 1 did not join within 30 s; look at the output of its agent")
    assert "NetworkPolicy (--allow-egress)" in note["text"]
    assert 30.0 <= record.seconds < 31.0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("at_s", [0.5, 2.5, 2.8, 3.1, 3.4, 3.7])
def test_a_paused_controller_blames_nobody(at_s: float, seed: int) -> None:
    record = _run(suspended=(at_s, 20.0), seed=seed)
    assert (record.seen(), record.of("interrupted")) == ([], [])
    assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
    # After half a minute without a word the agents have ended their ranks themselves.
    record = _run(suspended=(at_s, 60.0), seed=seed)
    assert record.seen() == []
    assert {finding.severity for finding in blame(fold(record.events))} <= {"error"}


def test_a_pause_is_no_part_of_the_time_of_a_trial() -> None:
    record = _run(deadline_s=10.0, suspended=(2.5, 20.0))
    assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert all(event["timeout_s"] > 5.0 for event in record.of("step"))
    assert all(event["outcome"] == "done" and event["seconds"] < 5.0 for event in record.of("step_end"))
    assert 20.0 < record.seconds < 30.0


def test_no_start_with_a_node_that_gave_up() -> None:
    record = _run(absent_nodes=frozenset({2}), suspended=(5.0, 40.0))
    assert (record.generations, record.seen()) == ([], [])
    assert record.seconds < 50.0


def test_a_pause_does_not_hide_a_later_fault() -> None:
    record = _run(Planted(kind="stopped", rank=2, at=4), suspended=(2.0, 20.0))
    assert record.seen() == [("frozen", 2)]
    assert record.of("trouble")[0]["t"] - record.of("step")[4]["t"] < PATIENCE_S + 3.0


def test_the_deadline_of_the_trial_ends_it() -> None:
    hang, slow = Planted(kind="hang", rank=3, at=4), Planted(kind="slow", rank=3, at=4)
    for fault, blamed in ((hang, {("fail", (3,))}), (slow, {("error", ())})):
        record = _run(fault, deadline_s=10.0)
        step = record.of("step")[-1]
        assert step["timeout_s"] < 10.0
        assert record.of("step_end")[-1]["outcome"] == "deadline"
        assert 10.0 <= record.seconds < 16.0
        assert len(record.generations) == 1
        # A rank that computes has not had the time that the plan gives; one that stands still is named.
        assert _blamed(record) == blamed


def test_suspects_are_measured_again_one_at_a_time() -> None:
    asked: list[tuple[str, int]] = []

    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        asked.append((check, sum(event["kind"] == "measurements" for event in events)))
        return (4, 1) if check == "compute" else ()

    record = _run(suspects=suspects)
    assert record.steps(0)[:4] == [
        ("compute", "measure"),
        ("compute", "repeat"),
        ("compute", "repeat"),
        ("bootstrap", "store"),
    ]
    assert [event["ranks"] for event in record.of("step")[1:3]] == [[4], [1]]
    # Each check once, with its own measurements: not again after the repeats, nor after the first of two stages.
    assert asked == [("compute", 6), ("bootstrap", 7), ("collectives", 6), ("training", 6)]
    assert blame(fold(record.events)) == ()


def test_a_check_that_raises_does_not_stop_the_trial() -> None:
    def suspects(check: str, events: list[dict[str, Any]]) -> tuple[int, ...]:
        raise KeyError("src")

    record = SimulatedFleet(nodes=1, nproc_per_node=2, suspects=suspects).run()
    assert record.steps(0) == [(step.check, step.stage) for step in STEPS]
    assert [type(error) for error in record.refused] == [KeyError] * 4


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**400) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KINDS = (
    "status",
    "killed",
    "end",
    "rank",
    "measurements",
    "facts",
    "done",
    "error",
    "stack",
    "exit",
    "left",
    "note",
    "",
)
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
def test_no_message_of_an_agent_breaks_the_conductor(wild: list[tuple[float, int, dict[str, Any]]], seed: int) -> None:
    at_s = [(delay_s, partial(_say, node=node, message=message)) for delay_s, node, message in wild]
    record = SimulatedFleet(nodes=3, nproc_per_node=2, seed=seed, deadline_s=60.0, at_s=at_s).run()
    assert record.seconds < 60.0 + 3 * 45.0


def _say(fleet: SimulatedFleet, node: int, message: dict[str, Any]) -> None:
    fleet.say(node, message)


@pytest.mark.parametrize("seed", range(4))
def test_repeated_messages_change_nothing(seed: int) -> None:
    record = _run(Planted(kind="dead", rank=3, at=3), seed=seed, echo=0.5)
    assert set(record.seen("dead")) == {("dead", 3)}
    assert record.seen("absent", "late", "stuck", "frozen", "lost", "silent") == []
    assert record.generations == [tuple(range(6)), (0, 1, 2, 4, 5)]


@pytest.mark.parametrize("signaled", [False, True])
def test_a_node_that_is_lost_already_ends_no_later_attempt(*, signaled: bool) -> None:
    """Its agent was stopped for a while, hears nothing of the next attempt, and takes the controller for dead."""

    def come_back(fleet: SimulatedFleet) -> None:
        if (fleet.conductor._generation, fleet.conductor.state) != (1, State.STEP):
            fleet.later(0.1, partial(come_back, fleet))
            return
        said.append(fleet.now)
        if signaled:
            fleet.say(0, {"kind": "signal", "number": 15})
        fleet.say(0, event_of(fleet._agents[0].source, "end"))

    said: list[float] = []
    record = _run(Planted(kind="agent-silent", rank=0, at=3), at_s=[(5.0, come_back)])
    assert said
    assert record.generations[1:] == [(2, 3, 4, 5)]
    outcomes = [event["outcome"] for event in record.of("step_end") if event["gen"] == 1]
    assert outcomes == ["done"] * 4
    assert (record.of("interrupted"), record.of("note")) == ([], [])


@pytest.mark.parametrize(
    ("rank", "gen", "last", "extends"),
    [(2, 0, False, True), (2, 0, True, False), (2, 1, False, False), (3, 5, False, False)],
    ids=["printed", "said all", "never begun", "no such generation"],
)
def test_only_missing_output_of_ranks_that_ran_holds_up_the_end(rank: int, gen: int, last: bool, extends: bool) -> None:
    def send(fleet: SimulatedFleet) -> None:
        fleet.say(1, {"kind": "log", "rank": rank, "gen": gen, "at": 0, "data": "", "last": last})
        if fleet.now - began[0] < 20.0:
            fleet.later(1.0, lambda: send(fleet))

    def begin(fleet: SimulatedFleet) -> None:
        began.append(fleet.now)
        fleet.mute(1)
        send(fleet)

    began: list[float] = []
    record = SimulatedFleet(nodes=2, nproc_per_node=2, on_state={State.STOP: begin}).run()
    after_s = record.events[-1]["t"] - began[0]
    assert (after_s > 20.0) is extends
    assert extends or after_s < 15.0
