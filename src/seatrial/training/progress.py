"""The interface between the trainer and its caller: callbacks for progress bars, logs and signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from seatrial.training.evaluation import Counts
from seatrial.training.step_clock import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """State of a training before its first step; the same on all ranks."""

    step: int
    """Steps already done: 0, or the steps of the checkpoint."""
    num_steps: int
    """Steps of the whole training, including those already done."""
    steps_per_epoch: int
    resumed_from: str | None = None
    """Name of the checkpoint: ``step 40``, or the file name that the user gave. None: a new training."""
    notes: tuple[str, ...] = ()
    """Differences from the training that is resumed, one sentence each. Empty: every bit will be the same as without
    the interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStats:
    """Statistics of one pass over the training part, made at its end; the same on all ranks."""

    epoch: int
    """Counted from 0."""
    step: int
    """Steps done since the training began."""
    loss: float
    """Mean over ``num_samples``, including samples from before an interruption."""
    num_samples: int
    """Training samples of this epoch so far: all of them, unless ``max_steps`` ended the training within the epoch."""
    counts: Counts
    """Test samples of all ranks."""
    samples_per_s: float
    """Training samples per second of all ranks together, without evaluation, since the epoch began or was resumed."""
    seconds: float
    """Training time of the slowest rank, without evaluation, since the epoch began or was resumed."""
    rank_times: tuple[StepTimes, ...]
    """For each group rank, the median over the steps of the epoch; without the ranks that sent no times."""


class Callbacks(Protocol):
    """Methods that the trainer calls on every rank. They must not wait for another rank."""

    def on_start(self, start: Start) -> None:
        """Called once, before the first step."""

    def on_step(self, step: int) -> None:
        """Called after each step, counted from 0; a GPU may still be working on it. Must be fast."""

    def on_losses(self, step: int, loss: float) -> None:
        """Called a few times a second with the mean loss of this step's global batch; all losses so far are finite."""

    def on_epoch(self, stats: EpochStats) -> None:
        """Called after each epoch and its evaluation, before the checkpoint of the epoch is written."""

    def should_stop(self) -> bool:
        """Called a few times a second, after a step. If any rank returns True, all ranks save and return."""
