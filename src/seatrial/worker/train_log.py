"""The log of a training: one JSON line an epoch, in a file that several runs and their restarts append to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError

__all__ = ["EpochLog"]


class EpochLog:
    """For one rank of the job. Each line has ``run``, counted from 1 in the file, and ``epoch``."""

    def __init__(self, path: str | os.PathLike[str], *, goes_on: bool) -> None:
        """``goes_on``: this is the last run of the file again, after a restart or from a checkpoint.

        Raises RequestError where nothing can be written.
        """
        self.path = Path(path)
        runs: dict[int, set[int]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            text = self.path.read_bytes()
            # What was cut by a kill or a full disk must not be lengthened by our first line.
            if text and not text.endswith(b"\n"):
                os.write(self._fd, b"\n")
        except OSError as error:
            raise RequestError(
                f"--log {path}: it cannot be written ({error.strerror or error}); name another file with --log."
            ) from error
        for line in text.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                runs.setdefault(int(told["run"]), set()).add(int(told["epoch"]))
        last = max(runs, default=0)
        self.run = last if goes_on and last else last + 1
        self._known = runs.get(self.run, set())

    def add(self, epoch: int, told: dict[str, Any]) -> None:
        """Append an epoch. One that this run has told before is passed over: it was trained again after a restart.

        Raises OSError when the disk does not take it.
        """
        if epoch in self._known:
            return
        line = json.dumps({"run": self.run, "epoch": epoch, **told}, separators=(",", ":")).encode() + b"\n"
        # One write, so that no reader ever sees half of it.
        if os.write(self._fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._known.add(epoch)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)
