"""The output of ranks on its way to the conductor, from a node that does not reach the folder of the run.

The ranks never wait for the connection: their output goes to files without names on a disk of the node, and from there
in compressed pieces, so that little is left to send when they end.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from seatrial.protocol.commands import PIECE_BYTES, RankLog

_DISK_BYTES = 1 << 30
"""For the unsent output of all ranks of this node together. ``/tmp`` of a pod counts against the storage of its node,
and 1 GiB is a hundredth of the smallest disks."""
_END_BYTES = 1 << 18
"""The end of a rank's output, where its errors are; it is kept in memory when the disk takes no more."""
_REUSE_BYTES = 1 << 24
"""A file that is sent and longer than this is emptied."""
_INTERVAL_S = 1.0
"""How long less than a piece waits for more."""
_POD_BYTES_PER_S = 1 << 20
"""From all nodes of a run in pods together: kubelets look every 10 s whether a log has 10 MiB, and then begin another
file (``containerLogMonitorInterval``, ``containerLogMaxSize``). A reader that follows it must not fall behind."""
_LEAST_BYTES_PER_S = float(1 << 14)
"""For one node, however many there are: the end of the output must arrive in time."""


class OutputSpool:
    """The output of one rank: a queue of bytes, each with its place. What it cannot hold leaves a gap before the end.

    It takes the place of the log file of a ``RankProcess``.
    """

    def __init__(self, rank: int, generation: int, disk: Callable[[int], bool]) -> None:
        """``disk``: returns whether the disk may hold this number of bytes more, for all ranks together."""
        self.rank, self.generation = rank, generation
        self.closed = False
        """Whether the rank has ended."""
        self.over = False
        """Whether the last piece was taken."""
        self.on_disk = 0
        """Bytes in the file, sent or not."""
        self._may_grow = disk
        self._total = 0
        """Bytes that the rank has printed."""
        self._file: BinaryIO | None = None
        self._start = 0
        """Place of the first byte of the file in the output."""
        self._taken = 0
        """Bytes of the file that were taken."""
        self._end = b""
        """What follows in memory when the disk takes no more; it ends where the output ends."""
        self._taken_at = time.monotonic()

    def write(self, piece: bytes) -> None:
        """Append to the output."""
        self._total += len(piece)
        if self._end or not self._to_file(piece):
            self._end = (self._end + piece)[-_END_BYTES:]

    def close(self) -> None:
        """Note that nothing follows."""
        self.closed = True

    @property
    def unsent_bytes(self) -> int:
        return self.on_disk - self._taken + len(self._end)

    def is_due(self, now: float) -> bool:
        """Return whether there is enough to send, or something has waited long enough."""
        return self.closed or (
            self.unsent_bytes > 0 and (self.unsent_bytes >= PIECE_BYTES or now - self._taken_at >= _INTERVAL_S)
        )

    def take(self) -> RankLog:
        """Return the next piece, which may be empty."""
        self._taken_at = time.monotonic()
        if self._taken == self.on_disk and not self._end:
            at, piece = self._total, b""
        elif self._taken < self.on_disk and (piece := self._read()):
            at = self._start + self._taken
            self._taken += len(piece)
        else:
            at, piece = self._total - len(self._end), self._end[:PIECE_BYTES]
            self._end = self._end[PIECE_BYTES:]
            self._taken = self.on_disk
        if self._taken == self.on_disk and not self._end:
            self._reuse()
            self.over = self.closed
        data = base64.b64encode(zlib.compress(piece, 1)).decode()
        return RankLog(kind="log", rank=self.rank, gen=self.generation, at=at, data=data, last=self.over)

    def skip_to_end(self) -> None:
        """Leave out all but the end, since there is no more time."""
        self._taken = max(self._taken, self.on_disk - max(0, _END_BYTES - len(self._end)))

    def free(self) -> None:
        """Give the disk back."""
        if self._file is not None:
            self._file.close()
        self._file, self.on_disk, self._taken = None, 0, 0

    def _to_file(self, piece: bytes) -> bool:
        if not self._may_grow(len(piece)):
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by free
                self._start = self._total - len(piece)
            self._file.seek(self.on_disk)
            if self._file.write(piece) != len(piece):
                return False
        except OSError:
            return False
        self.on_disk += len(piece)
        return True

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            self._file.seek(self._taken)
            return self._file.read(min(PIECE_BYTES, self.on_disk - self._taken))
        except OSError:
            return b""

    def _reuse(self) -> None:
        """Let the file begin again where the output stands, if it is long or there is a gap behind it."""
        if self._file is not None and (self._start + self.on_disk != self._total or self.on_disk > _REUSE_BYTES):
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), 0)
            self._start, self.on_disk, self._taken = self._total, 0, 0


class OutputSpools:
    """The spools of a node: the next pieces to send, at a bounded rate where the conductor prints them into a log."""

    def __init__(self, *, in_pod: bool) -> None:
        self._spools: list[OutputSpool] = []
        self._bytes_per_s = float(_POD_BYTES_PER_S) if in_pod else None
        self._credit_bytes = 0.0
        self._credited_at = time.monotonic()

    def open(self, rank: int, generation: int) -> OutputSpool:
        """Return the spool of a rank that starts."""
        spool = OutputSpool(rank, generation, self._has_room)
        self._spools.append(spool)
        return spool

    def share(self, nodes: int) -> None:
        """Take note of how many nodes send to the same conductor."""
        if self._bytes_per_s is not None:
            self._bytes_per_s = max(_LEAST_BYTES_PER_S, _POD_BYTES_PER_S / max(1, nodes))

    def pieces(self, may_send: Callable[[], bool]) -> Iterator[RankLog]:
        """Yield what is due, each rank in its turn, for as long as ``may_send`` returns True."""
        while due := [spool for spool in self._first_of_ranks() if spool.is_due(time.monotonic())]:
            for spool in due:
                if not (may_send() and self._has_credit()):
                    return
                yield self._take(spool)

    def rest(self, until: float) -> Iterator[RankLog]:
        """Yield all that is left until that time (monotonic), then the end of each rank."""
        while self._spools:
            for spool in self._first_of_ranks():
                spool.close()
                while not self._has_credit() and time.monotonic() < until:
                    time.sleep(0.02)
                if time.monotonic() >= until:
                    spool.skip_to_end()
                yield self._take(spool)

    def _first_of_ranks(self) -> list[OutputSpool]:
        """Return what each rank printed first: the output of its next generation follows when all of that is sent."""
        first: dict[int, OutputSpool] = {}
        for spool in self._spools:
            first.setdefault(spool.rank, spool)
        return list(first.values())

    def _take(self, spool: OutputSpool) -> RankLog:
        piece = spool.take()
        self._credit_bytes -= len(piece["data"])
        if spool.over:
            spool.free()
            self._spools.remove(spool)
        return piece

    def _has_room(self, num_bytes: int) -> bool:
        return sum(spool.on_disk for spool in self._spools) + num_bytes <= _DISK_BYTES

    def _has_credit(self) -> bool:
        if self._bytes_per_s is None:
            return True
        now = time.monotonic()
        earned_bytes = (now - self._credited_at) * self._bytes_per_s
        self._credit_bytes = min(self._bytes_per_s, self._credit_bytes + earned_bytes)
        self._credited_at = now
        return self._credit_bytes >= 0
