"""A stall of the control network, in which all agents and ranks go on, has no healthy rank or node named."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import BEHIND, EPOCH_S, INSIDE, SimulatedAgent, SimulatedRank
from conductor.test_steps_of_agents import OF_AGENTS
from event_streams import event_of

from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.rank_status import RankStatus, is_quiet
from seatrial.conductor.steps import StepPlan
from seatrial.judge.conclude import conclude
from seatrial.protocol.timeouts import PATIENCE_S


class _StalledFleet(SimulatedFleet):
    """Ranks compute alone. For a while nothing arrives in either direction, and then all of it, as TCP has it."""

    def __init__(
        self,
        *,
        stalled: Callable[[int], tuple[float, float]],
        works_s: float = 60.0,
        last_word_s: float | None = None,
        hangs: int = -1,
        **rest: Any,
    ) -> None:
        """``stalled``: node -> the seconds from which and for which. ``last_word_s``: when each node sends an event.
        ``hangs``: a rank that uses no CPU time."""
        super().__init__(**rest)
        self._stalled, self._works_s, self._last_word_s, self._hangs = stalled, works_s, last_word_s, hangs

    def _arrives_at(self, node: int, at: float) -> float:
        start, for_s = self._stalled(node)
        return EPOCH_S + start + for_s if EPOCH_S + start <= at < EPOCH_S + start + for_s else at

    def _to_conductor(self, agent: SimulatedAgent, action: Callable[[], None]) -> None:
        start, end = self._suspended
        at = self._arrives_at(agent.node, self.now + 0.005)
        at = max(end + 0.0005 if start <= at < end else at, agent.to_conductor + 1e-6)
        agent.to_conductor = at
        self.later(at - self.now, action)

    def _obey(self, agent: SimulatedAgent, message: dict[str, Any]) -> None:
        if (at := self._arrives_at(agent.node, self.now)) > self.now:
            self.later(at - self.now + 0.001, partial(self._obey, agent, message))
        else:
            super()._obey(agent, message)

    def _enter(self, agent: SimulatedAgent, rank: SimulatedRank, message: dict[str, Any]) -> None:
        is_last = rank.rank == self.config.nodes * self.config.nproc_per_node - 1
        if rank.rank == self._hangs or (not is_last and self._hangs < 0 and self.config.nproc_per_node > 1):
            rank.number, rank.phase = message["step"] * 10**9 + 1, "compute/matmul"
            if rank.rank != self._hangs:
                super()._enter(agent, rank, message)
            return
        rank.number, rank.phase, rank.computes = message["step"] * 10**9 + 1, "compute/matmul", True
        self.later(self._works_s, partial(self._done_alone, agent, rank, message))
        if self._last_word_s is not None:
            words = {"gen": 0, "step": message["step"], "check": "compute", "stage": "measure", "facts": []}
            event = partial(event_of, rank.source, "facts", **words)
            self.later(EPOCH_S + self._last_word_s - self.now, lambda: self._send(agent, event()))

    def _done_alone(self, agent: SimulatedAgent, rank: SimulatedRank, message: dict[str, Any]) -> None:
        if agent.ranks.get(rank.rank) is rank:
            self._done(agent, rank, message)


def _alone(timeout_s: float) -> tuple[StepPlan, ...]:
    return (StepPlan(check="compute", scope="alone", timeout_s=timeout_s),)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("for_s", [12.0, 14.2, 14.6, 14.9])
def test_ranks_that_compute_in_a_stall_are_not_absent(nodes: int, for_s: float) -> None:
    """Their statuses do not arrive; their node is not silent yet, since a measurement came after the last one."""
    for tenths in range(200, 210, 2):
        start = tenths / 10
        record = _StalledFleet(
            nodes=nodes,
            nproc_per_node=8,
            steps=_alone(200.0),
            stalled=lambda node, start=start: (start, for_s),  # type: ignore[misc]
            last_word_s=start - 0.05,
        ).run()
        assert (record.seen(), [event["outcome"] for event in record.of("step_end")]) == ([], ["done"]), start


@pytest.mark.parametrize("for_s", [3.0, 8.0, 13.5])
def test_what_was_sent_before_a_deadline_counts_in_a_stall(for_s: float) -> None:
    """The rank has finished before the deadline, and that arrives after it."""
    record = _StalledFleet(
        nodes=3,
        steps=_alone(30.0),
        works_s=27.0,
        stalled=lambda node: (28.5, for_s if node == 2 else 0.0),
    ).run()
    assert (record.seen(), [event["outcome"] for event in record.of("step_end")]) == ([], ["done"])


_LAST_AGENTS = (StepPlan(check="network", scope="agents", stage="connect", timeout_s=15.8),)


@pytest.mark.parametrize(
    ("steps", "start", "for_s"), [(_alone(16.0), 2.2, 15.6), (_LAST_AGENTS, 1.8, 15.8)], ids=["ranks", "agents"]
)
def test_a_trial_that_is_done_has_no_deadline(steps: tuple[StepPlan, ...], start: float, for_s: float) -> None:
    """The last node is heard again after the deadline of the last step, which it had done in time."""
    fleet = _StalledFleet(nodes=2, steps=steps, works_s=8.0, stalled=lambda node: (start, for_s if node == 1 else 0.0))
    record = fleet.run()
    ((outcome, seconds),) = [(event["outcome"], event["seconds"]) for event in record.of("step_end")]
    assert (outcome, seconds > steps[0].timeout_s) == ("done", True)
    assert record.of("trouble") == []
    assert not any("incomplete record" in reason for reason in conclude(record.events).verdict.reasons)


def test_a_rank_that_hangs_is_named_in_spite_of_a_stall() -> None:
    record = _StalledFleet(nodes=3, steps=_alone(200.0), works_s=8.0, hangs=1, stalled=lambda node: (10.0, 12.0)).run()
    assert record.seen() == [("absent", 1)]
    assert record.of("step_end")[0]["seconds"] < 40.0


def test_a_rank_without_statuses_is_not_taken_to_stand_outside() -> None:
    """Two ranks wait inside an operation for one that computes outside of it and shows its stack, but no status."""
    for last_status_s in (20.0, 999.0):
        detector = HangDetector({rank: f"host {rank}" for rank in range(3)}, 400.0, 0.0)
        detector.begin(range(3), 400.0, 0.0, together=True)
        for tick in range(1, 4 * 60):
            now = tick / 4
            if tick % 4 == 0:
                for rank in (0, 1):
                    detector.statuses[rank].update(("S", 1.0, 5, "x/meet"), now)
                if now < last_status_s:
                    detector.statuses[2].update(("R", now, 4, "x/compute"), now)
            assert detector.poll(now) is None
            for rank in detector.stacks_to_request(now):
                detector.answer(rank, detector.request_number, BEHIND if rank == 2 else INSIDE)


def test_the_first_of_many_late_statuses_shows_no_rank_quiet() -> None:
    """It says what the rank did long ago, and the others of the same time lie unread."""
    status = RankStatus(moved_at=0.0, entered_at=0.0, known_until=0.0)
    for second in range(1, 4):
        status.update(("S", 0.0, 0, ""), float(second))
    status.update(("S", 0.0, 0, ""), PATIENCE_S + 3.0)
    assert not is_quiet(status, PATIENCE_S + 3.0)
    for _ in range(14):
        status.update(("S", 0.0, 0, ""), PATIENCE_S + 3.0)
    assert is_quiet(status, PATIENCE_S + 3.0)


@pytest.mark.parametrize("before", [(), OF_AGENTS], ids=["ranks", "agents"])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_that_are_heard_again_at_once_are_not_named(seed: int, before: tuple[StepPlan, ...]) -> None:
    """TCP sends the data of each connection again after another while."""
    again = random.Random(seed)
    ends = [again.uniform(14.0, 15.5) for _ in range(8)]
    start = 2.2 if before else 30.0
    fleet = _StalledFleet(nodes=8, steps=(*before, *_alone(200.0)), stalled=lambda node: (start, ends[node]))
    record = fleet.run()
    outcomes = [event["outcome"] for event in record.of("step_end")]
    assert (record.seen(), outcomes) == ([], ["done"] * (len(before) + 1))


@pytest.mark.parametrize("for_s", [14.5, 60.0])
def test_a_stall_hides_no_other_fault(for_s: float) -> None:
    record = _StalledFleet(
        nodes=4,
        steps=_alone(200.0),
        at_s=[(44.7, lambda fleet: fleet.lose(3))],
        stalled=lambda node: (30.0, for_s if node == 1 else 0.0),
    ).run()
    assert record.seen() == ([("lost", 3)] if for_s < 20.0 else [("lost", 3), ("silent", 1)])


def test_a_node_that_speaks_now_and_then_hides_no_silent_one() -> None:
    """It is silent for a little more than 15 s each time, which has the grace of the other one last a little longer."""
    starts = [30.0 + 15.9 * number for number in range(8)]

    def stalled(node: int) -> tuple[float, float]:
        if node == 2:
            return 33.0, 600.0
        passed = [start for start in starts if node == 1 and start <= fleet.now - EPOCH_S]
        return (passed[-1] if passed else 0.0), 15.8 if passed else 0.0

    fleet = _StalledFleet(nodes=4, steps=_alone(300.0), works_s=200.0, stalled=stalled)
    record = fleet.run()
    assert ("silent", 2) in record.seen()
    assert record.of("trouble")[0]["t"] - EPOCH_S < 33.0 + 15.0 + 8.0


@pytest.mark.parametrize("asleep_s", [40.0, 300.0])
@pytest.mark.parametrize("at", [-1, 0, 1, 2])
@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_controller_that_slept_names_no_node(how: str, at: int, asleep_s: float) -> None:
    """Its agents have ended, or their connections are forgotten: nothing arrives when it wakes."""

    def cut(fleet: SimulatedFleet) -> None:
        for node, agent in fleet._agents.items():
            if at in (-1, node):
                agent.silent, agent.open = True, False
                if how == "closed":
                    lost = partial(fleet.conductor.lost, node, "the control connection was closed")
                    fleet._to_conductor(agent, lambda lost=lost: fleet._carry_out(lost(fleet.now)))  # type: ignore[misc]

    fleet = _StalledFleet(
        nodes=3,
        steps=_alone(400.0),
        works_s=90.0 + asleep_s,
        stalled=lambda node: (0.0, 0.0),
        suspended=(30.0, asleep_s),
        at_s=[(31.0, cut)],
    )
    record = fleet.run()
    assert record.seen("lost", "silent", "dead", "late", "absent") == []
    notes = [note["text"] for note in record.of("note")]
    assert any("sent nothing to the agents for" in note or "received nothing" in note for note in notes), notes
    assert not any(finding.severity == "fail" for finding in conclude(record.events).findings)


def test_a_node_that_is_lost_long_after_the_sleep_is_named() -> None:
    fleet = _StalledFleet(
        nodes=3,
        steps=_alone(400.0),
        works_s=200.0,
        stalled=lambda node: (0.0, 0.0),
        suspended=(30.0, 27.5),
        at_s=[(90.0, lambda fleet: fleet.lose(1))],
    )
    assert fleet.run().seen() == [("lost", 1)]
