"""The results of one or several consecutive trainings on one rank."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from statistics import median

from seatrial.training.outcome import Outcome
from seatrial.training.step_clock import WARMUP_STEPS, StepTimes

_TIMES = tuple(entry.name for entry in fields(StepTimes))


@dataclass(slots=True, kw_only=True)
class Runs:
    """A few numbers of each training, as hours of training may be thousands of runs."""

    full_count: int
    """Samples of a full share of a rank. Only steps with a full share count for times, so that ranks are comparable."""
    accuracies: list[float] = field(default_factory=list)
    """The accuracy of each run, a share from 0 to 1."""
    num_evaluated: int = 0
    """Test samples evaluated in all runs together, over all ranks."""
    own_correct: int = 0
    """Test samples of this rank's shares that were classified correctly, in all runs together, out of
    ``own_evaluated``."""
    own_evaluated: int = 0
    samples_per_s: list[float] = field(default_factory=list)
    """Training samples a second of each run that was long enough to measure it."""
    _times: dict[str, list[float]] = field(default_factory=dict)
    _digests: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add a training that finished with finite values."""
        self.accuracies.append(outcome.counts.accuracy)
        self.num_evaluated += outcome.counts.num_evaluated
        self.own_correct += outcome.own_counts.num_correct
        self.own_evaluated += outcome.own_counts.num_evaluated
        self._digests.append(outcome.digest)
        if outcome.samples_per_s is not None:
            self.samples_per_s.append(outcome.samples_per_s)
        pairs = zip(outcome.times[WARMUP_STEPS:], outcome.local_counts[WARMUP_STEPS:], strict=True)
        steps = [times for times, local_count in pairs if local_count == self.full_count]
        for name in _TIMES if steps else ():
            self._times.setdefault(name, []).append(median(getattr(times, name) for times in steps))

    def times(self) -> dict[str, float]:
        """Return seconds by the names of ``StepTimes``: medians over runs of medians over steps."""
        return {name: median(values) for name, values in self._times.items()}

    def digest(self) -> str:
        """Return one digest of all runs: it differs between ranks if the digest of any run does."""
        if len(self._digests) == 1:
            return self._digests[0]
        return hashlib.sha256(" ".join(self._digests).encode()).hexdigest()
