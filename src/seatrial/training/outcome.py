"""The result of a training, as one rank knows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from seatrial.training.evaluation import Counts
from seatrial.training.step_clock import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The reason why a training was stopped: a number was infinite or NaN."""

    step: int
    group_ranks: tuple[int, ...]
    """Group ranks whose own numbers were not finite. Of the others it is what arrived of them: any rank, and any link,
    can change that, so a rank is named by its own outcome only."""
    what: str = "loss"
    """``loss``: the loss of that step, and since then all parameters are spoiled; ``parameters``: found after that
    step, before they were saved; ``gradients``: in fp16, of that step and of all before it with a higher scale."""
    began_ordinary: bool | None = None
    """For a loss: whether the parameters that this rank has were of ordinary size before that step. With ddp, in
    float32, its own computing then made its loss not finite, and nothing that it received, unless running statistics of
    BatchNorm normalized a share of one sample. None: not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result on one rank. Losses, times and counts cover the steps since the training began or was resumed."""

    losses: tuple[float, ...]
    """Mean loss of each global batch, the same on all ranks, up to the first that is not finite."""
    own_loss_sums: tuple[float, ...]
    """Loss sum over the samples of this rank, of the steps in ``losses``."""
    times: tuple[StepTimes, ...]
    """One entry per step."""
    local_counts: tuple[int, ...]
    """Samples of this rank in each step."""
    samples_per_s: float | None
    """Training samples per second of all ranks together, without the warm-up; None when there was no step after it."""
    model: nn.Module
    """The part of the model that this rank has."""
    digest: str
    """SHA-256 of the parameters and buffers; see ``Strategy.digest``."""
    step: int
    """Steps done since the training began."""
    counts: Counts
    """Test samples of all ranks."""
    own_counts: Counts
    """Test samples of this rank's share: any rank can change a sum over all, and none this."""
    first_step: int = 0
    """Steps done before this process started: more than 0 after a resume."""
    notes: tuple[str, ...] = ()
    """Reasons why the bits may differ from those of an uninterrupted training; empty: they do not differ."""
    checkpoint: Path | None = None
    """The last checkpoint that was saved; on rank 0 only."""
    nonfinite: NonFinite | None = None
    interrupted: bool = False
    """Whether ``Callbacks.should_stop`` ended it. Then it was saved, if there is a store, and not evaluated."""
