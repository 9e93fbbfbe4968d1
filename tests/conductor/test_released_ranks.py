"""A rank that waits for a message, and goes on the moment its stack is asked for, is not where its last status was."""

from __future__ import annotations

import pytest
from conductor.simulated_agents import SimulatedFleet
from conductor.simulated_records import BEHIND, INSIDE, Planted, SimulatedRank
from conductor.simulated_records import STEPS as _STEPS

from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.steps import StepPlan
from seatrial.judge.conclude import conclude
from seatrial.protocol.timeouts import PATIENCE_S

_STEPS_TO_TRAINING = (*_STEPS[1:3], StepPlan(check="training", scope="world", timeout_s=300.0))
_WAITS_S = 20.0
_COMPUTES_S = 1.0
_UNTIL_S = 60.0


class _Stall:
    """Rank 1 waits for a message of the last rank for 20 s, goes on, and so forth; all others wait for both."""

    def __init__(self, nodes: int, *, lies: bool) -> None:
        """``lies``: the last rank seems to move meanwhile, and says at once when it has sent the message."""
        self.nodes, self.lies = nodes, lies
        self.number, self.began_at, self.releases = 50, 0.0, 0

    def __call__(self, fleet: SimulatedFleet) -> None:
        fleet.later(0.05, lambda: self(fleet))
        agents = [fleet._agents.get(rank) for rank in range(self.nodes)]
        ranks = [agent.ranks[rank] for rank, agent in enumerate(agents) if agent is not None and rank in agent.ranks]
        if fleet.conductor.state.name == "STEP" and fleet.conductor._number == 2 and len(ranks) == self.nodes:
            self._go_on(fleet, ranks)

    def _go_on(self, fleet: SimulatedFleet, ranks: list[SimulatedRank]) -> None:
        waits, last = ranks[1], ranks[-1]
        if not self.began_at:
            self.began_at = fleet.now
            for rank in ranks:
                rank.phase, rank.state, rank.computes, rank.stack = "training/step 7", "S", False, INSIDE
                rank.number = self.number + (rank is not waits and rank is not last)
        waited_s = fleet.now - self.began_at
        if waited_s < _WAITS_S:
            last.number = self.number - self.lies * (1 + int(waited_s / 5) % 2)
        elif waited_s >= _WAITS_S + _COMPUTES_S:
            self.number, self.began_at = self.number + 10, 0.0
        elif waits.number == self.number:
            self.releases += 1
            waits.number, last.number = self.number + 1, self.number + 1
            waits.stack, waits.computes, waits.state, waits.phase = BEHIND, True, "R", "training/step 8"
            if self.lies:
                status = {str(last.rank): ["S", last.cpu_s, last.number, last.phase, 0.0]}
                fleet._send(fleet._agents[last.rank], {"kind": "status", "ranks": status})


@pytest.mark.parametrize("nodes", [3, 8])
@pytest.mark.parametrize("lies", [True, False])
def test_a_rank_that_was_kept_waiting_and_goes_on_is_not_named(nodes: int, lies: bool) -> None:
    for seed in range(4):
        stall = _Stall(nodes, lies=lies)
        planted = (Planted(kind="hang", rank=nodes - 1, at=2),)
        fleet = SimulatedFleet(
            nodes=nodes, steps=_STEPS_TO_TRAINING, planted=planted, seed=seed, deadline_s=250.0, at_s=[(0.1, stall)]
        )
        record = fleet.run()
        assert stall.releases > 4, seed
        assert not {place for _, place in record.seen("absent", "late", "frozen")} - {nodes - 1}, seed
        failed = [finding.culprit.name for finding in conclude(record.events).findings if finding.severity == "fail"]
        assert not [name for name in failed if name.startswith("rank 1 ")], seed


def _three_hosts(until: float) -> HangDetector:
    """Rank 1 waits quietly for rank 2, which has sent its message just now, and for rank 0, which is further."""
    detector = HangDetector({0: "a", 1: "b", 2: "c"}, until, 0.0)
    detector.begin(range(3), until, 0.0, together=True)
    for second in range(int(PATIENCE_S) + 1):
        _say(detector, second, {0: (1.0, 5), 1: (1.0, 4), 2: (1.0, 4 + (second == PATIENCE_S))})
    return detector


def _say(detector: HangDetector, now: float, told: dict[int, tuple[float, int]]) -> None:
    """The agents send CPU time and phases entered."""
    for rank, (cpu_s, number) in told.items():
        detector.statuses[rank].update(("S", cpu_s, number, "training/step 7"), now)


def _show(detector: HangDetector, now: float, stacks: dict[int, str]) -> None:
    """The agents answer the request of that moment."""
    assert detector.poll(now) is None
    assert set(detector.stacks_to_request(now)) == set(stacks)
    for rank, stack in stacks.items():
        detector.answer(rank, detector.request_number, stack)
    assert detector.poll(now) is None


_STANDS = (1.0, 4)


@pytest.mark.parametrize("moved", [(1.0, 5), (1.9, 4)], ids=["phase", "CPU time"])
@pytest.mark.parametrize("first", [None, _STANDS], ids=["at once", "a second later"])
def test_a_stack_counts_only_if_later_statuses_show_no_progress(
    moved: tuple[float, int], first: tuple[float, int] | None
) -> None:
    """A status that is read right after the stack has nothing of what the rank does next."""
    detector = _three_hosts(100.0)
    _show(detector, PATIENCE_S + 0.1, {0: INSIDE, 1: BEHIND, 2: INSIDE})
    for number, of_rank_1 in enumerate([first, moved] if first else [moved]):
        now = PATIENCE_S + 0.2 + number
        _say(detector, now, {0: (1.0, 5), 1: of_rank_1 or _STANDS, 2: (1.0, 5)})
        assert detector.poll(now) is None
    assert detector.stacks == {}


def test_a_rank_that_stands_outside_is_named_by_its_second_status() -> None:
    detector = _three_hosts(100.0)
    _show(detector, PATIENCE_S + 0.1, {0: INSIDE, 1: BEHIND, 2: INSIDE})
    for now, outcome in ((PATIENCE_S + 0.5, None), (PATIENCE_S + 1.5, "trouble")):
        _say(detector, now, {0: (1.0, 5), 1: _STANDS, 2: (1.0, 5)})
        assert detector.poll(now) == outcome
    assert detector.guilty() == {1}


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    ("later", "guilty"),
    [((1.0, 4), {1}), ((1.0, 5), set[int]()), ((1.9, 4), set[int]())],
    ids=["stands", "phase", "CPU time"],
)
def test_at_a_deadline_a_rank_that_goes_on_is_not_late(later: tuple[float, int], guilty: set[int], done: bool) -> None:
    detector = _three_hosts(PATIENCE_S + 1.0)
    now = PATIENCE_S + 1.0
    if done:
        for rank in (0, 2):
            detector.finished(rank, now)
    _say(detector, now, {0: (1.0, 5), 1: _STANDS, 2: (1.0, 5)})
    _show(detector, now + 0.1, {rank: BEHIND if rank == 1 else INSIDE for rank in detector.waiting()})
    for number in (1, 2):
        outcome = detector.poll(now + number)
        _say(detector, now + number, {0: (1.0, 5), 1: later, 2: (1.0, 5)})
        assert outcome is None
    assert detector.poll(now + 2.0) == "deadline"
    assert detector.guilty() == guilty


@pytest.mark.parametrize("says", ["nothing", "its stack again", "no stack and one"])
def test_an_agent_that_answers_again_or_sends_no_status_holds_up_no_end(says: str) -> None:
    detector = _three_hosts(_UNTIL_S)
    now = _UNTIL_S
    for second in range(int(PATIENCE_S) + 1, int(_UNTIL_S) + 1):
        _say(detector, second, {0: (second, 5), 1: (second, 5), 2: (1.0, 5)})
    _show(detector, now, dict.fromkeys(range(3), INSIDE))
    while detector.poll(now) is None:
        now += 1.0
        _say(detector, now, {0: (now, 5), 1: (now, 5), **({2: (1.0, 5)} if says != "nothing" else {})})
        for stack in ("", INSIDE) if says == "no stack and one" else (INSIDE,):
            if says != "nothing":
                detector.answer(2, detector.request_number, stack)
        assert now < _UNTIL_S + 5.0
    assert detector.guilty() == set()
