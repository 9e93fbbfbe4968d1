"""The log of a training: one JSON line per epoch, in a file that several runs and their restarts append to."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from seatrial.errors import RequestError
from seatrial.files import open_to_append
from seatrial.folders import make_folders, open_judged

_MOST_BYTES = 64 << 20
"""Size of a log, which has about 400 bytes for each epoch. Users of a group may make it longer."""
_LARGEST = 1 << 63
_BEGINNING = b'{"run":'
"""Each line of a log begins in this way, also one that a kill has cut."""


class EpochLog:
    """The log file, open for one rank of the job.

    Each line has ``run``, counted from 1 in the file, ``epoch`` and ``step``.
    """

    def __init__(self, path: str | os.PathLike[str], checkpoint_dir: str | None, *, continued: bool) -> None:
        """Open the file and choose the number of this run.

        ``continued``: this training was restarted or resumed, so it takes the number of the last run in the file with
        the same ``checkpoint_dir``. Raises RequestError when the file cannot be written.
        """
        self.path = Path(path)
        self._folder = None if checkpoint_dir is None else os.path.abspath(checkpoint_dir)
        epochs_by_run: dict[int, set[tuple[int, int]]] = {}
        last_run = last_run_here = 0
        try:
            make_folders(self.path.parent)
            opened, exchanged_by = open_judged(self.path.parent)
            try:
                self._file = open_to_append(f"/proc/self/fd/{opened}/{self.path.name}")
            finally:
                os.close(opened)
            text = b""
            # A file system may give less than what was asked for.
            while len(text) <= _MOST_BYTES and (part := self._file.read(_MOST_BYTES + 1 - len(text))):
                text += part
            if len(text) > _MOST_BYTES:
                self._file.close()
                raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES >> 20} MiB")
            if text and exchanged_by and not text.startswith(_BEGINNING):
                # It may be any file of this user, in another folder that somebody has put there.
                self._file.close()
                raise OSError(errno.EPERM, f"it is no log of a training, and {exchanged_by}")
            # A kill or a full disk may have cut the last line; a new line must not be appended to it.
            if text and not text.endswith(b"\n"):
                self._file.write(b"\n")
        except OSError as error:
            raise RequestError(
                f"--log {path}: cannot write this file ({error.strerror or error}); name another one with --log."
            ) from error
        for line in text.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                row = json.loads(line)
                run, epoch, folder = row["run"], (row["epoch"], row["step"]), row["checkpoint_dir"]
                # Others may write here: a number of thousands of digits could not be written again.
                if not all(type(number) is int and 0 <= number < _LARGEST for number in (run, *epoch)):
                    continue
                epochs_by_run.setdefault(run, set()).add(epoch)
                last_run = max(last_run, run)
                if folder == self._folder:
                    last_run_here = max(last_run_here, run)
        self.run = last_run_here if continued and last_run_here else last_run + 1
        """The number of this run."""
        self._known = epochs_by_run.get(self.run, set())

    def add(self, epoch: int, step: int, summary: dict[str, Any]) -> None:
        """Append one epoch, as far as it was trained at ``step``; skip one that this run has logged before a restart.

        Raises OSError when the disk does not take the line.
        """
        if (epoch, step) in self._known:
            return
        row = {"run": self.run, "epoch": epoch, "step": step, **summary, "checkpoint_dir": self._folder}
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        # One write call, so that a reader never sees half a line.
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._known.add((epoch, step))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
