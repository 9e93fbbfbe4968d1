"""What distributed training is often got wrong in: each test says what the wrong way gives.

Others of the kind: gradients of uneven shares and non-finite losses in test_trainer.py, orders of epochs in
test_sampling.py, checkpoints by rank 0 only in test_resume.py, threads in worker/test_train_rank.py.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler
from training.rank_processes import groups_of, run_ranks
from training.training_doubles import RecordingCallbacks, UntouchableStore, build_normed_dropout_net

from seatrial.training import trainer
from seatrial.training.batches import Batches
from seatrial.training.buffers import averaged, gather_buffers
from seatrial.training.precision import LossScale
from seatrial.training.recipe import Recipe
from seatrial.training.resume import Checkpointing
from seatrial.worker.train_rank import RankIdentity, run_rank
from seatrial.worker.train_spec import TrainSpec

CPU = torch.device("cpu")
UNTRAINED = Recipe(workload="digits", model="convnet", max_steps=0, global_batch_size=64, lr=0.1, seed=2)
NORMED = Recipe(workload="digits", model="convnet", epochs=1, global_batch_size=250, lr=0.02, augment="crop-flip")
POISONED = Recipe(workload="digits", model="toy", max_steps=3, global_batch_size=64, lr=0.1)


pytestmark = pytest.mark.timeout(150)  # the first test waits for all that the ranks of five files do


def on_3_ranks(rank: int, folder: str) -> dict[str, Any]:
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(rank))
    return {**_rank(rank, (1, 2, 3)), **_drift(rank, folder), "forks": forks}


@pytest.fixture
def ranks(three_ranks: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return three_ranks[__name__]


def _rank(rank: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    groups = groups_of(*sizes)
    world = groups[max(sizes)]
    results: dict[str, Any] = {"untrained": {}, "tested": []}
    test = Batches.test

    def recording(self: Batches, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        results["tested"] += indices.tolist()
        return test(self, indices)

    for size, group in groups.items():
        with pytest.MonkeyPatch.context() as patch:
            if group is world:
                patch.setattr(Batches, "test", recording)
            outcome = trainer.train(UNTRAINED, UNTRAINED.data(), device=CPU, group=group, phase=lambda label: None)
        results["untrained"][size] = (outcome.counts.num_correct, outcome.counts.num_evaluated)
    if len(sizes) > 3:
        return results
    results |= _statistics(world) | _poisoned_parameters(world) | _overflow(world)
    callbacks = RecordingCallbacks()
    trainer.train(
        replace(UNTRAINED, max_steps=None, epochs=3),
        UNTRAINED.data(),
        device=CPU,
        group=world,
        phase=lambda label: None,
        callbacks=callbacks,
        target_accuracy=0.1,
    )
    results["callbacks"] = callbacks
    return results


def _statistics(world: dist.ProcessGroup) -> dict[str, Any]:
    """BatchNorm, of 3 ranks: the running statistics while training, in evaluation, and at the end."""
    nets: list[nn.Module] = []
    seen: dict[str, torch.Tensor] = {}

    class Peeking(RecordingCallbacks):
        def on_step(self, step: int) -> None:
            super().on_step(step)
            seen["live"] = gather_buffers(nets[0], world)

    def build_and_keep(*arguments: Any) -> nn.Module:
        nets.append(build_normed_dropout_net(*arguments))
        return nets[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "build_model", build_and_keep)
        workload = NORMED.data()
        outcome = trainer.train(
            NORMED, workload, device=CPU, group=world, phase=lambda label: None, callbacks=Peeking()
        )
    data = workload.load()
    with torch.inference_mode():
        scores = nets[0].eval()((data.test_images.float() - workload.mean) / workload.std)
    counts = (outcome.counts.num_correct, int((scores.argmax(dim=1) == data.test_labels).sum()))
    with torch.no_grad():
        mean = nets[0].get_buffer("norm.running_mean").fill_(float(world.rank()))
        with averaged(nets[0], world):
            within = float(mean[0])
    after = float(mean[0])
    return {"live": seen["live"], "digest": outcome.digest, "counts": counts, "within": within, "after": after}


def _poisoned_parameters(world: dist.ProcessGroup) -> dict[str, Any]:
    """A gradient that overflows under a finite loss: the parameters are spoilt, and no loss has shown it yet."""

    class SpoilingOptimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if world.rank() == 1:
                self.param_groups[0]["params"][0].data.view(-1)[0] = math.nan

    store: Any = _EmptyStore() if world.rank() == 0 else UntouchableStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "make_optimizer", lambda recipe, parameters, device: SpoilingOptimizer(parameters))
        outcome = trainer.train(
            replace(POISONED, max_steps=1),
            POISONED.data(),
            device=CPU,
            group=world,
            phase=lambda label: None,
            checkpoints=Checkpointing(store=store),
        )
    return {"spoilt": outcome.nonfinite}


class _EmptyStore(UntouchableStore):
    def newest(self, most_bytes: int = 0) -> None:
        return None


def _overflow(world: dist.ProcessGroup) -> dict[str, Any]:
    """fp16: one rank alone holds a gradient that overflowed, as it may be where gradients are sharded."""
    scale = LossScale(replace(POISONED, amp="fp16"))
    parameter = nn.Parameter(torch.ones(2))
    before = scale.factor
    parameter.grad = torch.full((2,), math.inf if world.rank() == 2 else 1.0)
    skipped = not scale.unscale([parameter], world)
    halved = scale.factor / before
    parameter.grad = torch.full((2,), scale.factor)
    applied = scale.unscale([parameter], world)
    steps = (skipped, halved, applied, parameter.grad.tolist())

    exhausted = []
    for _ in range(32):
        exhausted.append(scale.is_exhausted)
        parameter.grad = torch.full((2,), math.nan if world.rank() == 0 else 1.0)
        scale.unscale([parameter], world)
    return {"overflow": steps, "exhausted": (any(exhausted[:20]), scale.is_exhausted)}


def _drift(rank: int, folder: str) -> dict[str, Any]:
    """The whole of a rank of ``seatrial train``: one parameter of rank 1 goes astray within a step, as memory does."""
    dist.destroy_process_group()  # it forms one of its own

    class DriftingOptimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            if rank == 1:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].view(-1)[0] += 1e-3

    spec = TrainSpec(recipe=POISONED, device="cpu", init=f"file://{folder}.meet", timeout_s=60.0)
    place = RankIdentity(rank=rank, world_size=3, local_rank=rank, local_world_size=3)
    output = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(trainer, "make_optimizer", lambda recipe, parameters, device: DriftingOptimizer(parameters, 0.1))
        code = run_rank(spec, place)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return {"drift": (code, output.getvalue())}


def _hold_counts(ranks: list[dict[str, Any]]) -> None:
    counts = {count for rank in ranks for count in rank["untrained"].values()}
    assert len(counts) == 1
    ((num_correct, num_evaluated),) = counts
    assert num_evaluated == 360
    assert isinstance(num_correct, int)
    assert isinstance(num_evaluated, int)


def test_the_accuracy_does_not_depend_on_the_number_of_ranks(ranks: list[dict[str, Any]]) -> None:
    _hold_counts(ranks)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nor_on_7_ranks_which_do_not_divide_the_test_part() -> None:
    ranks = run_ranks(7, _rank, (1, 2, 3, 7))
    _hold_counts(ranks)
    # The wrong way: torch's sampler fills up until all have the same number, and counts 4 samples twice.
    digits: Any = range(360)
    samplers: list[Any] = [DistributedSampler(digits, num_replicas=7, rank=rank, shuffle=False) for rank in range(7)]
    assert sum(map(len, samplers)) == 364
    assert sorted(index for rank in ranks for index in rank["tested"]) == list(range(360))


def test_all_ranks_evaluate_each_a_part_of_its_own(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: rank 0 evaluates alone, while the others wait in the next collective until it times out.
    parts = [rank["tested"] for rank in ranks]
    assert [len(part) for part in parts] == [120, 120, 120]
    assert sorted(index for part in parts for index in part) == list(range(360))


def test_running_statistics_differ_until_the_end_of_training(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: with these rows each rank would evaluate a model of its own.
    live = ranks[0]["live"]
    assert not torch.equal(live[0], live[1])
    assert len({rank["digest"] for rank in ranks}) == 1


def test_the_counts_belong_to_the_final_model_of_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["counts"][0] == rank["counts"][1]


def test_evaluating_uses_the_average_and_gives_each_rank_its_own_back(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        assert rank["within"] == 1.0  # of 0, 1 and 2
        assert rank["after"] == number


def test_nonfinite_parameters_are_not_saved_and_the_rank_is_named(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: the newest checkpoint is useless, and every restart begins from it.
    for rank in ranks:
        assert rank["spoilt"].what == "parameters"
        assert rank["spoilt"].group_ranks == (1,)


def test_a_gradient_that_overflows_on_one_rank_is_left_out_on_all(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: rank 2 leaves the step out, the others apply it, and the replicas are parted for good.
    for rank in ranks:
        assert rank["overflow"] == (True, 0.5, True, [1.0, 1.0])


def test_gradients_that_never_fit_end_the_training_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: every step is left out, and the training goes on to its end without learning anything.
    for rank in ranks:
        assert rank["exhausted"] == (False, True)


def test_epoch_statistics_cover_all_ranks(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: each rank prints the loss of its own share, and rank 0's is taken for all.
    callbacks_by_rank = [rank["callbacks"] for rank in ranks]
    (stats,) = callbacks_by_rank[0].epochs
    assert all(callbacks.epochs == [stats] for callbacks in callbacks_by_rank)
    assert (stats.num_samples, stats.counts.num_evaluated, stats.step) == (1437, 360, 23)
    assert len(stats.rank_times) == 3
    assert all(times.compute_s > 0 for times in stats.rank_times)
    assert stats.samples_per_s == pytest.approx(1437 / stats.seconds)


def test_training_ends_with_the_first_epoch_that_reaches_the_target(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        (stats,) = rank["callbacks"].epochs
        assert stats.counts.accuracy >= 0.1
        assert rank["callbacks"].steps == list(range(23))
        assert rank["callbacks"].starts[0].num_steps == 69


def test_a_replica_that_went_astray_is_exit_code_1_and_named(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: DistributedDataParallel trains on without a word, and rank 0's model is taken for all.
    assert [rank["drift"][0] for rank in ranks] == [1, 1, 1]
    assert "rank 1 has other parameters than the 2 others" in ranks[0]["drift"][1]
    assert "digests of all ranks equal" not in ranks[0]["drift"][1]


def test_nothing_is_forked_after_the_group_was_formed(ranks: list[dict[str, Any]]) -> None:
    # The wrong way: a DataLoader with workers forks a process that holds the group's connections, and may hang.
    assert [rank["forks"] for rank in ranks] == [[], [], []]
