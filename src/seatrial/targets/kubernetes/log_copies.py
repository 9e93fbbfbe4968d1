"""Copies of the logs of pods in the folder of the run, whose disk may answer nothing, or be full.

A thread writes them, and one reads them: neither Ctrl-C nor the deletion of the objects waits for a disk. The copy
lacks the lines that the disk does not take.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from seatrial.agent.disk_question import DiskQuestion
from seatrial.files import open_to_read, rename_durably
from seatrial.targets.processes import LAST_ANSWER_S
from seatrial.util.disk_writer import DiskWriter, WrittenFile

_GAP_WORDS = b"\nseatrial: %d bytes of the log are missing here\n"
_GAP = re.compile(rb"\nseatrial: \d+ bytes of the log are missing here\n")
_LAST_WRITE_S = 60.0
"""Time for the disk to take the rest at the end."""
_MOST_NAMED = 8


class LogCopies:
    """The copies of all logs of a run, those of earlier attempts and of earlier pods with the same name, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = DiskWriter()
        self._files: list[WrittenFile] = []
        self._current: dict[str, WrittenFile] = {}
        """Name -> the copy that has this name now."""
        self._lacking: set[WrittenFile] = set()
        """Copies that end before their logs, or could not be read."""
        self._unanswered: DiskQuestion[bytes] | None = None
        """The last question, while the disk has not answered it."""

    def open(self, name: str) -> WrittenFile:
        """Return the copy of the log of a pod. Raises RuntimeError where this user has no process left."""
        file = self._disk.open(str(self._path(name)), _GAP_WORDS.__mod__)
        self._files.append(file)
        self._current[name] = file
        return file

    def write(self, file: WrittenFile, line: bytes) -> None:
        """Append to a copy."""
        with contextlib.suppress(RuntimeError):  # this user has no process left: the next line tries again
            self._disk.write(file, line)

    def end_early(self, file: WrittenFile, words: bytes) -> None:
        """Append these words, after which the copy lacks the rest of its log."""
        self._lacking.add(file)
        self.write(file, words)

    def close(self, file: WrittenFile) -> None:
        """Have a copy closed: of thousands of pods no file may stay open."""
        if not file.is_closing:
            self._disk.close(file)

    def put_aside(self, file: WrittenFile, name: str) -> None:
        """Have a copy closed, and give it another name: another pod has its name now."""
        self._disk.close(file, partial(_put_aside, self._path(name)))
        self._current.pop(name, None)

    def is_full(self) -> bool:
        """Return whether so much waits for the disk that no log should be read that can be read later."""
        return self._disk.is_full()

    def beginning(self, name: str, max_bytes: int) -> bytes:
        """Return the beginning of a copy; empty where there is none, or its disk does not answer in time."""
        return self._read(name, 0, max_bytes)

    def end(self, name: str, max_bytes: int) -> bytes:
        """Return the end of a copy, as ``beginning`` does; of one that lacks something only what comes before that."""
        text = self._read(name, -max_bytes, max_bytes)
        return _GAP.split(text, maxsplit=1)[0] if self.lacks(name) else text

    def lacks(self, name: str) -> bool:
        """Return whether a copy lacks lines of its log that were read, or could not be read itself. Ask this after it
        was read."""
        file = self._current.get(name)
        return file is not None and (file in self._lacking or file.unwritten_bytes > 0)

    def finish(self, hurries: Callable[[], bool]) -> Iterator[str]:
        """Close all copies, for which the disk has a minute. Yields a sentence for each copy that lacks something.

        ``hurries``: asked ten times a second whether to wait no more.
        """
        files, self._files = self._files, []
        for file in files:
            self.close(file)
        self._disk.end(time.monotonic() + _LAST_WRITE_S, hurries)
        lacking = [file for file in files if file.unwritten_bytes]
        for file in lacking[:_MOST_NAMED]:
            why = file.error or f"the disk has not answered for {self._disk.silent_s():.0f} s"
            yield f"{file.unwritten_bytes} bytes of a log are missing in {Path(file.path).name} ({why})"
        if len(lacking) > _MOST_NAMED:
            yield f"parts of logs are missing in {len(lacking) - _MOST_NAMED} more files"

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _read(self, name: str, start: int, max_bytes: int) -> bytes:
        text = self._answer(partial(_read, self._path(name), start, max_bytes))
        if text is None and name in self._current:
            self._lacking.add(self._current[name])
        return text or b""

    def _answer(self, ask: Callable[[], bytes]) -> bytes | None:
        """Return the answer of the disk, once all is written that was read before. One that is late is waited for once,
        and no other question is asked until it is there.
        """
        self._disk.finish(time.monotonic() + LAST_ANSWER_S, lambda: self._disk.silent_s() > LAST_ANSWER_S)
        if self._unanswered is not None and not self._unanswered.is_answered(0.0):
            return None
        self._unanswered = question = DiskQuestion(ask)
        if not question.is_answered(LAST_ANSWER_S):
            return None
        try:
            return question.answer()
        except (OSError, RuntimeError):  # no process is left to this user
            return None


def _read(path: Path, start: int, max_bytes: int) -> bytes:
    """Return a part of a file of ours. ``start``: from its end where it is negative.

    Raises OSError where it cannot be read, or another user has put a link or another file in its place.
    """
    with open_to_read(path, run_folder=True) as file:
        file.seek(max(0, file.seek(0, 2) + start) if start < 0 else start)
        return file.read(max_bytes)


def _put_aside(path: Path) -> None:
    free = (path.with_suffix(f".{number}.log") for number in itertools.count(1))
    rename_durably(path, next(other for other in free if not other.exists()), run_folder=True)
