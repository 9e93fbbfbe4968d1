"""The offset of a node's clock, out of questions and answers."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from seatrial.agent.clock_offset import ClockOffset


class _Clocks:
    """Stand-ins for both clocks of a node; the wall clock is ahead of the conductor's by a stated time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "time", lambda: self.now_s + ahead_s)

    def exchange(self, offset: ClockOffset, there_s: float, back_s: float) -> bool:
        question = offset.question()
        assert question is not None
        self.now_s += there_s
        at = self.now_s
        self.now_s += back_s
        return offset.answer({"kind": "time", "number": question["number"], "at": at})


@pytest.mark.parametrize("ahead_s", [0.0, 12.5, -3600.0])
def test_equal_ways_give_the_exact_offset(monkeypatch: pytest.MonkeyPatch, ahead_s: float) -> None:
    clocks, offset = _Clocks(monkeypatch, ahead_s), ClockOffset()
    assert clocks.exchange(offset, 0.002, 0.002)
    assert offset.best == pytest.approx([ahead_s * 1e3, 2.0])


@pytest.mark.parametrize(("there_s", "back_s"), [(0.010, 0.0), (0.0, 0.010), (0.007, 0.003)])
def test_unequal_ways_err_by_half_of_the_round_trip_at_most(
    monkeypatch: pytest.MonkeyPatch, there_s: float, back_s: float
) -> None:
    clocks, offset = _Clocks(monkeypatch, 1.0), ClockOffset()
    clocks.exchange(offset, there_s, back_s)
    assert offset.best is not None
    assert offset.best[1] == pytest.approx(5.0)
    assert abs(offset.best[0] - 1000.0) <= offset.best[1] + 1e-6


def test_the_shortest_round_trip_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, offset = _Clocks(monkeypatch, 1.0), ClockOffset()
    for there_s in (0.5, 0.002, 0.1):
        clocks.exchange(offset, there_s, 0.002)
    assert offset.best == pytest.approx([1000.0, 2.0])


def test_it_asks_eight_times_and_no_more() -> None:
    offset = ClockOffset()
    assert [offset.question() is not None for _ in range(10)] == [True] * 8 + [False] * 2


@pytest.mark.parametrize(
    "answer", [{}, {"number": 1}, {"number": 2, "at": 1.0}, {"number": 1, "at": "now"}, {"number": 1, "at": None}]
)
def test_an_answer_to_no_question_is_ignored(answer: dict[str, object]) -> None:
    offset = ClockOffset()
    assert offset.best is None
    offset.question()
    assert not offset.answer(cast(Any, {"kind": "time", **answer}))
    assert offset.best is None
