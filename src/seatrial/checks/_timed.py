"""How long one call takes on a device, again and again for a while."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.worker.device import Device

__all__ = ["gpu_seconds", "timed"]

_WARM_UPS = 2
_READINGS = 3


def timed(device: Device, call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Median seconds of one call after warm-up, in at least ``seconds``, and the CPU time used meanwhile as a share of
    what this process's threads could use."""
    import torch

    for _ in range(_WARM_UPS):
        call()
    device.synchronize()
    started, used = time.perf_counter(), time.process_time()
    readings: list[float] = []
    last = started
    while len(readings) < _READINGS or last - started < seconds:
        if device.type == "cpu":
            call()
            now = time.perf_counter()
            readings.append(now - last)
        else:
            # Queued in tens, so that the device never waits for the host.
            readings += gpu_seconds(device, call, 10)
            now = time.perf_counter()
        last = now
    used, wall = time.process_time() - used, time.perf_counter() - started
    return median(readings), used / (wall * torch.get_num_threads())


def gpu_seconds(device: Device, call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of so many calls, by the clock of the device."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    device.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]
