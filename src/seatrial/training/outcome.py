"""What is known when a training is over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from seatrial.training.clock import StepTimes

__all__ = ["NonFinite", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A training that was stopped because a number was infinite or none."""

    step: int
    group_ranks: tuple[int, ...]
    """Those whose own numbers were not finite."""
    what: str = "loss"
    """loss: of that step, and since then all parameters are spoilt; parameters: seen after that step, when they were to
    be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one rank knows when its training is over. Losses, times and counts are those since it began or resumed."""

    losses: tuple[float, ...]
    """Mean loss of each global batch, the same on all ranks; up to the first that is not finite."""
    times: tuple[StepTimes, ...]
    """One a step."""
    local_counts: tuple[int, ...]
    """Samples of this rank at each step."""
    samples_per_s: float | None
    """Of all ranks together, without the warm-up; None when there was nothing after it."""
    model: nn.Module
    """What this rank holds of it."""
    digest: str
    step: int
    """Steps done since the training began."""
    first_step: int = 0
    """Steps that were done before: more than 0 after a resume."""
    notes: tuple[str, ...] = ()
    """Why the bits may differ from those of a training that was never interrupted; empty: they do not."""
    checkpoint: Path | None = None
    """The last one that was saved; on rank 0 only."""
    nonfinite: NonFinite | None = None
    interrupted: bool = False
    """Whether ``Watch.should_stop`` ended it; then it was saved, if there is a store, and not evaluated."""
    num_correct: int = 0
    """Over all ranks, of ``num_evaluated`` test samples."""
    num_evaluated: int = 0

    @property
    def accuracy(self) -> float:
        """Share of the test samples that were classified right; 0 when nothing was evaluated."""
        return self.num_correct / max(self.num_evaluated, 1)
