"""Where the time of a training step goes, on the host clock for a CPU and by events for a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

__all__ = ["WARMUP_STEPS", "Lap", "StepClock", "StepTimes", "Stopwatch", "note_ready", "synchronize", "typical"]

WARMUP_STEPS = 5
"""Steps that are trained as all others and left out of every timing."""

_MARKS = ("begin", "data", "ready", "reduced", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds that one rank spent in each part of one step."""

    data_s: float
    """Gathering the batch and bringing it to the device."""
    compute_s: float
    """Forward and backward, until the rank's own gradients were ready."""
    wait_s: float
    """From then until the sums over all ranks were there: what computing did not hide of communication."""
    optimizer_s: float


class StepClock:
    """Notes moments in the order begin, data, ready, reduced, end, over and over.

    On a GPU a moment is an event in its queue. Nothing here waits for the device: ``times`` is to be called
    when it is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._moments: dict[str, Any] = {}
        self._steps: list[tuple[Any, ...]] = []
        self._times: list[StepTimes] = []

    def mark(self, name: str) -> None:
        """Note that this moment of the step has come."""
        if self._cuda:
            moment: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            moment.record()
        else:
            moment = time.perf_counter()
        self._moments[name] = moment
        if name == _MARKS[-1]:
            self._steps.append(tuple(self._moments[mark] for mark in _MARKS))

    def times(self) -> list[StepTimes]:
        """The steps that have ended. The device must be done with them."""
        for moments in self._steps:
            data_s, compute_s, wait_s, optimizer_s = (
                self._between(moments[place], moments[place + 1]) for place in range(len(_MARKS) - 1)
            )
            self._times.append(StepTimes(data_s=data_s, compute_s=compute_s, wait_s=wait_s, optimizer_s=optimizer_s))
        self._steps.clear()
        return self._times

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1e3 if self._cuda else end - begin)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Time spent on training: it is stopped while something else is done. It waits for the device each time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._since: float | None = None

    def go(self) -> None:
        """Start, or go on."""
        synchronize(self._device)
        self._since = time.perf_counter()

    def stop(self) -> float:
        """Stand still; seconds so far."""
        synchronize(self._device)
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
        self._since = None
        return self._seconds

    def lap(self) -> float:
        """Seconds so far, without standing still."""
        seconds = self.stop()
        self.go()
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """Where a training stood at a moment."""

    seconds: float
    """On its stopwatch."""
    steps: int
    samples: int


def typical(steps: Sequence[StepTimes]) -> StepTimes:
    """The median of each part; zeros when there is no step."""
    names = [entry.name for entry in fields(StepTimes)]
    return StepTimes(**{name: median(getattr(times, name) for times in steps) if steps else 0.0 for name in names})


def note_ready(wrapped: DistributedDataParallel, clock: StepClock) -> None:
    """Note when the last gradient of the rank's own was ready.

    Backward ends at the layer that comes first, so its parameters tell when the gradients are there.
    """
    for parameter in [one for one in wrapped.parameters() if one.requires_grad][:2]:
        parameter.register_hook(lambda gradient: clock.mark("ready"))  # type: ignore[no-untyped-call]
