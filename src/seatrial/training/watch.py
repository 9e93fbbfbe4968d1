"""What the trainer tells while it runs, and what it is asked: the seam to progress bars, logs and signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seatrial.training.clock import StepTimes

__all__ = ["CheckpointStore", "EpochStats", "Start", "Watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known before the first step; the same on all ranks."""

    step: int
    """Steps that are already done: 0, or those of the checkpoint."""
    num_steps: int
    """Steps of the whole training, with those."""
    steps_per_epoch: int
    resumed_from: str | None = None
    """The checkpoint, as rank 0 names it."""
    notes: tuple[str, ...] = ()
    """What differs from the training that is resumed, one sentence each. Empty: every bit will be as if there had been
    no interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """One pass over the training part, told at its end; the same on all ranks."""

    epoch: int
    """From 0."""
    step: int
    """Steps done since the training began."""
    loss: float
    """Mean over ``num_samples``, those before an interruption too."""
    num_samples: int
    """Training samples of the epoch so far: all of them, unless ``max_steps`` ended the training within it."""
    num_correct: int
    """Of ``num_evaluated`` test samples."""
    num_evaluated: int
    samples_per_s: float
    """Training samples of all ranks together, without evaluation, since the epoch began or was resumed."""
    seconds: float
    """Training of the slowest rank, without evaluation, since the epoch began or was resumed."""
    rank_times: tuple[StepTimes, ...]
    """By rank: its median over the steps of the epoch."""

    @property
    def accuracy(self) -> float:
        """Share of the test samples that were classified right."""
        return self.num_correct / max(self.num_evaluated, 1)


class Watch(Protocol):
    """Told on every rank. What it does on a rank must not wait for another."""

    def on_start(self, start: Start) -> None:
        """Once, before the first step."""

    def on_step(self, step: int) -> None:
        """After each step, counted from 0; a GPU may still be at it. To be cheap: it stands in the loop."""

    def on_losses(self, step: int, loss: float) -> None:
        """Some times a second: the mean loss of the global batch of this step. Those of all before were finite, too."""

    def on_epoch(self, stats: EpochStats) -> None:
        """After each epoch and its evaluation, before its checkpoint is written."""

    def should_stop(self) -> bool:
        """Asked some times a second, after a step. If any rank says so, all ranks save and return after that step."""


class CheckpointStore(Protocol):
    """Checkpoints of one training in one folder. Only rank 0 touches it, so only its node needs the folder.

    A state is made of dicts and lists of tensors and primitives.
    """

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write a new checkpoint; it exists wholly or not at all."""

    def newest(self) -> tuple[int, Mapping[str, Any]] | None:
        """The newest valid checkpoint, with its step; None when there is none."""

    def load(self, path: Path) -> tuple[int, Mapping[str, Any]]:
        """The step and the state of that file. Raises SeatrialError when it is none of ours or damaged."""
