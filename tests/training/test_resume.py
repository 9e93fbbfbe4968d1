"""Stopped and resumed trainings: every bit as without the interruption, or a sentence that says why not."""

from __future__ import annotations

import hashlib
import io
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from training.rank_processes import groups_of, run_ranks
from training.training_doubles import (
    FullDiskStore,
    RecordingCallbacks,
    UntouchableStore,
    build_normed_dropout_net,
    fits_always,
)

from seatrial.errors import RequestError, SeatrialError
from seatrial.training import plain_content, resume, sync_points, trainer
from seatrial.training.batches import Batches
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.models import build_model
from seatrial.training.outcome import Outcome
from seatrial.training.plain_content import MOST_BYTES
from seatrial.training.recipe import Recipe
from seatrial.training.resume import (
    Checkpointing,
    Position,
    compare_with_saved,
    find_state,
    form_of,
    require_shapes,
)
from seatrial.worker.failures import cause_of

CPU = torch.device("cpu")
# 15 steps an epoch, of which the last one has 37 samples; 20 steps end within the second epoch.
SGD = Recipe(workload="digits", model="convnet", max_steps=20, global_batch_size=100, lr=0.05, seed=5, augment="flip")
# Of 2 samples a batch, one in three ranks has none: BatchNorm must do without, and so must the resumed one.
TINY = Recipe(workload="synthetic-1x8x8", model="convnet", max_steps=9, global_batch_size=4, lr=0.01, num_samples=30)
ADAM = replace(SGD, optimizer="adam", lr=0.003, schedule="cosine")
PLANTED = replace(TINY, optimizer="adamw", max_steps=2)
STOPPED = 7
"""In the middle of the first epoch."""

pytestmark = pytest.mark.timeout(150)  # the first test waits for all that the ranks of five files do
RankResults = tuple[dict[tuple[str, int], "_Interrupted"], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Interrupted:
    whole: Outcome
    stopped: Outcome
    resumed: Outcome
    callbacks: RecordingCallbacks
    whole_callbacks: RecordingCallbacks


def _store(folder: str, group: dist.ProcessGroup) -> Any:
    return CheckpointFolder(folder) if group.rank() == 0 else UntouchableStore()


def _training(recipe: Recipe, group: dist.ProcessGroup) -> partial[Outcome]:
    return partial(trainer.train, recipe, recipe.data(), device=CPU, group=group, phase=lambda label: None)


def _train(recipe: Recipe, group: dist.ProcessGroup, folder: str | None, stop_at: int | None, **saving: Any) -> Any:
    callbacks = RecordingCallbacks(stop_at)
    store = _store(folder, group) if folder else None
    checkpoints = Checkpointing(store=store, **saving) if store is not None else None
    try:
        outcome = _training(recipe, group)(checkpoints=checkpoints, callbacks=callbacks)
    finally:
        if isinstance(store, CheckpointFolder):
            store.close()
    return outcome, callbacks


def _interrupted(recipe: Recipe, group: dist.ProcessGroup, folder: str) -> _Interrupted:
    whole, whole_callbacks = _train(recipe, group, None, None)
    # Only the last rank is asked to stop; all have to.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_points, "MOST_STEPS", 1)
        stopped, _ = _train(recipe, group, folder, STOPPED if group.rank() == group.size() - 1 else None, save_every=1)
    resumed, callbacks = _train(recipe, group, folder, None)
    return _Interrupted(whole, stopped, resumed, callbacks, whole_callbacks)


def _rank(rank: int, folder: str, sizes: tuple[int, ...]) -> dict[tuple[str, int], _Interrupted]:
    seen = {}
    kinds = {"sgd": SGD, "adam": ADAM, "tiny": TINY, "tiny adam": replace(TINY, optimizer="adamw")}
    for name, recipe in kinds.items():
        for size, group in groups_of(*sizes).items():
            with pytest.MonkeyPatch.context() as patch:
                if name != "sgd":
                    patch.setattr(trainer, "build_model", build_normed_dropout_net)
                seen[name, size] = _interrupted(recipe, group, f"{folder}/{name}-{size}")
    return seen


def on_3_ranks(rank: int, folder: str) -> RankResults:
    with pytest.MonkeyPatch.context() as patch:
        return _rank(rank, folder, (3,)), _other_world(rank, f"{folder}/other", patch)


@pytest.fixture
def cases(three_ranks: dict[str, list[RankResults]]) -> list[tuple[_Interrupted, ...]]:
    return _cases([seen for seen, _ in three_ranks[__name__]])


@pytest.fixture
def other_world(three_ranks: dict[str, list[RankResults]]) -> list[dict[str, Any]]:
    return [other_world for _, other_world in three_ranks[__name__]]


def _cases(ranks: list[dict[tuple[str, int], _Interrupted]]) -> list[tuple[_Interrupted, ...]]:
    return [tuple(rank[key] for rank in ranks if key in rank) for key in ranks[0]]


def _hold(case: tuple[_Interrupted, ...]) -> None:
    for seen in case:
        assert seen.stopped.interrupted
        assert seen.stopped.step == STOPPED == seen.resumed.first_step
        assert seen.resumed.notes == ()
        assert seen.resumed.digest == seen.whole.digest
        assert seen.stopped.losses + seen.resumed.losses == seen.whole.losses
        assert seen.resumed.counts.num_correct == seen.whole.counts.num_correct
        # The epoch in which it was stopped is reported as a whole.
        assert [(stats.epoch, stats.loss, stats.counts.num_correct) for stats in seen.callbacks.epochs] == [
            (stats.epoch, stats.loss, stats.counts.num_correct) for stats in seen.whole_callbacks.epochs
        ]
    assert len({seen.resumed.digest for seen in case}) == 1
    assert len({seen.whole.digest for seen in case}) == 1


def test_a_resumed_training_has_the_same_bits_on_3_ranks(cases: list[tuple[_Interrupted, ...]]) -> None:
    # Without a first backward before loading, DDP adds up in another order from 3 ranks on: see docs/training.md.
    assert len(cases) == 4
    for case in cases:
        _hold(case)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sizes", [(1, 2), (4,)], ids=str)
def test_a_resumed_training_has_the_same_bits_on_1_2_and_4_ranks(sizes: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(run_ranks(max(sizes), _rank, folder, sizes))
    assert len(cases) == 4 * len(sizes)
    for case in cases:
        _hold(case)


def test_only_rank_0_writes_and_knows_where(cases: list[tuple[_Interrupted, ...]]) -> None:
    for case in cases:
        assert case[0].stopped.checkpoint is not None
        assert all(seen.stopped.checkpoint is None for seen in case[1:])


def _other_world(rank: int, folder: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    drawn: list[tuple[int, list[int]]] = []
    whole = Batches.train

    def recording(self: Batches, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn.append((epoch, indices.tolist()))
        return whole(self, indices, epoch)

    patch.setattr(Batches, "train", recording)
    groups = groups_of(2, 3)
    recipe = replace(SGD, epochs=2, max_steps=None)
    if 2 in groups:
        with patch.context() as own:
            own.setattr(sync_points, "MOST_STEPS", 1)
            _train(recipe, groups[2], folder, STOPPED)
    dist.barrier()
    before = list(drawn)
    drawn.clear()
    resumed, _ = _train(recipe, groups[3], folder, None)
    other_world = {"before": before, "after": list(drawn[1:]), "notes": resumed.notes, "digest": resumed.digest}
    # Then all that has to be refused, on all ranks alike.
    refusals = {
        "model": replace(recipe, model="mlp"),
        "seed": replace(recipe, seed=6),
        "fewer": replace(recipe, epochs=1),
    }
    for name, other in refusals.items():
        with pytest.raises(SeatrialError) as refused:
            _train(other, groups[3], folder, None)
        other_world[name] = str(refused.value)
    with pytest.raises(SeatrialError) as refused_never:
        _train(recipe, groups[3], folder, None, resume="never")
    other_world["never"] = str(refused_never.value)
    store: Any = FullDiskStore() if rank == 0 else UntouchableStore()
    with pytest.raises((SeatrialError, OSError)) as full:
        _training(TINY, groups[3])(checkpoints=Checkpointing(store=store))
    other_world["full disk"] = str(full.value)
    longer, _ = _train(replace(recipe, epochs=3, lr=0.01), groups[3], folder, None)
    other_world["longer"] = (longer.first_step, longer.step, longer.notes)
    return other_world


def test_another_number_of_ranks_goes_on_where_the_samples_ended(other_world: list[dict[str, Any]]) -> None:
    # Wrong would be to begin the epoch anew, or to count steps of another share: samples twice, others never.
    for epoch in (0, 1):
        drawn = [
            index
            for rank in other_world
            for seen_epoch, indices in [*rank["before"], *rank["after"]]
            if seen_epoch == epoch
            for index in indices
        ]
        assert sorted(drawn) == list(range(1437))
    for rank in other_world:
        assert rank["notes"] == (
            "2 ranks trained before and 3 train now: each sample still comes once per epoch, but sums over ranks round "
            "differently.",
        )
    assert len({rank["digest"] for rank in other_world}) == 1


def test_a_checkpoint_of_another_training_is_refused_by_field(other_world: list[dict[str, Any]]) -> None:
    assert "model was 'convnet' and is now 'mlp'" in other_world[0]["model"]
    assert "seed was 5 and is now 6" in other_world[0]["seed"]
    assert "beyond the 15 requested steps" in other_world[0]["fewer"]
    # Only rank 0 reads the store, and it sends nothing that it refuses, which may have 2 GiB; the others learn that it
    # failed and do not wait forever.
    assert "resume is never" in other_world[0]["never"]
    assert {rank[name] for rank in other_world[1:] for name in ("model", "seed", "fewer", "never")} == {
        "rank 0 could not read a checkpoint; its message gives the reason."
    }


def test_resume_never_and_a_path_do_not_apply_to_restarts(alone: dist.ProcessGroup, tmp_path: Path) -> None:
    # The wrong way: a restart is refused, or goes back behind what was saved since.
    other = CheckpointFolder(tmp_path / "other")
    begin = other.save(7, {"a": 1})
    other.close()
    with CheckpointFolder(tmp_path / "own") as store:
        assert find_state(Checkpointing(store=store, resume="never"), alone, CPU, fits_always) is None
        restarted = Checkpointing(store=store, resume=str(begin), restarted=True)
        assert find_state(restarted, alone, CPU, fits_always) == (begin.name, {"a": 1})
        store.save(9, {"a": 2})
        for resume in ("never", str(begin)):
            restarted = Checkpointing(store=store, resume=resume, restarted=True)
            assert find_state(restarted, alone, CPU, fits_always) == ("step 9", {"a": 2})
        with pytest.raises(RequestError, match="resume is never"):
            find_state(Checkpointing(store=store, resume="never"), alone, CPU, fits_always)
        with pytest.raises(RequestError, match="step 9, later than step-000000000007"):
            find_state(Checkpointing(store=store, resume=str(begin)), alone, CPU, fits_always)


def test_a_full_disk_under_rank_0_ends_all_ranks(other_world: list[dict[str, Any]]) -> None:
    assert "No space left" in other_world[0]["full disk"]
    assert {rank["full disk"] for rank in other_world[1:]} == {
        "rank 0 could not save a checkpoint; its message gives the reason."
    }


def test_more_epochs_and_another_lr_are_allowed_with_notes(other_world: list[dict[str, Any]]) -> None:
    for rank in other_world:
        assert rank["longer"] == (30, 45, ("epochs was 2 and is now 3.", "lr was 0.05 and is now 0.01."))


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(RequestError, match="format 7"):
        compare_with_saved({"format": 7}, SGD, 20, 1, CPU)


def test_a_position_counts_samples_of_its_epoch() -> None:
    position = Position()
    position.advance(3)
    position.epoch_loss_sum += 1.5
    position.begin_epoch()
    position.advance(2)
    assert (position.step, position.samples_seen, position.epoch_samples, position.epoch_loss_sum) == (2, 5, 2, 0.0)


def _planted(change: Callable[[dict[str, Any]], object], alone: dist.ProcessGroup, folder: Path) -> str:
    """Resume from a checkpoint with another content, under its own digest; return the refusal."""
    with CheckpointFolder(folder) as store:
        training = _training(PLANTED, alone)
        training(checkpoints=Checkpointing(store=store))
        saved = store.newest()
        assert saved is not None
        change(saved[1])
        store.save(21, saved[1])
        with pytest.raises(RequestError) as refused:
            training(checkpoints=Checkpointing(store=store))
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("recipe"), "it has no usable recipe"),
        (lambda state: state["recipe"].update({3: 4}), "it has no usable recipe"),
        (lambda state: state.pop("made_by"), "it has no usable made_by"),
        (lambda state: state.update(step=-1), "it has no usable step"),
        (lambda state: state.update(epoch_loss_sum=float("nan")), "it has no usable epoch_loss_sum"),
        (lambda state: state.update(buffers=[1]), "it has no usable buffers"),
        (lambda state: state.update(loss_scale={"factor": "x"}), "it has no usable loss_scale"),
        (lambda state: state["model"].clear(), "'features.0.weight' of its model is missing"),
        (
            lambda state: state["model"].update({"classifier.weight": torch.zeros(2, 3)}),
            "'classifier.weight' of its model has",
        ),
        (lambda state: state["model"].update({"more": torch.zeros(1)}), "'more' of its model is of no model here"),
        (lambda state: state["optimizer"].update(more={}), "'more' of its optimizer is of no parameter here"),
        (
            lambda state: state["optimizer"]["classifier.weight"].update(exp_avg=torch.zeros(3)),
            "exp_avg of 'classifier.weight'",
        ),
        (lambda state: state["optimizer"]["classifier.weight"].update(exp_avg=7), "exp_avg of 'classifier.weight'"),
        (
            lambda state: state["optimizer"]["classifier.weight"].update(step=torch.zeros(10, 256)),
            "step of 'classifier.weight'",
        ),
        (
            lambda state: state["optimizer"]["classifier.weight"].pop("exp_avg"),
            "'classifier.weight' of its optimizer has other values than exp_avg and exp_avg_sq and step",
        ),
        (lambda state: state.update(samples_seen=2**2000), "it has no usable samples_seen"),
        (lambda state: state["recipe"].update(lr=torch.zeros(2)), "it has no usable recipe"),
        (lambda state: state.update(loss_scale={"factor": 1.0, "good_steps": 2**2000}), "no usable loss_scale"),
        (lambda state: state.update(loss_scale={"factor": 0.0, "good_steps": 0}), "no usable loss_scale"),
        (lambda state: state["model"].update({"\x1b[2J": 1}), r"'\x1b[2J' of its model is of no model here"),
        (lambda state: state.update({"more\x1b": torch.zeros(9)}), r"'more\x1b' is no part of a training"),
        (lambda state: state.update(seed=torch.zeros(9)), "it has no usable seed"),
        (lambda state: state.update(recipe_digest=[torch.zeros(9)]), "it has no usable recipe_digest"),
        (
            lambda state: state.update(loss_scale={"factor": 1.0, "good_steps": 0, "x": torch.zeros(9)}),
            "no usable loss_scale",
        ),
        (lambda state: state.update(buffers=torch.zeros(1, 9)), "its buffers has the shape (1, 9) in place of (1, 0)"),
        (lambda state: state.update(buffers=torch.zeros(9, 0)), "its buffers has the shape (9, 0) in place of (1, 0)"),
        (
            lambda state: state["model"].update({"classifier.bias": torch.zeros(10, dtype=torch.float64)}),
            "'classifier.bias' of its model has numbers of torch.float64 in place of torch.float32",
        ),
        (
            lambda state: state["optimizer"]["classifier.bias"].update(exp_avg=torch.zeros(10, dtype=torch.int8)),
            "exp_avg of 'classifier.bias' in its optimizer has numbers of torch.int8",
        ),
        (lambda state: None, "it is named after step 21, and has step 2"),
    ],
)
def test_a_planted_checkpoint_is_refused_with_its_name(
    change: Callable[[dict[str, Any]], object], words: str, alone: dist.ProcessGroup, tmp_path: Path
) -> None:
    said = _planted(change, alone, tmp_path)
    assert said.startswith("checkpoint step 21: ")
    assert words in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state["recipe"].update(seed=99), "belongs to another training: seed was 99 and is now"),
        (lambda state: state["model"].pop("classifier.bias"), "'classifier.bias' of its model is missing"),
        (lambda state: state.update(format=9), "has format 9"),
        (lambda state: state.update(step="2"), "no usable step"),
        (lambda state: state.update(step=999), "beyond the"),
    ],
)
def test_what_fits_rank_0_alone_is_no_wrong_request(
    change: Callable[[dict[str, Any]], object],
    words: str,
    alone: dist.ProcessGroup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every rank can change the sum in which rank 0 sends its checkpoint."""
    training = _training(PLANTED, alone)
    with CheckpointFolder(tmp_path) as store:
        training(checkpoints=Checkpointing(store=store))
        saved = store.newest()
        assert saved is not None
        change(saved[1])
        torch.save({"name": "step 2", "state": saved[1]}, file := io.BytesIO())
        monkeypatch.setattr(resume, "_bytes", lambda content: file.getvalue())
        with pytest.raises(SeatrialError, match="that rank 0 has sent fits there and not here") as disturbed:
            training(checkpoints=Checkpointing(store=store))
    assert cause_of(disturbed.value) == "fabric"
    assert words in str(disturbed.value)
    assert "move it away" not in str(disturbed.value)


def test_words_of_a_planted_checkpoint_are_in_quotes_and_short(alone: dist.ProcessGroup, tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path) as store:
        training = _training(PLANTED, alone)
        training(checkpoints=Checkpointing(store=store))
        saved = store.newest()
        assert saved is not None
        state = saved[1]
        state["made_by"] = "\x1b[2Jseatrial: PASS\n" * 1_000
        store.save(saved[0], state)
        [note] = training(checkpoints=Checkpointing(store=store)).notes
        assert note.startswith(r"it was saved by '\x1b[2Jseatrial: PASS\n")
        assert note.isprintable()
        assert len(note) < 300
        state["recipe"] |= {f"\x1b{number}": "\x1b" * 1_000 for number in range(1_000)}
        store.save(saved[0], state)
        with pytest.raises(RequestError, match="belongs to another training") as refused:
            training(checkpoints=Checkpointing(store=store))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 3_000


def test_a_checkpoint_that_grows_when_it_is_sent_is_named(
    alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list takes one byte in it, and six in what torch writes."""
    monkeypatch.setattr(plain_content, "_MOST_INDEX_BYTES", 1 << 20)
    many = 250_000
    words = [b"X%b%b" % (struct.pack("<I", len(word)), word) for word in (b"format", b"step", b"state", b"x")]
    pickled = b"\x80\x02}(%bK\x01%bK\x07%b}(%b](%beuu." % (*words, b"]" * many)
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/byteorder", sys.byteorder)
    content = file.getvalue()
    (tmp_path / f"step-{7:012d}.{hashlib.sha256(content).hexdigest()}.pt").write_bytes(content)
    with (
        CheckpointFolder(tmp_path) as store,
        pytest.raises(RequestError, match=r"checkpoint step 7: .*its pickle has more than 1 MiB") as refused,
    ):
        find_state(Checkpointing(store=store), alone, CPU, fits_always)
    assert cause_of(refused.value) == "request"


def test_a_small_part_of_many_numbers_is_refused() -> None:
    """Saved and sent, it would have all of them."""
    model = build_model("toy", (1, 8, 8), 10, seed=1)
    entries = model.state_dict()
    name = next(iter(entries))
    state = {"model": entries, "optimizer": {}, "buffers": torch.zeros(1, 0), "recipe": {}, "world_size": 1}
    require_shapes("step 7", state, form_of(model))
    entries[name] = torch.zeros(entries[name].numel() + 1)[1:].view(entries[name].shape)
    with pytest.raises(RequestError, match=f"checkpoint step 7: '{name}' of its model has more numbers than its shape"):
        require_shapes("step 7", state, form_of(model))


def test_a_checkpoint_larger_than_a_training_can_have_is_not_read(alone: dist.ProcessGroup, tmp_path: Path) -> None:
    training = _training(PLANTED, alone)
    notes: list[str] = []
    with CheckpointFolder(tmp_path, note=notes.append) as store:
        saving = Checkpointing(store=store)
        training(checkpoints=saving)
        planted = tmp_path / f"step-{10**17}.{'0' * 64}.pt"
        with planted.open("wb") as file:
            file.truncate(200 << 20)
        assert training(checkpoints=saving).first_step == 2
    (note,) = notes
    assert note.startswith(f"{planted} cannot be read: it has more than 16")
    assert note.endswith(" MiB. It is skipped.")


def test_what_the_largest_model_saves_is_read_by_each_training() -> None:
    """So that the field that differs is named, and not the size."""
    large, small = (form_of(build_model(name, (3, 32, 32), 10, seed=1)) for name in ("resnet18", "convnet"))
    saved_bytes = 3 * sum(entry.numel() * entry.element_size() for entry in large.entries.values())
    assert saved_bytes + 64 * 8 * large.num_buffers < small.most_bytes(1) < large.most_bytes(1)
    assert saved_bytes + 100 * 4_096 * 8 * large.num_buffers > MOST_BYTES == large.most_bytes(100 * 4_096)


def test_what_other_numbers_of_ranks_saved_of_each_is_not_sent(alone: dist.ProcessGroup, tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path) as store:
        store.save(1, {"buffers": torch.ones(3, 5)})
        found = find_state(Checkpointing(store=store), alone, CPU, fits_always)
        assert found is not None
        assert found[1]["buffers"].shape == (0, 5)


@pytest.mark.parametrize("liar", ["claims that it failed", "announces nothing", "announces more", "changes a byte"])
def test_rank_0_is_a_witness_where_another_rank_changes_a_sum(
    liar: str, alone: dist.ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"claims that it failed": (0, 1), "announces nothing": (1, None), "announces more": (1, 1 << 20)}
    place, added = changes.get(liar, (2, 1))
    sums: list[torch.Tensor] = []

    def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        if len(sums) == place:
            tensor[0] = 0 if added is None else tensor[0] + added
        sums.append(tensor)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with CheckpointFolder(tmp_path) as store:
        store.save(1, {"a": 1})
        with pytest.raises(SeatrialError, match="test the links") as disturbed:
            find_state(Checkpointing(store=store), alone, CPU, fits_always)
    assert cause_of(disturbed.value) == "fabric"
    assert len(sums) == place + 1
