"""The files with the output of remote ranks, as it arrives from their agents in pieces."""

from __future__ import annotations

import base64
import contextlib
import io
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from seatrial.files import create, open_to_append, open_to_read
from seatrial.protocol.commands import PIECE_BYTES, RankLog
from seatrial.protocol.fields import MOST_GENERATIONS

_MAX_RANK_BYTES = 1 << 30
"""For all files of a rank together: an agent that lies must not fill the disk of the controller."""
_MOST_OPEN = 64
"""Files that stay open: on a disk of the network opening one may take tens of milliseconds, and a piece may be a byte.
"""
_MOST_NOTES = 8


@dataclass
class _File:
    """The file of one rank and generation."""

    rank: int
    has_bytes: int = 0
    """Bytes of output up to which the file is written, gaps included."""
    total_bytes: int = 0
    """Bytes of output of which this process knows."""
    gap_bytes: int = 0
    is_complete: bool = False
    """Whether the last piece has arrived."""
    is_other: bool = False
    """Whether somebody else writes this file: an agent on this machine, which reaches the folder."""


class RankLogs:
    """Writes the pieces of each rank to one file in the folder of the run, and knows what is missing in it."""

    def __init__(self, folder: Path, world_size: int, generations: int = MOST_GENERATIONS) -> None:
        """``generations``: how many the run can have; each one of a rank is a file."""
        self._folder, self._world_size, self._generations = folder, world_size, generations
        self._begun = 0
        """The generation that began last."""
        self._newest = Counter[int]()
        """Rank -> the generation of its last piece. Its agent sends the output of one after the other, so that one file
        of each rank is written at a time."""
        self._files: dict[str, _File] = {}
        self._open: dict[str, io.FileIO] = {}
        """The files that were written last, the latest at the end."""
        self._rank_bytes: Counter[int] = Counter()
        """Rank -> bytes in all of its files."""

    def begin(self, generation: int) -> None:
        """Take note that a generation begins: before it does, no rank of it prints anything."""
        self._begun = max(self._begun, min(generation, self._generations - 1))

    def take(self, message: RankLog) -> None:
        """Append a piece. Where pieces are missing before it, a line in the file says so.

        Raises KeyError, TypeError or ValueError for a malformed message.
        """
        rank, generation, at = message["rank"], message["gen"], message["at"]
        if not (type(rank) is type(generation) is type(at) is int and 0 <= at < 1 << 62):
            raise ValueError("the place of a piece of output is no number")
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
            self._close(f"rank{rank}.gen{self._newest[rank]}.log")
            self._newest[rank] = generation
        if name not in self._files:
            self._files[name] = _File(rank=rank, is_other=not self._create(name))
        file = self._files[name]
        if file.is_complete or at < file.total_bytes:
            raise ValueError(f"rank {rank}: a piece of output came twice, or after the last one")
        file.is_complete = message["last"] is True
        if not file.is_other:
            self._append(name, file, at, piece)
        if file.is_complete:
            self._close(name)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._open):
            self._close(name)

    def _close(self, name: str) -> None:
        if name in self._open:
            with contextlib.suppress(OSError):
                self._open.pop(name).close()

    def _create(self, name: str) -> bool:
        """Return whether this process is the one that writes the file; what it cannot write is counted."""
        path = self._folder / name
        with contextlib.suppress(OSError):
            try:
                create(path, run_folder=True).close()
            except FileExistsError:
                # One that a neighbor has put there has no output.
                open_to_read(path, run_folder=True).close()
                return False
        return True

    def _append(self, name: str, file: _File, at: int, piece: bytes) -> None:
        gap = at - file.has_bytes
        head = b"\nseatrial: %d bytes of output are missing here\n" % gap if gap else b""
        file.total_bytes = at + len(piece)
        if self._rank_bytes[file.rank] + len(head) + len(piece) > _MAX_RANK_BYTES:
            return
        try:
            written = self._opened(name).write(head + piece)
        except OSError:
            self._close(name)
            return
        self._rank_bytes[file.rank] += written
        if written > len(head):
            file.gap_bytes += gap
            file.has_bytes = at + written - len(head)

    def _opened(self, name: str) -> io.FileIO:
        opened = self._open.pop(name, None) or open_to_append(self._folder / name, run_folder=True)
        self._open[name] = opened
        if len(self._open) > _MOST_OPEN:
            self._close(next(iter(self._open)))
        return opened

    def notes(self) -> list[str]:
        """Return what is missing, a sentence for each rank."""
        found = []
        for name, file in sorted(self._files.items(), key=lambda item: item[1].rank):
            if file.is_other:
                continue
            missing_bytes = file.gap_bytes + file.total_bytes - file.has_bytes
            if missing_bytes:
                found.append(
                    f"rank {file.rank}: {missing_bytes} bytes of its output could not be kept: its node could not"
                    f" send them in time, or this disk takes no more; {name} says where they are missing, unless that"
                    " is the end"
                )
            elif not file.is_complete:
                found.append(f"rank {file.rank}: the end of its output did not arrive, so {name} may be cut")
        return [*found[:_MOST_NOTES], *([f"and {len(found) - _MOST_NOTES} more"] if len(found) > _MOST_NOTES else [])]
