"""Accuracy on the test part, computed by all ranks: each sample once, counted in integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from seatrial.training.batches import Batches
from seatrial.training.buffers import averaged
from seatrial.training.precision import autocast
from seatrial.training.recipe import Recipe
from seatrial.training.step_clock import synchronize
from seatrial.training.strategies.strategy import Strategy

_BATCH = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Test samples."""

    num_correct: int = 0
    """Samples that were classified correctly, out of ``num_evaluated``."""
    num_evaluated: int = 0

    @property
    def accuracy(self) -> float:
        """Share of the samples that were classified correctly; 0 when nothing was evaluated."""
        return self.num_correct / max(self.num_evaluated, 1)


def evaluate(strategy: Strategy, batches: Batches, recipe: Recipe, group: dist.ProcessGroup) -> tuple[Counts, Counts]:
    """Return the test samples of all ranks, and those of this rank alone. The model is unchanged afterwards.

    Each share gets every n-th sample and none twice. There is no padding, so the counts do not depend on the number of
    ranks. All ranks make the same number of calls, some of them perhaps with no sample, since a strategy may
    communicate in each call.
    """
    num_test = batches.workload.num_test
    own = torch.arange(strategy.data_rank, num_test, strategy.data_size, device=batches.device)
    longest = -(-num_test // strategy.data_size)
    counts = torch.zeros(2, dtype=torch.int64, device=batches.device)
    strategy.model.eval()
    with averaged(strategy.model, group), torch.inference_mode(), autocast(recipe, batches.device):
        for begin in range(0, longest, _BATCH):
            images, labels = batches.test(own[begin : begin + _BATCH])
            scores = strategy.scores(images)
            if scores is not None:
                counts[0] += (scores.argmax(dim=1) == labels).sum()
                counts[1] += len(labels)
    strategy.model.train()
    own_counts = counts.clone()
    dist.all_reduce(counts, group=group)
    synchronize(batches.device)
    return _counts(counts), _counts(own_counts)


def _counts(counts: torch.Tensor) -> Counts:
    num_correct, num_evaluated = counts.tolist()
    return Counts(num_correct=num_correct, num_evaluated=num_evaluated)
