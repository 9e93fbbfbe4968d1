"""A trace of a few steps of one rank, to look at in chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from seatrial.errors import SeatrialError

__all__ = ["StepProfile"]

_SKIPPED = 5
"""First steps, in which memory is allocated and kernels are chosen."""
_RECORDED = 10


class StepProfile:
    """Records steps 6 to 15 of a training into ``path``. ``step`` is to be called after each, as by ``Watch.on_step``.

    Only one rank is to have one: recording slows a step down, and the others then wait for it.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler: Any = profile(
            activities=activities,
            schedule=schedule(wait=_SKIPPED - 1, warmup=1, active=_RECORDED, repeat=1),
            on_trace_ready=self._write,
        )
        self._profiler.start()

    def step(self) -> None:
        """One step is over. Raises SeatrialError when the trace cannot be written."""
        self._profiler.step()

    def stop(self) -> None:
        """No more steps; what was recorded of a shorter training is written."""
        self._profiler.stop()

    def _write(self, profiler: Any) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            raise SeatrialError(f"the profile could not be written to {self._path}: {error}.") from error
