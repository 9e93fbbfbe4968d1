"""When ranks tell one another how their steps went, and what each knows then."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from seatrial.training import meetings
from seatrial.training.meetings import MOST_STEPS, Meetings, Told
from seatrial.training.outcome import NonFinite

CPU = torch.device("cpu")


class _Clock:
    """In place of ``time``: moves only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(meetings, "time", clock)
    return clock


def _gaps(alone: dist.ProcessGroup, clock: _Clock, step_s: float, *, each_step: bool = False) -> list[int]:
    """Steps between meetings, of 40 steps."""
    own, gaps, since = Meetings(alone, CPU, each_step=each_step), [], 0
    for step in range(40):
        clock.now_s += step_s
        if own.add(torch.tensor(1.0)):
            own.meet(step, False)
            gaps.append(step + 1 - since)
            since = step + 1
    return gaps


@pytest.mark.parametrize(("step_s", "gap"), [(2**-10, MOST_STEPS), (2**-4, 4), (0.1875, 1), (10.0, 1)])
def test_slow_steps_are_told_one_by_one_and_quick_ones_many_at_once(
    alone: dist.ProcessGroup, clock: _Clock, step_s: float, gap: int
) -> None:
    first, *others = _gaps(alone, clock, step_s)
    assert first == 1, "nobody knows yet how long a step takes"
    assert set(others) == {gap}


def test_where_each_step_counts_all_are_told(alone: dist.ProcessGroup, clock: _Clock) -> None:
    assert _gaps(alone, clock, 0.001, each_step=True) == [1] * 40


def _told(alone: dist.ProcessGroup, losses: list[float], stop: bool = False) -> Told:
    own = Meetings(alone, CPU, each_step=False)
    for loss in losses:
        own.add(torch.tensor(loss))
    return own.meet(41, stop)


def test_the_first_loss_that_is_not_finite_is_told_and_nothing_after_it(alone: dist.ProcessGroup) -> None:
    told = _told(alone, [0.5, 1.5, math.inf, math.nan, 2.0])
    assert told == Told(loss_sums=(0.5, 1.5), nonfinite=NonFinite(step=39, group_ranks=(0,)), stop=False)


def test_who_was_asked_to_stop_says_so(alone: dist.ProcessGroup) -> None:
    assert _told(alone, [0.5], stop=True) == Told(loss_sums=(0.5,), nonfinite=None, stop=True)


def on_3_ranks(rank: int, folder: str) -> Any:
    group = dist.group.WORLD
    assert group is not None
    told = []
    for losses, stop in (([0.1, 0.2], rank == 2), ([0.3, math.nan if rank == 1 else 0.4], False)):
        own = Meetings(group, CPU, each_step=False)
        for loss in losses:
            own.add(torch.tensor(loss * (rank + 1), dtype=torch.float64))
        told.append(own.meet(9, stop))
    return told


@pytest.mark.timeout(150)  # it waits for all that the ranks of five files do
def test_all_ranks_know_the_same(three_ranks: dict[str, list[list[Told]]]) -> None:
    ranks = three_ranks[__name__]
    assert ranks[0] == ranks[1] == ranks[2]
    stopped, spoilt = ranks[0]
    assert stopped.stop
    assert stopped.loss_sums == pytest.approx((0.6, 1.2))
    assert spoilt == Told(
        loss_sums=(math.fsum([0.3, 0.6, 0.3 * 3]),), nonfinite=NonFinite(step=9, group_ranks=(1,)), stop=False
    )
