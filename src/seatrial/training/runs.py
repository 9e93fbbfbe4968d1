"""What one rank has to tell of one or several trainings, one after the other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from statistics import median

from seatrial.training.clock import WARMUP_STEPS, StepTimes
from seatrial.training.outcome import Outcome

__all__ = ["Runs"]

_TIMES = tuple(entry.name for entry in fields(StepTimes))


@dataclass(slots=True, kw_only=True)
class Runs:
    """Gathers outcomes, and keeps a few numbers of each: hours of training may be thousands of runs."""

    full_count: int
    """Samples of a full share of a rank. Only steps with a full share are timed, so that ranks are comparable."""
    accuracies: list[float] = field(default_factory=list)
    num_evaluated: int = 0
    samples_per_s: list[float] = field(default_factory=list)
    _times: dict[str, list[float]] = field(default_factory=dict)
    _digests: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take in a training that ended well."""
        self.accuracies.append(outcome.accuracy)
        self.num_evaluated += outcome.num_evaluated
        self._digests.append(outcome.digest)
        if outcome.samples_per_s is not None:
            self.samples_per_s.append(outcome.samples_per_s)
        pairs = zip(outcome.times[WARMUP_STEPS:], outcome.local_counts[WARMUP_STEPS:], strict=True)
        steps = [times for times, local_count in pairs if local_count == self.full_count]
        for name in _TIMES if steps else ():
            self._times.setdefault(name, []).append(median(getattr(times, name) for times in steps))

    def times(self) -> dict[str, float]:
        """Seconds by the names of ``StepTimes``: medians over runs of medians over steps. Empty if none was timed."""
        return {name: median(values) for name, values in self._times.items()}

    def digest(self) -> str:
        """One digest of all runs: it differs between ranks if that of any run does."""
        if len(self._digests) == 1:
            return self._digests[0]
        return hashlib.sha256(" ".join(self._digests).encode()).hexdigest()
