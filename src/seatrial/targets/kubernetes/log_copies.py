"""Copies of the logs of pods in the folder of the run, whose disk may answer nothing, or be full.

A thread writes them, and one reads them: neither Ctrl-C nor the deletion of the objects waits for a disk. The copy
lacks the lines that the disk does not take.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from seatrial.agent.disk_question import DiskQuestion
from seatrial.files import has_entry, open_run_folder, open_to_read, rename_durably
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.targets.processes import LAST_ANSWER_S
from seatrial.util.disk_writer import DiskWriter, WrittenFile

_GAP_WORDS = b"\nseatrial: %d bytes of the log are missing here\n"
_GAP = re.compile(rb"\nseatrial: \d+ bytes of the log are missing here\n")
_LAST_WRITE_S = 60.0
"""Time for the disk to take the rest at the end."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part of the copy of a log, and what one question to the disk tells of both."""

    data: bytes
    is_whole: bool
    """Whether the copy had all lines of its log that were read before the question. False where it could not be read.
    """

    @property
    def text(self) -> str:
        """The same as text."""
        return self.data.decode(errors="replace")


_UNREAD = CopiedPart(b"", is_whole=False)


class LogCopies:
    """The copies of all logs of a run, those of earlier attempts and of earlier pods with the same name, too.

    Operators give the pods of all starts the same names, so the copy of another pod is none of this one. People read
    both: the newest one is in NAME.log, and those before it in NAME.1.log and so on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = DiskWriter()
        self._files: list[WrittenFile] = []
        self._current: dict[str, tuple[str, WrittenFile]] = {}
        """Name of a pod -> uid of the newest one with a copy, and that copy."""
        self._lacking: set[WrittenFile] = set()
        """Copies that end before their logs."""
        self._late: set[str] = set()
        """The uids of the pods whose copies may lack the beginning of their logs."""
        self._unanswered: DiskQuestion[CopiedPart] | None = None
        """The last question, while the disk has not answered it."""

    def open(self, pod: PodStatus) -> WrittenFile:
        """Return the copy of the log of a pod; that of an earlier pod with its name gets another name.

        Raises RuntimeError where this user has no process left.
        """
        uid, before = self._current.get(pod.name, ("", None))
        if before is not None and uid == pod.uid:
            return before
        path = self._path(pod)
        if before is not None:
            self._disk.close(before, partial(_put_aside, path))
        # Where an earlier copy is still there, all of this log counts as missing.
        file = self._disk.open(str(path), _GAP_WORDS.__mod__, is_new=True)
        self._files.append(file)
        self._current[pod.name] = pod.uid, file
        return file

    def write(self, file: WrittenFile, line: bytes) -> None:
        """Append to a copy."""
        with contextlib.suppress(RuntimeError):  # this user has no process left: the next line tries again
            self._disk.write(file, line)

    def end_early(self, file: WrittenFile, words: bytes) -> None:
        """Append these words, after which the copy lacks the rest of its log."""
        self._lacking.add(file)
        self.write(file, words)

    def begin_late(self, pod: PodStatus) -> None:
        """Take note that a pod has written before its log is read: its kubelet keeps only the newest part of that."""
        self._late.add(pod.uid)

    def begins_late(self, pod: PodStatus) -> bool:
        """Return whether the copy of a log may lack its beginning."""
        return pod.uid in self._late

    def close(self, file: WrittenFile) -> None:
        """Have a copy closed: of thousands of pods no file may stay open."""
        if not file.is_closing:
            self._disk.close(file)

    def is_full(self) -> bool:
        """Return whether so much waits for the disk that no log should be read that can be read later."""
        return self._disk.is_full()

    def beginning(self, pod: PodStatus, max_bytes: int) -> CopiedPart:
        """Return the beginning of a copy; empty where there is none, or its disk does not answer in time."""
        return self._read(pod, 0, max_bytes)

    def end(self, pod: PodStatus, max_bytes: int) -> CopiedPart:
        """Return the end of a copy, as ``beginning`` does; of one that lacks something only what comes before that."""
        part = self._read(pod, -max_bytes, max_bytes)
        return part if part.is_whole else replace(part, data=_GAP.split(part.data, maxsplit=1)[0])

    def finish(self, hurries: Callable[[], bool]) -> Iterator[str]:
        """Close all copies, for which the disk has a minute. Yields a sentence for each copy that lacks something.

        ``hurries``: asked ten times a second whether to wait no more.
        """
        files, self._files = self._files, []
        for file in files:
            self.close(file)
        self._disk.end(time.monotonic() + _LAST_WRITE_S, hurries)
        lacking = [file for file in files if file.unwritten_bytes or (file.error and not file.is_refused)]
        for file in lacking[:_MOST_NAMED]:
            what = f"{num} bytes of a log are" if (num := file.unwritten_bytes) else "lines of a log may be"
            why = file.error or f"the disk has not answered for {self._disk.silent_s():.0f} s"
            yield f"{what} missing in {Path(file.path).name} ({why})"
        if len(lacking) > _MOST_NAMED:
            yield f"parts of logs are missing in {len(lacking) - _MOST_NAMED} more files"

    def _path(self, pod: PodStatus) -> Path:
        return self._folder / f"{pod.name}.log"

    def _copy_of(self, pod: PodStatus) -> WrittenFile | None:
        uid, file = self._current.get(pod.name, ("", None))
        return file if uid == pod.uid else None

    def _read(self, pod: PodStatus, start: int, max_bytes: int) -> CopiedPart:
        """Return a part of a copy, once all is written that was read before. An answer that is late is waited for once,
        and no other question is asked until it is there.
        """
        file = self._copy_of(pod)
        if file is None:
            return _UNREAD
        self._disk.finish(time.monotonic() + LAST_ANSWER_S, lambda: self._disk.silent_s() > LAST_ANSWER_S)
        if file.opened is None:  # an earlier copy may still have its name
            return _UNREAD
        if self._unanswered is not None and not self._unanswered.is_answered(0.0):
            return _UNREAD
        # Before it is read: the disk may take the rest meanwhile, and this part lacks it all the same.
        lacks = file in self._lacking or file.unwritten_bytes > 0 or bool(file.error)
        ask = partial(_read, self._path(pod), start, max_bytes, file.written_bytes)
        self._unanswered = question = DiskQuestion(ask)
        if not question.is_answered(LAST_ANSWER_S):
            return _UNREAD
        try:
            part = question.answer()
        except (OSError, RuntimeError):  # no process is left to this user
            return _UNREAD
        return replace(part, is_whole=False) if lacks else part


def _read(path: Path, start: int, max_bytes: int, written_bytes: int) -> CopiedPart:
    """Return a part of a file of ours, which is whole if the file is as long as what was written to it: its folder may
    have been moved, and another one made there. ``start``: from its end where it is negative.

    Raises OSError where it cannot be read, or another user has put a link or another file in its place.
    """
    with open_to_read(path, run_folder=True) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size + start) if start < 0 else start)
        return CopiedPart(file.read(max_bytes), is_whole=size == written_bytes)


def _put_aside(path: Path) -> None:
    folder = open_run_folder(str(path.parent))
    try:
        way = Path(f"/proc/self/fd/{folder}", path.name)
        free = (way.with_suffix(f".{number}.log") for number in itertools.count(1))
        rename_durably(way, next(other for other in free if not has_entry(other)))
    finally:
        os.close(folder)
