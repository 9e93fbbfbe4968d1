"""The trainer on real process groups of 1, 2 and 3 ranks, compared with a plain loop over full batches."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from training.rank_processes import groups_of
from training.training_doubles import RecordingCallbacks

from seatrial.checks.training.alone import time_alone
from seatrial.training import trainer
from seatrial.training.batches import Batches, layout
from seatrial.training.evaluation import Counts
from seatrial.training.models import build_model
from seatrial.training.outcome import NonFinite, Outcome
from seatrial.training.recipe import Recipe
from seatrial.training.sampling import epoch_order
from seatrial.training.trainer import train

CPU = torch.device("cpu")
# 1,437 = 2 x 713 + 11: the third batch is short, and neither 713 nor 11 divides by 2 or 3. Then a new epoch begins.
UNEVEN = Recipe(workload="digits", model="convnet", max_steps=4, global_batch_size=713, lr=0.1, num_samples=1, seed=3)
# Of two samples, a rank of three has none.
EMPTY = Recipe(
    workload="synthetic-2x6x5", model="convnet", max_steps=5, global_batch_size=2, lr=0.1, num_samples=9, seed=4
)
LONG = Recipe(workload="digits", model="convnet", max_steps=60, global_batch_size=64, lr=0.1, num_samples=1, seed=1)
POISONED_STEP = 3

pytestmark = pytest.mark.timeout(150)  # the first test waits for all that the ranks of five files do


@dataclass(frozen=True, slots=True)
class _Trained:
    uneven: Outcome
    empty: Outcome
    long: Outcome
    poisoned: Outcome
    phases: dict[str, list[str]]


def on_3_ranks(rank: int, folder: str) -> dict[int, _Trained]:
    """Train in groups of the first 1, 2 and 3 ranks."""
    return {size: _trainings(group) for size, group in groups_of(1, 2, 3).items()}


def _trainings(group: dist.ProcessGroup) -> _Trained:
    phases: dict[str, list[str]] = {"uneven": [], "empty": [], "long": [], "poisoned": []}
    outcomes: dict[str, Any] = {
        name: train(recipe, recipe.data(), device=CPU, group=group, phase=phases[name].append)
        for name, recipe in (("uneven", UNEVEN), ("empty", EMPTY), ("long", LONG))
    }
    with pytest.MonkeyPatch.context() as patch:
        if group.rank() == group.size() - 1:
            _poison_images_of_one_step(patch)
        outcomes["poisoned"] = train(LONG, LONG.data(), device=CPU, group=group, phase=phases["poisoned"].append)
    return _Trained(**outcomes, phases=phases)


def _poison_images_of_one_step(patch: pytest.MonkeyPatch) -> None:
    """A real infinity in the images of this rank, at one step."""
    whole, calls = Batches.train, iter(range(10**9))

    def poisoned(self: Batches, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = whole(self, indices, epoch)
        return (images * float("inf") if next(calls) == POISONED_STEP else images), labels

    patch.setattr(Batches, "train", poisoned)


@pytest.fixture(params=[1, 2, 3], ids=lambda size: f"{size}-ranks")
def seen(request: pytest.FixtureRequest, three_ranks: dict[str, list[dict[int, _Trained]]]) -> list[_Trained]:
    return [ranks[request.param] for ranks in three_ranks[__name__][: request.param]]


def _oracle(recipe: Recipe) -> tuple[list[torch.Tensor], list[float]]:
    """One process, no DDP, the whole batch at once, SGD with Nesterov momentum written out."""
    workload = recipe.data()
    data = workload.load()
    # In the same layout: it decides in which order a convolution adds up, which 4 steps make 5e-6 of.
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed)
    model = model.to(memory_format=layout(recipe, CPU))  # type: ignore[call-overload]
    parameters = list(model.parameters())
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    losses = []
    num_steps = recipe.num_steps(workload.num_train)
    for step in range(num_steps):
        epoch, batch = divmod(step, -(-workload.num_train // recipe.global_batch_size))
        start = batch * recipe.global_batch_size
        indices = epoch_order(workload.num_train, recipe.seed, epoch)[start : start + recipe.global_batch_size]
        images = (data.train_images[indices].float() - workload.mean) / workload.std
        images = images.contiguous(memory_format=layout(recipe, CPU))
        loss = cross_entropy(model(images), data.train_labels[indices])
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for parameter, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                gradient = gradient + recipe.weight_decay * parameter
                momentum.mul_(recipe.momentum).add_(gradient)
                parameter.sub_(recipe.lr_at(step, num_steps) * (gradient + recipe.momentum * momentum))
    return [parameter.detach() for parameter in parameters], losses


@pytest.mark.parametrize("name", ["uneven", "empty"])
def test_any_number_of_ranks_trains_like_one_full_batch(seen: list[_Trained], name: str) -> None:
    # The wrong way: the mean of the means of uneven shares weighs the samples of a small share more.
    expected, losses = _oracle(UNEVEN if name == "uneven" else EMPTY)
    for rank in seen:
        outcome: Outcome = getattr(rank, name)
        assert outcome.losses == pytest.approx(losses, abs=1e-5)
        for ours, theirs in zip(outcome.model.parameters(), expected, strict=True):
            torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-6)


def test_all_ranks_end_with_the_same_bits_and_pass_the_same_phases(seen: list[_Trained]) -> None:
    for name in ("uneven", "empty", "long", "poisoned"):
        assert len({getattr(rank, name).digest for rank in seen}) == 1
        assert len({tuple(rank.phases[name]) for rank in seen}) == 1
    assert seen[0].phases["empty"][1:4] == ["step 0 forward", "step 0 backward", "step 0 optimizer"]


def test_a_rank_may_have_no_share(seen: list[_Trained]) -> None:
    counts = [rank.empty.local_counts for rank in seen]
    # Nine samples in batches of two: the fifth has one.
    assert [sum(step) for step in zip(*counts, strict=True)] == [2, 2, 2, 2, 1]
    if len(seen) == 3:
        assert all(0 in count for count in counts)


def test_every_test_sample_is_counted_once(seen: list[_Trained]) -> None:
    for rank in seen:
        assert rank.long.counts.num_evaluated == 360
        assert rank.empty.counts.num_evaluated == 1_000
        assert rank.long.counts.num_correct == seen[0].long.counts.num_correct
    for name in ("long", "empty"):
        outcomes: list[Outcome] = [getattr(rank, name) for rank in seen]
        assert sum(one.own_counts.num_correct for one in outcomes) == outcomes[0].counts.num_correct
        assert sum(one.own_counts.num_evaluated for one in outcomes) == outcomes[0].counts.num_evaluated


def test_each_rank_knows_the_loss_of_its_own_samples(seen: list[_Trained]) -> None:
    for name in ("uneven", "empty", "poisoned"):
        outcomes: list[Outcome] = [getattr(rank, name) for rank in seen]
        counts = [sum(step) for step in zip(*(one.local_counts for one in outcomes), strict=True)]
        sums = zip(*(one.own_loss_sums for one in outcomes), strict=True)
        losses = [sum(step) / count for step, count in zip(sums, counts, strict=False)]
        assert outcomes[0].losses == pytest.approx(losses, rel=1e-12)


def test_it_learns(seen: list[_Trained]) -> None:
    outcome = seen[0].long
    assert outcome.counts.num_correct / outcome.counts.num_evaluated > 0.85
    assert outcome.losses[-1] < outcome.losses[0] / 4


def test_the_accuracy_is_that_of_the_model_in_hand(seen: list[_Trained]) -> None:
    outcome, workload = seen[-1].long, LONG.data()
    data = workload.load()
    with torch.inference_mode():
        scores = outcome.model((data.test_images.float() - workload.mean) / workload.std)
    assert int((scores.argmax(dim=1) == data.test_labels).sum()) == outcome.counts.num_correct


def test_every_step_is_timed(seen: list[_Trained]) -> None:
    for rank in seen:
        assert len(rank.long.times) == 60
        for times in rank.long.times:
            assert times.compute_s > 0
            assert times.optimizer_s > 0
            assert times.data_s >= 0
            assert times.wait_s >= 0
        assert rank.long.samples_per_s is not None
        assert rank.uneven.samples_per_s is None  # all of its steps are warm-up


def test_an_infinite_loss_on_one_rank_stops_all_and_names_it(seen: list[_Trained]) -> None:
    for rank in seen:
        assert rank.poisoned.nonfinite == NonFinite(
            step=POISONED_STEP, group_ranks=(len(seen) - 1,), began_ordinary=True
        )
        assert len(rank.poisoned.losses) == POISONED_STEP


def test_the_loop_stays_short_enough_to_be_read() -> None:
    (function,) = ast.parse(inspect.getsource(train)).body
    assert isinstance(function, ast.FunctionDef)
    (loop,) = [part for part in function.body if isinstance(part, ast.For)]
    assert loop.end_lineno is not None
    assert loop.end_lineno - loop.lineno + 1 < 100, "docs/training.md promises fewer than 100 lines"


def test_computing_alone_needs_no_group() -> None:
    timings = time_alone(LONG, LONG.data(), device=CPU, local_count=4, num_steps=3, repeats=2)
    assert [len(each.seconds) for each in timings] == [3, 3]
    assert min(seconds for each in timings for seconds in each.seconds) > 0
    assert all(0 < each.cpu_share <= 1 for each in timings)


@pytest.mark.parametrize("wrong_s", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_rank_that_sends_no_times_is_left_out(
    wrong_s: float, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, wrong = RecordingCallbacks(), RecordingCallbacks()
    train(EMPTY, EMPTY.data(), device=CPU, group=alone, phase=lambda label: None, callbacks=healthy)
    times = replace(healthy.epochs[0].rank_times[0], compute_s=wrong_s)
    monkeypatch.setattr(trainer, "median_times", lambda rows: times)
    train(EMPTY, EMPTY.data(), device=CPU, group=alone, phase=lambda label: None, callbacks=wrong)
    assert [stats.rank_times for stats in wrong.epochs] == [()] * len(healthy.epochs)
    assert all(0 < stats.samples_per_s < 1e9 and stats.seconds > 0 for stats in wrong.epochs)


def test_a_rank_that_is_sent_a_count_of_0_evaluates_once_as_the_others_do(
    alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any rank can change a sum: with it this one called an operation that no other rank did."""
    evaluated = list[Counts]()

    def of_nobody(*_: object) -> tuple[Counts, Counts]:
        evaluated.append(Counts())
        return Counts(), Counts()

    monkeypatch.setattr(trainer, "evaluate", of_nobody)
    train(replace(EMPTY, max_steps=1), EMPTY.data(), device=CPU, group=alone, phase=lambda label: None)
    assert len(evaluated) == 1
