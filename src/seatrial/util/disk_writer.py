"""Files on a disk that may answer nothing for minutes, as a file server in failover does. The caller never waits.

A thread opens and writes the files. All that it has not written yet waits in memory, up to a bound; the rest is left
out of the file and counted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from seatrial.files import create, open_to_append, open_to_read

_FULL_BYTES = 16 << 20
"""Waiting bytes from which nothing should come that can wait elsewhere."""
MOST_BYTES = 32 << 20
"""Waiting bytes of all files with which one that says nothing else takes no more. A node has up to hundreds of writers
in as many agents, and must not be short of memory for a disk."""
_PIECE_BYTES = 1 << 20
"""Written at once. The disk answers after each piece, so that a slow one is not taken for one that answers nothing."""
_MOST_OPEN = 64
"""Files that stay open: on a disk of the network opening one may take tens of milliseconds, and a piece may be a byte.
"""


class WrittenFile:
    """One file. Only its writer's methods change it."""

    def __init__(
        self,
        path: str,
        words_of_gap: Callable[[int], bytes],
        most_bytes: int,
        *,
        syncs: bool,
        returns: bool,
        is_new: bool,
    ) -> None:
        self.path, self.words_of_gap, self.most_bytes = path, words_of_gap, most_bytes
        self.syncs, self.returns, self.is_new = syncs, returns, is_new
        self.waiting = bytearray()
        self.written_bytes = 0
        """Bytes that were written to the file."""
        self.missing_bytes = 0
        """Bytes that will never be in the file."""
        self.left_out_bytes = 0
        """The last of the missing bytes, after all that waits."""
        self.lost_bytes = 0
        """Missing bytes before all that waits, of which the file does not speak yet."""
        self.error = ""
        """Why the disk took no more, where it said so."""
        self.is_refused = False
        """Whether it could not be opened. If it ``returns`` what was written, that waits then for ``take_back``."""
        self.is_there = False
        """Whether it was to be a new one, and another process of ours had made it."""
        self.is_closing = False
        self.then: Callable[[], None] = lambda: None
        """Called once it is closed."""
        self.opened: io.FileIO | None = None

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that are not in the file by now."""
        # In this order: the thread counts what is lost before it takes that from what waits.
        return len(self.waiting) + self.missing_bytes


class DiskWriter:
    """The thread, which starts with the first file, and what waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: OrderedDict[WrittenFile, None] = OrderedDict()
        """Files that are to be opened, written to or closed."""
        self._open: OrderedDict[WrittenFile, None] = OrderedDict()
        """The files that are open, the one that was written last at the end. Only the thread changes it."""
        self._num_waiting = 0
        self._busy_since = math.inf
        """When the disk was asked for what it has not done yet."""
        self._is_over = False
        self._thread: threading.Thread | None = None
        """Once it has ended, the next piece starts another one."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all files that wait."""
        return self._num_waiting

    def open(
        self,
        path: str,
        words_of_gap: Callable[[int], bytes],
        most_bytes: int | None = None,
        *,
        syncs: bool = False,
        returns: bool = False,
        is_new: bool = False,
    ) -> WrittenFile:
        """Have a file of the run opened to append.

        Args:
            path: the file.
            words_of_gap: returns what the file says in place of that many bytes that are missing.
            most_bytes: waiting bytes of all files with which this one takes no more.
            syncs: closing it writes it to the disk.
            returns: the caller takes back what was written where the file cannot be opened; else that is missing.
            is_new: one that exists is refused.
        """
        most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        file = WrittenFile(path, words_of_gap, most_bytes, syncs=syncs, returns=returns, is_new=is_new)
        with self._changed:
            self._is_over = False
            self._put(file)
        return file

    def write(self, file: WrittenFile, piece: bytes) -> None:
        """Append to a file, which is opened again if it was closed before."""
        with self._changed:
            if file.is_refused and not file.returns:
                file.missing_bytes += len(piece)
                return
            if self._num_waiting + len(piece) > file.most_bytes:
                _leave_out(file, len(piece))
                return
            self._append(file, piece)

    def leave_out(self, file: WrittenFile, num_bytes: int) -> None:
        """Have the file say, before what is written next, that this number of bytes is missing."""
        with self._changed:
            _leave_out(file, num_bytes)

    def close(self, file: WrittenFile, then: Callable[[], None] = lambda: None) -> None:
        """Have a file closed once all is written, before any is opened later, and ``then`` called."""
        with self._changed:
            self._append(file, b"")
            file.is_closing, file.then = True, then

    def take_back(self, file: WrittenFile) -> bytes:
        """Return what a file that was refused has not taken."""
        with self._changed:
            taken, file.waiting = bytes(file.waiting), bytearray()
            self._num_waiting -= len(taken)
            return taken

    def is_full(self) -> bool:
        """Return whether so much waits that nothing should come that can wait elsewhere."""
        return self._num_waiting >= _FULL_BYTES

    def silent_s(self) -> float:
        """Return for how long the disk has not answered."""
        return max(0.0, time.monotonic() - self._busy_since)

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until the disk has taken something, at most for that time."""
        with self._changed:
            if self.is_full():
                self._changed.wait(timeout_s)

    def finish(self, until: float, hurries: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the disk has taken all, at most until that time (monotonic). Return whether it has.

        ``hurries``: asked ten times a second whether to wait no more.
        """
        with self._changed:
            while self._due or self._busy_since < math.inf:
                left_s = until - time.monotonic()
                if left_s <= 0 or hurries():
                    return False
                self._changed.wait(min(0.1, left_s))
        return True

    def end(self, until: float, hurries: Callable[[], bool] = lambda: False) -> bool:
        """Wait as ``finish`` does, and have the thread end once all is written, unless another file is opened."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        thread = self._thread
        is_finished = self.finish(until, hurries)
        if is_finished and thread is not None:
            thread.join()
        return is_finished

    def _append(self, file: WrittenFile, piece: bytes) -> None:
        if file.left_out_bytes:
            piece = file.words_of_gap(file.left_out_bytes) + piece
            file.left_out_bytes = 0
        file.waiting += piece
        self._num_waiting += len(piece)
        if not file.is_refused:
            self._put(file)

    def _put(self, file: WrittenFile) -> None:
        if file not in self._due:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="disk writer", daemon=True)
                # It raises RuntimeError where this user has no process left: nothing is due then.
                thread.start()
                self._thread = thread
            self._due[file] = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    if self._is_over:
                        self._thread = None
                        return
                    self._changed.wait()
                file, _ = self._due.popitem(last=False)
                piece = bytes(file.waiting[:_PIECE_BYTES])
                closes = file.is_closing and len(piece) == len(file.waiting)
                self._busy_since = time.monotonic()
            lost_bytes = 0 if file.is_refused else _carry_out(file, piece)
            self._bound_open(file, closes=closes)
            with self._changed:
                self._busy_since = math.inf
                file.missing_bytes += lost_bytes
                if file.is_refused and not file.returns:
                    # Nobody comes for it, and what waits keeps others waiting.
                    file.missing_bytes += len(file.waiting)
                    self._num_waiting -= len(file.waiting)
                    file.waiting.clear()
                elif not file.is_refused:
                    del file.waiting[: len(piece)]
                    self._num_waiting -= len(piece)
                    if file.waiting:
                        self._put(file)
                        if file.is_closing:
                            self._due.move_to_end(file, last=False)
                self._changed.notify_all()

    def _bound_open(self, file: WrittenFile, *, closes: bool) -> None:
        """Close a file that has ended, or else the one that was written longest ago, where too many are open."""
        self._open.pop(file, None)
        if closes:
            _close(file)
            with contextlib.suppress(OSError):
                file.then()
        elif file.opened is not None and not file.opened.closed:
            self._open[file] = None
        if len(self._open) > _MOST_OPEN:
            _close(self._open.popitem(last=False)[0])


def _leave_out(file: WrittenFile, num_bytes: int) -> None:
    file.missing_bytes += num_bytes
    file.left_out_bytes += num_bytes


def _carry_out(file: WrittenFile, piece: bytes) -> int:
    """Open the file, unless it is open, and write the piece. Return how many bytes of it the disk did not take."""
    if file.opened is None or file.opened.closed:
        try:
            file.opened = _opened(file)
        except OSError as error:
            file.error = error.strerror or str(error)
            if file.opened is None:
                file.is_refused = True
                return 0
            file.lost_bytes += len(piece)
            return len(piece)
    if not piece:
        return 0
    head = file.words_of_gap(file.lost_bytes) if file.lost_bytes else b""
    data, written = head + piece, 0
    try:
        while written < len(data):
            # A disk that is full takes a part of it, and the error comes with the rest.
            count = file.opened.write(data[written:])
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count
            file.written_bytes += count
    except OSError as error:
        file.error = error.strerror or str(error)
    lost_bytes = min(len(piece), len(data) - written)
    file.lost_bytes = lost_bytes + (file.lost_bytes if written < len(head) else 0)
    return lost_bytes


def _opened(file: WrittenFile) -> io.FileIO:
    if not file.is_new or file.opened is not None:
        return open_to_append(file.path, run_folder=True)
    try:
        return create(file.path, run_folder=True)
    except FileExistsError:
        # It refuses one that a neighbor has put there.
        open_to_read(file.path, run_folder=True).close()
        file.is_there = True
        raise


def _close(file: WrittenFile) -> None:
    if file.opened is not None:
        try:
            if file.syncs:
                os.fsync(file.opened.fileno())
        except OSError as error:
            file.error = error.strerror or str(error)
        try:
            file.opened.close()
        except OSError as error:  # A disk of the network may say only now that it has not taken all.
            file.error = error.strerror or str(error)
