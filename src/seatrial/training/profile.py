"""A trace of a few steps of one rank, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from seatrial.errors import RequestError, SeatrialError
from seatrial.files import open_to_read, require_replaceable, write_atomically
from seatrial.folders import make_folders, open_above, passing_file

_SKIPPED = 5
"""First steps, in which torch allocates memory and chooses kernels."""
_RECORDED = 10


class StepProfile:
    """A recording of steps 6 to 15 of a training. Call ``step`` after each step, as ``Callbacks.on_step`` does.

    Only one rank may record: recording slows a step down, and the other ranks then wait for it. The trace goes by a
    descriptor of its folder: who can rename what lies above could put another folder of this user in its place, and
    have the file of that name there replaced.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        """Start to record; the trace goes to ``path``. Raises RequestError when the file cannot be written."""
        self._path = path
        self.is_written = False
        try:
            make_folders(path.parent)
            self._folder = open_above(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            require_replaceable(self._way())
        except OSError as error:
            os.close(self._folder)
            raise _unwritable(path, error) from error
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
        """Count one step. Raises SeatrialError when the trace cannot be written."""
        self._profiler.step()

    def stop(self) -> None:
        """Stop recording; the recorded steps of a training that ended early are written."""
        self._profiler.stop()
        os.close(self._folder)

    def _way(self) -> Path:
        return Path(f"/proc/self/fd/{self._folder}", self._path.name)

    def _write(self, profiler: Any) -> None:
        try:
            # torch opens a file by its name, and one more by a name in TMPDIR if it compresses.
            with passing_file(".json") as path:
                profiler.export_chrome_trace(path)
                with open_to_read(path, follows_links=False) as file:
                    content = file.read()
            write_atomically(self._way(), gzip.compress(content) if self._path.suffix == ".gz" else content)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SeatrialError(f"the profile could not be written to {self._path}: {reason}.") from error
        self.is_written = True


def _unwritable(path: Path, error: OSError) -> RequestError:
    return RequestError(
        f"--profile {path}: cannot write this file ({error.strerror or error}); name another one with --profile."
    )
