"""The time of each part of a training step: by the host clock on a CPU, by events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

WARMUP_STEPS = 5
"""First steps, trained like all others but excluded from timings."""

_MARKS = ("begin", "data", "ready", "reduced", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds that one rank spent in each part of one step."""

    data_s: float
    """Collecting the batch and copying it to the device."""
    compute_s: float
    """Forward and backward, until the rank's own gradients were ready."""
    wait_s: float
    """From then until the sums over all ranks were there: communication that computation did not hide."""
    optimizer_s: float
    """The optimizer step."""


class StepClock:
    """Records the moments begin, data, ready, reduced and end of each step, in this order.

    On a GPU a moment is an event in its queue. Nothing here waits for the device; call ``times`` when it has finished.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._moments: dict[str, Any] = {}
        self._steps: list[tuple[Any, ...]] = []
        self._times: list[StepTimes] = []

    def mark(self, name: str) -> None:
        """Record that this moment of the step has come."""
        if self._cuda:
            moment: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            moment.record()
        else:
            moment = time.perf_counter()
        self._moments[name] = moment
        if name == _MARKS[-1]:
            self._steps.append(tuple(self._moments[mark] for mark in _MARKS))

    def times(self) -> list[StepTimes]:
        """Return the times of the steps that have ended. The device must have finished them."""
        for moments in self._steps:
            data_s, compute_s, wait_s, optimizer_s = (
                self._between(moments[index], moments[index + 1]) for index in range(len(_MARKS) - 1)
            )
            self._times.append(StepTimes(data_s=data_s, compute_s=compute_s, wait_s=wait_s, optimizer_s=optimizer_s))
        self._steps.clear()
        return self._times

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1e3 if self._cuda else end - begin)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work.

    After a collective, before its result is read: in this frame a stack shows that a rank waits for the others.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Time spent on training; stop it for everything else. Each call waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._since: float | None = None

    def go(self) -> None:
        """Start or continue."""
        synchronize(self._device)
        self._since = time.perf_counter()

    def stop(self) -> float:
        """Stop, and return the seconds so far."""
        synchronize(self._device)
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
        self._since = None
        return self._seconds

    def lap(self) -> float:
        """Return the seconds so far, without stopping."""
        seconds = self.stop()
        self.go()
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """The progress of a training at one moment."""

    seconds: float
    """Reading of its stopwatch."""
    steps: int
    samples: int


def median_times(steps: Sequence[StepTimes]) -> StepTimes:
    """Return the median of each part over the steps; zeros when there is no step."""
    names = [entry.name for entry in fields(StepTimes)]
    return StepTimes(**{name: median(getattr(times, name) for times in steps) if steps else 0.0 for name in names})


def note_ready(wrapped: DistributedDataParallel, clock: StepClock) -> None:
    """Mark ``ready`` on the clock when the last gradient of this rank is ready.

    Backward ends at the layer that comes first in forward, so hooks on the first parameters fire last.
    """
    for parameter in [one for one in wrapped.parameters() if one.requires_grad][:2]:
        parameter.register_hook(lambda gradient: clock.mark("ready"))  # type: ignore[no-untyped-call]
