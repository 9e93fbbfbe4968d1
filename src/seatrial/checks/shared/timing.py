"""The time that one call takes on a device, measured repeatedly."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from seatrial.evidence.statistics import median
from seatrial.probe.contention import CpuTime
from seatrial.rank.device import Device

_WARM_UPS = 2
_READINGS = 3
_QUEUED = 10
"""Calls queued on a GPU at once, so that it never waits for the host."""


def timed(device: Device, call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return the median seconds of one call after warm-up, and the part of the time in which our threads had a core.

    Times for at least ``seconds``.
    """
    import torch

    for _ in range(_WARM_UPS):
        call()
    device.synchronize()
    started, cpu = time.perf_counter(), CpuTime()
    readings: list[float] = []
    last = started
    while len(readings) < _READINGS or last - started < seconds:
        if device.type == "cpu":
            call()
            now = time.perf_counter()
            readings.append(now - last)
        else:
            readings += gpu_seconds(device, call, _QUEUED)
            now = time.perf_counter()
        last = now
    return median(readings), cpu.share(torch.get_num_threads())


def gpu_seconds(device: Device, call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each of ``repeats`` calls, by the clock of the device."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    device.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]
