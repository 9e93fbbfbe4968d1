"""How many rounds a check does, when it reports, and how ranks agree on both."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed
from checks.fake_context import FakeContext

from seatrial.checks import collectives, training
from seatrial.checks.check import Check
from seatrial.checks.shared import rounds
from seatrial.checks.shared.asked_rounds import judge_rounds
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact

RANKS = {
    rank: RankRecord(rank=rank, node=f"node{rank}", node_rank=rank, local_rank=0, device="cpu", kind="cpu")
    for rank in range(2)
}


class Clock:
    """A clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def run(clock: Clock, context: Any, round_s: float, **options: Any) -> tuple[int, list[int]]:
    """Return the number of rounds, and the numbers of finished rounds at each report."""
    finished, reports = list[int](), list[int]()
    for number in timed_rounds(context, report=lambda: reports.append(len(finished)), **options):
        clock.now_s += round_s
        finished.append(number)
    assert finished == list(range(len(finished)))
    return len(finished), reports


def rounds_of(context: FakeContext) -> Any:
    """What the rank tells of its rounds."""
    (fact,) = context.facts
    assert fact.name == "rounds"
    return fact.value


def test_without_minutes_there_are_exactly_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext(check="compute")
    assert run(Clock(monkeypatch), context, 1.0, minutes=0.0, rounds=3) == (3, [3])
    assert run(Clock(monkeypatch), context, 500.0, minutes=0.0, rounds=1) == (1, [1])


def test_rounds_go_on_for_the_minutes_and_report_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext(check="compute", timeout_s=600.0)
    assert run(Clock(monkeypatch), context, 25.0, minutes=2.0) == (5, [3, 5])
    monkeypatch.setattr(rounds, "REPORT_EVERY_S", 0.0)
    assert run(Clock(monkeypatch), context, 25.0, minutes=1.0) == (3, [1, 2, 3])


def test_no_round_begins_that_might_pass_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext(check="compute", timeout_s=100.0)
    assert run(Clock(monkeypatch), context, 20.0, minutes=1.5) == (2, [2])


def test_rank_0_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    both: dict[str, Any] = {"check": "training", "world_size": 2, "ranks": (0, 1), "store": store, "timeout_s": 600.0}
    first, second = FakeContext(**both, group_rank=0), FakeContext(**both, group_rank=1)
    decided = run(Clock(monkeypatch), first, 25.0, minutes=2.0, together=True)
    # From the end of the first round on: by then all ranks were there.
    assert decided == (6, [3, 6])
    # The clock of the second rank alone would end after one round.
    assert run(Clock(monkeypatch), second, 3600.0, minutes=2.0, together=True) == decided
    assert first.phases == second.phases == ["agree on another round"] * 6
    assert rounds_of(first) == {"number": 6, "seconds": 150.0, "fits": True}
    assert rounds_of(second) == {"number": 6, "seconds": 6 * 3600.0, "fits": False}


def test_a_rank_tells_how_few_rounds_others_let_it_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can connect to the store can end the rounds."""
    store = torch.distributed.HashStore()
    both: dict[str, Any] = {"check": "training", "world_size": 2, "ranks": (0, 1), "store": store, "timeout_s": 600.0}
    context = FakeContext(**both, group_rank=1)
    store.add("step -1/round 1", 0)
    assert run(Clock(monkeypatch), context, 25.0, minutes=2.0, together=True) == (1, [1])
    assert rounds_of(context) == {"number": 1, "seconds": 25.0, "fits": True}


@pytest.mark.parametrize(
    ("number", "seconds", "absent"),
    [
        (5, 120.0, ""),
        (4, 900.0, "at least 5 rounds of rank 1, which did 4 in 900 s"),
        (5, 119.0, "120 s of rounds of rank 1, which did 5 in 119 s"),
        (5, float("nan"), "120 s of rounds of rank 1, which did 5 in nan s"),
        (None, 0.0, "the number of rounds of rank 1"),
    ],
)
def test_fewer_rounds_than_asked_for_are_absent(number: int | None, seconds: float, absent: str) -> None:
    limit_s = 0.0 if number == 4 else 120.0
    values_by_rank = {
        0: {"number": 9, "seconds": 1e4, "fits": True},
        1: {"number": number, "seconds": seconds, "fits": True},
    }
    facts = [Fact(check="training", name="rounds", value=value, rank=rank) for rank, value in values_by_rank.items()]
    if number is None:
        facts.pop()
    evidence = Evidence(ranks=RANKS, asked=(0, 1), measurements=(), facts=tuple(facts))
    assert judge_rounds(evidence, rounds=5, seconds=limit_s) == Ruling(absent=(absent,) if absent else ())
    assert judge_rounds(evidence, rounds=1, seconds=0.0) == Ruling()


def test_rounds_without_time_make_a_pass_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    both: dict[str, Any] = {"check": "training", "world_size": 2, "ranks": (0, 1), "store": store, "timeout_s": 60.0}
    contexts = [FakeContext(**both, group_rank=rank, rank=rank) for rank in range(2)]
    for context in contexts:
        assert run(Clock(monkeypatch), context, 8.0, minutes=50 / 60, together=True)[0] == 5
    facts = tuple(context.facts[0] for context in contexts)
    ruling = judge_rounds(Evidence(ranks=RANKS, asked=(0, 1), measurements=(), facts=facts), rounds=1, seconds=50.0)
    assert ruling.absent == ()
    assert ruling.unjudged == (
        "training: 50 s of rounds of rank 0, which did 5 in 40 s, as timeout_s has no time for another one",
    )


def _held_up(clock: Clock, held_s: list[float], *, timeout_s: float, minutes: float) -> tuple[Any, Ruling]:
    """Return what a rank tells of rounds of 20 s of which others held up the first ones, and what is judged."""
    both: dict[str, Any] = {"check": "training", "ranks": (0,), "store": torch.distributed.HashStore()}
    context = FakeContext(**both, group_rank=0, timeout_s=timeout_s)
    for number in timed_rounds(context, minutes, report=lambda: None, together=True):
        clock.now_s += 20.0 + (held_s[number] if number < len(held_s) else 0.0)
    fact = Fact(check="training", name="rounds", value=rounds_of(context), rank=0)
    evidence = Evidence(ranks=RANKS, asked=(0,), measurements=(), facts=(fact,))
    return fact.value, judge_rounds(evidence, rounds=1, seconds=minutes * 60)


def test_a_round_that_one_rank_holds_up_cuts_no_burn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for held_s in ([0.0, 2800.0], [0.0, 0.0, 2800.0], [60.0, 0.0, 2800.0]):
        value, ruling = _held_up(clock, held_s, timeout_s=8400.0, minutes=120.0)
        assert value["seconds"] >= 7200
        assert ruling == Ruling()


@pytest.mark.parametrize("held_s", [[2800.0], [0.0, 2800.0, 2800.0], [30.0, 2000.0, 2000.0, 2000.0]])
def test_rounds_that_are_held_up_until_none_fits_are_absent(
    held_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    value, ruling = _held_up(Clock(monkeypatch), held_s, timeout_s=8400.0, minutes=120.0)
    assert value["seconds"] < 7200
    assert ruling.absent
    assert not ruling.unjudged


@pytest.mark.parametrize("held_s", [[1980.0] * 9, [1400.0, 900.0, 1600.0, *[2000.0] * 9]])
def test_rounds_of_a_slow_cluster_make_a_pass_partial(held_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    value, ruling = _held_up(Clock(monkeypatch), held_s, timeout_s=8400.0, minutes=120.0)
    assert value["seconds"] < 7200
    assert ruling.unjudged
    assert not ruling.absent


@pytest.mark.parametrize(
    ("check", "params"),
    [
        (collectives.CHECK, collectives.params.Params(rounds=2)),
        (collectives.CHECK, collectives.params.Params(minutes=1.0)),
        (training.CHECK, training.params.Params(duration_s=30.0)),
    ],
)
def test_checks_hold_the_plan_against_them(check: Check, params: Any) -> None:
    evidence = Evidence(ranks=RANKS, asked=(0, 1), measurements=(), facts=())
    assert "the number of rounds of rank 1" in check.judge(evidence, params).absent
