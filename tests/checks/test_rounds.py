"""How many rounds a check does, when it reports, and how ranks agree on both."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed
from checks.fake_context import FakeContext

from seatrial.checks.shared import rounds
from seatrial.checks.shared.rounds import timed_rounds


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
    assert decided == (5, [3, 5])
    # The clock of the second rank alone would end after one round.
    assert run(Clock(monkeypatch), second, 3600.0, minutes=2.0, together=True) == decided
    assert first.phases == second.phases == ["agree on another round"] * 5
