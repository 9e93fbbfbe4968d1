"""Where the time of a training step goes, on the host clock for a CPU and by events for a GPU."""

# No ``from __future__ import annotations`` here: DistributedDataParallel compares the annotations of a hook with the
# classes themselves, and refuses their names as text.

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["StepClock", "StepTimes", "timed_mean"]

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


def timed_mean(
    clock: StepClock, group: dist.ProcessGroup
) -> Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """A DDP communication hook: the usual mean over all ranks, noting when the last local gradient was ready."""

    def reduce_bucket(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            clock.mark("ready")
        gradients = bucket.buffer().div_(group.size())
        work: Any = dist.all_reduce(gradients, group=group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    return reduce_bucket
