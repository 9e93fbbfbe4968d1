"""fsdp, pipeline and tensor on four ranks: compared with one process, with themselves resumed, and with each other."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy

from seatrial.training import sync_points
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.digest import digest, digest_state
from seatrial.training.models import build_model
from seatrial.training.outcome import Outcome
from seatrial.training.precision import local
from seatrial.training.progress import EpochStats, Start
from seatrial.training.recipe import Recipe
from seatrial.training.resume import Checkpointing
from seatrial.training.sampling import epoch_order
from seatrial.training.step_clock import StepClock
from seatrial.training.strategies.strategy import find_strategy
from seatrial.training.trainer import train

# All runs of a kind are made by the first test that asks for one.
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

CPU = torch.device("cpu")
WORLD_SIZE = 4
# 1,437 = 2 x 713 + 11: the third batch is short, and no batch divides by the ranks or the microbatches.
RECIPE = Recipe(
    workload="digits", model="mlp", max_steps=5, global_batch_size=713, lr=0.1, weight_decay=5e-4, momentum=0.9
)
STOPPED_AT = 3
CONVNET = replace(RECIPE, model="convnet", global_batch_size=64)
FEW: dict[str, Recipe] = {
    f"{strategy} adam": replace(RECIPE, optimizer="adam", lr=0.01, strategy=strategy)
    for strategy in ("fsdp", "pipeline", "tensor")
}
MORE: dict[str, Recipe] = {
    **{strategy: replace(RECIPE, strategy=strategy) for strategy in ("ddp", "fsdp", "pipeline", "tensor")},
    "toy": replace(RECIPE, strategy="tensor", model="toy"),
    "fsdp convnet": replace(CONVNET, strategy="fsdp"),
    "pipeline convnet": replace(CONVNET, strategy="pipeline"),
    "pipeline of 4": replace(CONVNET, strategy="pipeline", model_parallel_size=4, num_microbatches=6),
    "tensor of 4": replace(RECIPE, strategy="tensor", model_parallel_size=4),
}
NORMS: dict[str, Recipe] = {
    strategy: replace(RECIPE, strategy=strategy, model="resnet18", global_batch_size=16, lr=1e-3)
    for strategy in ("ddp", "fsdp")
}
RUNS = FEW | MORE
NUDGED = {"pipeline": "classifier.bias", "tensor": "classifier.bias"}
"""Strategy -> a parameter of which there are copies: one a pipeline, one a rank of tp."""
NAMES = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in RUNS]


class _StopsAfter:
    """Callbacks that ask, on one rank, to stop after a number of steps."""

    def __init__(self, num_steps: int) -> None:
        self._left = num_steps

    def on_start(self, start: Start) -> None: ...

    def on_step(self, step: int) -> None: ...

    def on_losses(self, step: int, loss: float) -> None: ...

    def on_epoch(self, stats: EpochStats) -> None: ...

    def should_stop(self) -> bool:
        self._left -= 1
        return self._left == 0 and dist.get_rank() == 1


@dataclass(frozen=True, slots=True)
class _Ran:
    """What one rank knows of one of ``RUNS``, uninterrupted and resumed."""

    losses: tuple[float, ...]
    digest: str
    num_correct: int
    resumed_digest: str
    resumed_losses: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    ran: list[_Ran]
    """By rank."""
    whole: dict[str, Any]
    """The last state."""
    files: tuple[str, str]
    """Names of the last checkpoint, uninterrupted and resumed."""
    crossed: dict[str, Any]
    """The last state of what went on from the checkpoint of the run before."""
    astray: list[dict[str, str]]
    """By rank: strategy -> digest when a copy went astray."""


def _run(recipe: Recipe, folder: Path, *, stop_after: int = -1) -> Outcome:
    group = dist.group.WORLD
    assert group is not None
    with CheckpointFolder(folder) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_points, "MOST_STEPS", 1)  # so that it may stop after any step
        return train(
            recipe,
            recipe.data(),
            device=CPU,
            group=group,
            phase=lambda _: None,
            checkpoints=Checkpointing(store=store),
            callbacks=_StopsAfter(stop_after),
        )


def _rank(rank: int, port: int, folder: Path, recipes: dict[str, Recipe]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=WORLD_SIZE)
    ran: dict[str, _Ran] = {}
    for name, recipe in recipes.items():
        straight = _run(recipe, folder / name / "straight")
        _run(recipe, folder / name / "resumed", stop_after=STOPPED_AT)
        if rank == 0:
            shutil.copytree(folder / name / "resumed", folder / name / "stopped")
        resumed = _run(recipe, folder / name / "resumed")
        ran[name] = _Ran(
            losses=straight.losses,
            digest=straight.digest,
            num_correct=straight.counts.num_correct,
            resumed_digest=resumed.digest,
            resumed_losses=resumed.losses,
            notes=resumed.notes,
        )
    for name, recipe in recipes.items():
        _run(recipe, folder / _before(name, recipes) / "stopped")
    astray = {strategy: _digest_after_a_nudge(strategy, name) for strategy, name in NUDGED.items()}
    torch.save((ran, astray), folder / f"{rank}.pt")
    dist.destroy_process_group()


def _digest_after_a_nudge(strategy: str, name: str) -> str:
    """Of a model that is as new but for one value on rank 3."""
    group = dist.group.WORLD
    assert group is not None
    recipe = replace(RECIPE, strategy=strategy)
    model = build_model(recipe.model, recipe.data().shape, 10, recipe.seed)
    built = find_strategy(strategy)(model, recipe, device=CPU, group=group, clock=StepClock(CPU))
    if group.rank() == 3:
        local(dict(built.named_parameters())[name])[0] += 1e-3
    return built.digest()


def _before(name: str, recipes: dict[str, Recipe]) -> str:
    """Another run of the same numbers: the one before of those with this model and batch, or the last."""
    same = [
        other
        for other, recipe in recipes.items()
        if (recipe.model, recipe.global_batch_size) == (recipes[name].model, recipes[name].global_batch_size)
    ]
    return same[same.index(name) - 1]


@functools.cache
def _all_runs(which: str) -> dict[str, _Seen]:
    recipes = {"few": FEW, "more": MORE, "norms": NORMS}[which]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        mp.spawn(_rank, args=(store.port, folder, recipes), nprocs=WORLD_SIZE)  # type: ignore[no-untyped-call]
        # Written by the lines above, so trusted.
        by_rank = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD_SIZE)]
        return {
            name: _Seen(
                ran=[ran[name] for ran, _ in by_rank],
                astray=[astray for _, astray in by_rank],
                whole=_last(folder / name / "straight"),
                files=(_last_name(folder / name / "straight"), _last_name(folder / name / "resumed")),
                crossed=_last(folder / _before(name, recipes) / "stopped"),
            )
            for name in recipes
        }


def _last(folder: Path) -> dict[str, Any]:
    with CheckpointFolder(folder) as store:
        newest = store.newest()
    assert newest is not None
    assert newest[0] == RECIPE.max_steps
    return newest[1]


def _last_name(folder: Path) -> str:
    return max(path.name for path in folder.glob("step-*"))


@pytest.fixture
def seen(run: str) -> _Seen:
    return _all_runs("few" if run in FEW else "more")[run]


@functools.cache
def _oracle(recipe: Recipe) -> tuple[dict[str, torch.Tensor], tuple[float, ...], int]:
    """One process and one model, the whole batch at once: parameters, losses, correct test samples."""
    workload = recipe.data()
    data = workload.load()
    model = build_model(recipe.model, workload.shape, workload.num_classes, recipe.seed)
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay, nesterov=True
        )
    assert recipe.max_steps is not None
    losses = []
    for step in range(recipe.max_steps):
        epoch, batch = divmod(step, recipe.steps_per_epoch(workload.num_train))
        start = batch * recipe.global_batch_size
        indices = epoch_order(workload.num_train, recipe.seed, epoch)[start : start + recipe.global_batch_size]
        optimizer.param_groups[0]["lr"] = recipe.lr_at(step, recipe.max_steps)
        optimizer.zero_grad()
        images = (data.train_images[indices].float() - workload.mean) / workload.std
        loss = cross_entropy(model(images), data.train_labels[indices])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.inference_mode():
        scores = model((data.test_images.float() - workload.mean) / workload.std)
    num_correct = int((scores.argmax(dim=1) == data.test_labels).sum())
    return model.state_dict(), tuple(losses), num_correct


def _assert_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("run", NAMES)
def test_four_ranks_train_as_one_process_does(seen: _Seen, run: str) -> None:
    expected, losses, num_correct = _oracle(RUNS[run])
    _assert_close(seen.whole["model"], expected)
    for ran in seen.ran:
        assert ran.losses == pytest.approx(losses, abs=1e-5)
        assert ran.num_correct == num_correct


@pytest.mark.parametrize("run", NAMES)
def test_a_resumed_training_ends_with_the_same_bits(seen: _Seen) -> None:
    _assert_resumed(seen)


def _assert_resumed(seen: _Seen) -> None:
    for ran in seen.ran:
        assert ran.notes == ()
        assert ran.resumed_digest == ran.digest
        assert ran.resumed_losses == ran.losses[STOPPED_AT:]
    # Model, optimizer and all else: the name of a checkpoint holds the digest of its bytes.
    straight, resumed = seen.files
    assert straight == resumed


@pytest.mark.parametrize("run", NAMES)
def test_all_ranks_have_the_digest_of_the_whole_model(seen: _Seen, run: str) -> None:
    expected = digest_state(seen.whole["model"])
    assert {ran.digest for ran in seen.ran} == {expected}
    recipe = RUNS[run]
    model = build_model(recipe.model, recipe.data().shape, 10, seed=99)
    model.load_state_dict(seen.whole["model"])
    assert digest(model) == expected


@pytest.mark.parametrize("run", NAMES)
def test_one_strategy_goes_on_from_the_checkpoint_of_another(seen: _Seen, run: str) -> None:
    expected, _, _ = _oracle(RUNS[run])
    _assert_close(seen.crossed["model"], expected)
    ours, theirs = seen.crossed["optimizer"], seen.whole["optimizer"]
    assert ours.keys() == theirs.keys() == expected.keys()
    for name, kept in theirs.items():
        assert kept.keys() == ({"step", "exp_avg", "exp_avg_sq"} if "adam" in run else {"momentum_buffer"})
        _assert_close(dict(sorted(ours[name].items())), dict(sorted(kept.items())))


def test_a_copy_that_differs_shows_in_its_ranks_digests() -> None:
    astray = next(iter(_all_runs("few").values())).astray
    pipeline = [of_rank["pipeline"] for of_rank in astray]
    assert pipeline[0] == pipeline[1] != pipeline[2] == pipeline[3]
    # Ranks 1 and 3 hold the second copy, sharded over the two.
    tensor = [of_rank["tensor"] for of_rank in astray]
    assert tensor[0] == tensor[2] == pipeline[0] != tensor[1] == tensor[3]


@pytest.mark.slow
def test_batch_norm_is_sharded_as_it_is_replicated() -> None:
    """Each rank normalises by its own share in both, so there is no one process to compare with.

    The second loss comes after one step. Later ones say nothing: with four samples a share each step makes a difference
    in the last bits some hundred times larger.
    """
    seen = _all_runs("norms")
    for each in seen.values():
        _assert_resumed(each)
    sharded, replicated = (seen[strategy].ran[0].losses for strategy in ("fsdp", "ddp"))
    assert sharded[:2] == pytest.approx(replicated[:2], abs=1e-5)
    assert abs(replicated[1] - replicated[0]) > 1e-3
