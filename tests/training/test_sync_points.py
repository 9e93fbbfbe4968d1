"""Sync points: when ranks exchange their losses, and what each rank knows then."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from seatrial.training import sync_points
from seatrial.training.models import MODELS, build_model
from seatrial.training.outcome import NonFinite
from seatrial.training.precision import are_ordinary
from seatrial.training.sync_points import MOST_STEPS, SyncPoints, SyncResult

CPU = torch.device("cpu")
ORDINARY = torch.tensor(True)


class _Clock:
    """A double of ``time`` that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(sync_points, "time", clock)
    return clock


def _gaps(alone: dist.ProcessGroup, clock: _Clock, step_s: float, *, each_step: bool = False) -> list[int]:
    """Return the steps between sync points, of 40 steps."""
    own, gaps, since = SyncPoints(alone, CPU, each_step=each_step), [], 0
    for step in range(40):
        clock.now_s += step_s
        if own.add(torch.tensor(1.0), ORDINARY):
            own.sync(step, False)
            gaps.append(step + 1 - since)
            since = step + 1
    return gaps


@pytest.mark.parametrize(("step_s", "gap"), [(2**-10, MOST_STEPS), (2**-4, 4), (0.1875, 1), (10.0, 1)])
def test_slow_steps_sync_one_by_one_and_fast_ones_in_groups(
    alone: dist.ProcessGroup, clock: _Clock, step_s: float, gap: int
) -> None:
    first, *others = _gaps(alone, clock, step_s)
    assert first == 1, "nobody knows yet how long a step takes"
    assert set(others) == {gap}


def test_where_each_step_counts_all_are_sync(alone: dist.ProcessGroup, clock: _Clock) -> None:
    assert _gaps(alone, clock, 0.001, each_step=True) == [1] * 40


def _sync(alone: dist.ProcessGroup, losses: list[float], stop: bool = False) -> SyncResult:
    own = SyncPoints(alone, CPU, each_step=False)
    for loss in losses:
        own.add(torch.tensor(loss), ORDINARY)
    return own.sync(41, stop)


def test_losses_end_at_the_first_that_is_not_finite(alone: dist.ProcessGroup) -> None:
    result = _sync(alone, [0.5, 1.5, math.inf, math.nan, 2.0])
    assert result == SyncResult(
        loss_sums=(0.5, 1.5),
        own_loss_sums=(0.5, 1.5),
        nonfinite=NonFinite(step=39, group_ranks=(0,), began_ordinary=True),
        stop=False,
    )


def test_a_rank_says_of_its_parameters_how_they_were_before_that_step(alone: dist.ProcessGroup) -> None:
    own = SyncPoints(alone, CPU, each_step=False)
    for loss, were_ordinary in ((0.5, True), (math.nan, False), (math.nan, True)):
        own.add(torch.tensor(loss), torch.tensor(were_ordinary))
    nonfinite = own.sync(41, False).nonfinite
    assert nonfinite == NonFinite(step=40, group_ranks=(0,), began_ordinary=False)


@pytest.mark.parametrize(
    ("values", "are"),
    [([0.1, -90.0], True), ([], True), ([2e3], False), ([-math.inf], False), ([0.1, math.nan], False), ([1e38], False)],
)
def test_parameters_near_an_overflow_are_not_ordinary(values: list[float], are: bool) -> None:
    """A training that diverges overflows on one rank first, and that rank is at no fault."""
    parameters = [torch.nn.Parameter(torch.tensor(values)), torch.nn.Parameter(torch.ones(2, 2))]
    assert bool(are_ordinary(parameters)) == are


@pytest.mark.parametrize("signs", ["all alike", "any"])
@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_ordinary_size_overflow_in_no_model(name: str, signs: str) -> None:
    """Of two samples or more, in float32: else a rank would be named for parameters that others dictate."""
    model = build_model(name, (3, 8, 8), 10, seed=1)
    for parameter in model.parameters():
        parameter.data = 1000.0 * (torch.ones_like(parameter) if signs == "all alike" else parameter.detach().sign())
    assert are_ordinary(model.parameters())
    for images in (torch.full((2, 3, 8, 8), 3.0), 3 * torch.rand(2, 3, 8, 8)):
        loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([0, 1]), reduction="sum")
        assert math.isfinite(loss.item())


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1e300])
def test_a_time_that_arrives_damaged_is_none(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Every rank can change the sum; the others must not fail by it."""
    monkeypatch.setattr(sync_points, "_wait_for_others", lambda work, table: [[0.5], [0.0], [seconds]])
    assert _sync(alone, [0.5]) == SyncResult(loss_sums=(0.5,), own_loss_sums=(0.5,), nonfinite=None, stop=False)


def test_finite_losses_without_a_finite_sum_name_no_rank(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[1e308, 1e308], [0.0, 0.0], [0.1, 0.1]]
    monkeypatch.setattr(sync_points, "_wait_for_others", lambda work, table: rows)
    assert _sync(alone, [0.5]).nonfinite == NonFinite(step=41, group_ranks=(), began_ordinary=True)


def test_a_rank_knows_its_loss_whatever_arrives(alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile one in the ring can put a number in the place of this rank's NaN."""
    monkeypatch.setattr(sync_points, "_wait_for_others", lambda work, table: [[0.5], [0.4], [0.0], [0.1]])
    result = _sync(alone, [0.5, math.nan])
    assert result.own_loss_sums == (0.5,)
    assert result.nonfinite == NonFinite(step=41, group_ranks=(0,), began_ordinary=True)


def test_a_request_to_stop_is_shared(alone: dist.ProcessGroup) -> None:
    assert _sync(alone, [0.5], stop=True) == SyncResult(
        loss_sums=(0.5,), own_loss_sums=(0.5,), nonfinite=None, stop=True
    )


def on_3_ranks(rank: int, folder: str) -> Any:
    group = dist.group.WORLD
    assert group is not None
    results = []
    for losses, stop in (([0.1, 0.2], rank == 2), ([0.3, math.nan if rank == 1 else 0.4], False)):
        own = SyncPoints(group, CPU, each_step=False)
        for loss in losses:
            own.add(torch.tensor(loss * (rank + 1), dtype=torch.float64), ORDINARY)
        results.append(own.sync(9, stop))
    return results


@pytest.mark.timeout(150)  # it waits for all that the ranks of five files do
def test_all_ranks_know_the_same(three_ranks: dict[str, list[list[SyncResult]]]) -> None:
    ranks = three_ranks[__name__]
    own = [[result.own_loss_sums for result in results] for results in ranks]
    assert own == [[pytest.approx((0.1 * number, 0.2 * number)), (0.3 * number,)] for number in (1, 2, 3)]
    alike = [[replace(result, own_loss_sums=()) for result in results] for results in ranks]
    assert alike[0] == alike[1] == alike[2]
    stopped, spoilt = alike[0]
    assert stopped.stop
    assert stopped.loss_sums == pytest.approx((0.6, 1.2))
    assert spoilt == SyncResult(
        loss_sums=(math.fsum([0.3, 0.6, 0.3 * 3]),),
        own_loss_sums=(),
        nonfinite=NonFinite(step=9, group_ranks=(1,), began_ordinary=True),
        stop=False,
    )


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf, 1e308, -1e39, -0.01])
def test_a_rank_with_a_finite_loss_is_not_named_by_the_sum_of_others(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, damage: float
) -> None:
    """Every rank, and every link, can change the number of this one on its way."""
    monkeypatch.setattr(sync_points, "_wait_for_others", lambda work, table: [[0.5], [damage], [0.0], [0.001]])
    assert _sync(alone, [0.5, 0.25]) == SyncResult(
        loss_sums=(0.5,),
        own_loss_sums=(0.5,),
        nonfinite=NonFinite(step=41, group_ranks=(), began_ordinary=True),
        stop=False,
    )
    assert _sync(alone, [0.5, math.nan]).nonfinite == NonFinite(step=41, group_ranks=(0,), began_ordinary=True)
