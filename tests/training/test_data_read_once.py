"""Files of data that somebody exchanges after all ranks have compared them change nothing of what a rank computes."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checks.fake_context import FakeContext
from training.small_files import idx_bytes, write_mnist

from seatrial.checks.training import CHECK
from seatrial.checks.training.params import Params
from seatrial.training.batches import Batches
from seatrial.training.data import find_workload
from seatrial.training.recipe import Recipe

NUM_TRAIN, NUM_TEST = 64, 16


@dataclass(kw_only=True)
class WatchedContext(FakeContext):
    """A context in which the files are exchanged when the ranks compare what they have read."""

    place: Path
    other: Path

    def phase(self, label: str) -> None:
        super().phase(label)
        if label == "compare data":
            self.place.rename(self.place.with_name("before"))
            self.other.rename(self.place)


def _smaller(place: Path) -> None:
    """Write files that are as good as the first ones, with images of 27 x 27 pixels."""
    for prefix, count in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
        images, labels = torch.zeros(count, 27, 27), torch.arange(count) % 10
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            (place / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values), 1))


def _damaged(place: Path) -> None:
    """Write files whose first bytes already end who reads them."""
    for file in place.iterdir():
        file.write_bytes(b"no data")


def _results(context: FakeContext) -> dict[str, list[Any]]:
    """Return the facts that come from the data, by name."""
    names = ("recipe", "digest", "own_counts", "own_loss", "one_batch")
    return {name: [fact.value for fact in context.facts if fact.name == name] for name in names}


@pytest.mark.parametrize("write", [_smaller, _damaged])
def test_no_file_is_read_after_it_was_compared(tmp_path: Path, alone: dist.ProcessGroup, write: Any) -> None:
    place, other = (write_mnist(tmp_path / name, NUM_TRAIN, NUM_TEST) for name in ("data", "other"))
    write(other)
    params = Params(workload="mnist", data=str(place.parent), model="mlp", max_steps=3, epochs=1, global_batch_size=32)
    common: dict[str, Any] = {"check": "training", "group": alone}
    quiet, watched = FakeContext(**common), WatchedContext(**common, place=place, other=other)
    for context in (quiet, watched):
        for context.stage in ("measure", "repeat"):
            CHECK.measure(context, params)
    assert not other.exists()
    expected = _results(quiet)
    assert all(expected.values())
    assert _results(watched) == expected
    # Before and after the training, and three times alone.
    assert len(expected["one_batch"]) == 5
    assert len({each["scores"] for each in expected["one_batch"]}) == 1


def test_batches_on_a_cpu_share_the_memory_of_what_was_compared(tmp_path: Path) -> None:
    write_mnist(tmp_path, NUM_TRAIN, NUM_TEST)
    workload = find_workload("mnist", num_samples=1, data_dir=tmp_path).in_memory()
    recipe = Recipe(workload="mnist", model="mlp", max_steps=1, global_batch_size=8, lr=0.1)
    images, _ = Batches(recipe, workload, torch.device("cpu"))._train
    assert images.data_ptr() == workload.load().train_images.data_ptr()
