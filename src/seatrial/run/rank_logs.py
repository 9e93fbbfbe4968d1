"""The files with the output of remote ranks, as it arrives from their agents in pieces.

A thread writes them: agents that hear nothing for 30 s end their ranks, and the disk may answer nothing for longer.
"""

from __future__ import annotations

import base64
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seatrial.protocol.commands import PIECE_BYTES, RankLog
from seatrial.protocol.fields import MOST_GENERATIONS
from seatrial.util.disk_writer import DiskWriter, WrittenFile

_MAX_RANK_BYTES = 1 << 30
"""For all files of a rank together: an agent that lies must not fill the disk of the controller."""
_MOST_WAITING_BYTES = 320 << 20
"""Bytes of all ranks that wait for the disk; those of one rank: at 1 MB/s, of four minutes."""
_SHARE = 4
"""No more bytes of a file wait than this number times what is left, so that ranks that print without end leave some."""
_LAST_WRITE_S = 60.0
"""Time for the disk to take the rest at the end."""
_GAP_WORDS = b"\nseatrial: %d bytes of output are missing here\n"
_MOST_NOTES = 8


@dataclass
class _File:
    """The file of one rank and generation."""

    rank: int
    total_bytes: int = 0
    """Bytes of output of which this process knows."""
    lost_bytes: int = 0
    """Bytes that came while no thread could be started to write them."""
    is_complete: bool = False
    """Whether the last piece has arrived."""
    is_closed: bool = False
    written: WrittenFile | None = None


class RankLogs:
    """Writes the pieces of each rank to one file in the folder of the run, and knows what is missing in it."""

    def __init__(
        self, folder: Path, world_size: int, generations: int = MOST_GENERATIONS, *, is_kept: bool = True
    ) -> None:
        """Begin without a file.

        ``generations``: how many the run can have; each one of a rank is a file. ``is_kept``: False where the pieces
        are only judged, and somebody else writes them.
        """
        self._folder, self._world_size, self._generations, self._is_kept = folder, world_size, generations, is_kept
        self._start = -1
        """The start of the conductor that began last. It counts its generations from 0, as the one before did: those of
        the second one begin with 1."""
        self._begun = 0
        """The generation that began last, of all starts."""
        self._newest = Counter[int]()
        """Rank -> the generation of its last piece. Its agent sends the output of one after the other, so that one file
        of each rank is written at a time."""
        self._files: dict[str, _File] = {}
        self._disk = DiskWriter()
        self._rank_bytes: Counter[int] = Counter()
        """Rank -> bytes in all of its files."""

    def begin_start(self) -> None:
        """Take note that the conductor in the pods has started, perhaps once more with all pods."""
        self._start = min(self._start + 1, self._generations - 1)

    def begin(self, generation: int) -> None:
        """Take note that a generation begins: before it does, no rank of it prints anything."""
        self._begun = max(self._begun, min(self._of_run(generation), self._generations - 1))

    def _of_run(self, generation: int) -> int:
        return max(0, self._start) + generation

    def take(self, message: RankLog) -> None:
        """Append a piece. Where pieces are missing before it, a line in the file says so.

        Raises KeyError, TypeError or ValueError for a malformed message.
        """
        rank, generation, at = message["rank"], message["gen"], message["at"]
        if not (type(rank) is type(generation) is type(at) is int and 0 <= at < 1 << 62):
            raise ValueError("the place of a piece of output is no number")
        generation = self._of_run(generation)
        if not (0 <= rank < self._world_size and self._newest[rank] <= generation <= self._begun):
            raise ValueError(f"rank {rank}, generation {generation}: no such rank prints in this run by now")
        unpack = zlib.decompressobj()
        try:
            piece = unpack.decompress(base64.b64decode(message["data"], validate=True), PIECE_BYTES + 1)
        except zlib.error as error:
            raise ValueError(f"a piece of output cannot be unpacked ({error})") from error
        if len(piece) > PIECE_BYTES or not unpack.eof:
            raise ValueError(f"a piece of output has more than {PIECE_BYTES} bytes, or is cut")
        name = f"rank{rank}.gen{generation}.log"
        if generation > self._newest[rank]:
            if (before := self._files.get(f"rank{rank}.gen{self._newest[rank]}.log")) is not None:
                self._close(before)
            self._newest[rank] = generation
        file = self._files.setdefault(name, _File(rank=rank))
        if file.is_complete or at < file.total_bytes:
            raise ValueError(f"rank {rank}: a piece of output came twice, or after the last one")
        file.is_complete = message["last"] is True
        gap_bytes, file.total_bytes = at - file.total_bytes, at + len(piece)
        if not self._is_kept:
            return
        with contextlib.suppress(RuntimeError):  # this user has no process left: the next piece tries again
            file.written = file.written or self._opened(name)
        if file.written is None:
            file.lost_bytes += gap_bytes + len(piece)
        else:
            self._append(file, file.written, gap_bytes, piece)
        if file.is_complete:
            self._close(file)

    def close(self, hurries: Callable[[], bool] = lambda: False) -> None:
        """Close all files, once the disk has taken what waits for it, or a minute is over.

        ``hurries``: asked ten times a second whether to wait no more.
        """
        for file in self._files.values():
            self._close(file)
        self._disk.end(time.monotonic() + _LAST_WRITE_S, hurries)

    def _close(self, file: _File) -> None:
        if file.written is not None and not file.is_closed:
            file.is_closed = True
            self._disk.close(file.written)

    def _opened(self, name: str) -> WrittenFile:
        # Where an agent on this machine reaches the folder, the file that is there is its own.
        return self._disk.open(str(self._folder / name), _GAP_WORDS.__mod__, _MOST_WAITING_BYTES, is_new=True)

    def _append(self, file: _File, written: WrittenFile, gap_bytes: int, piece: bytes) -> None:
        self._disk.leave_out(written, gap_bytes + file.lost_bytes)
        file.lost_bytes = 0
        head_bytes = len(_GAP_WORDS % written.left_out_bytes) if written.left_out_bytes else 0
        room_bytes = _SHARE * (_MOST_WAITING_BYTES - self._disk.waiting_bytes)
        if (
            len(written.waiting) + len(piece) > room_bytes
            or self._rank_bytes[file.rank] + head_bytes + len(piece) > _MAX_RANK_BYTES
        ):
            self._disk.leave_out(written, len(piece))
            return
        self._rank_bytes[file.rank] += head_bytes + len(piece)
        self._disk.write(written, piece)

    def notes(self) -> list[str]:
        """Return what is missing, a sentence for each rank."""
        found = []
        for name, file in sorted(self._files.items(), key=lambda item: item[1].rank):
            if not self._is_kept or (file.written is not None and file.written.is_there):
                continue
            missing_bytes = file.lost_bytes + (file.written.unwritten_bytes if file.written is not None else 0)
            if missing_bytes:
                found.append(
                    f"rank {file.rank}: {missing_bytes} bytes of its output could not be kept: its node could not"
                    f" send them in time, or this disk did not take them{self._why(file.written)}; {name} says where"
                    " they are missing, unless that is the end"
                )
            elif not file.is_complete:
                found.append(f"rank {file.rank}: the end of its output did not arrive, so {name} may be cut")
        return [*found[:_MOST_NOTES], *([f"and {len(found) - _MOST_NOTES} more"] if len(found) > _MOST_NOTES else [])]

    def _why(self, written: WrittenFile | None) -> str:
        """Return what the disk said, or that it says nothing, in parentheses."""
        if written is None:
            return " (this user has no process left)"
        if written.error:
            return f" ({written.error})"
        return f" (it has not answered for {self._disk.silent_s():.0f} s)" if written.waiting else ""
