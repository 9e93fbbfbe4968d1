"""The output of a node's ranks: kept in the folder of the run, or on its way to the conductor; and what is shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from seatrial.agent.event_channel import EventChannel
from seatrial.agent.output_spool import OutputSpool, OutputSpools
from seatrial.agent.program_ranks import Relay
from seatrial.agent.rank_process import RankProcess, log_name
from seatrial.protocol.commands import Output
from seatrial.util.disk_writer import DiskWriter, WrittenFile

_SLOW_S = 2.0
"""A rank of ours waits no longer for a disk that answers nothing: the others would wait for it, and it would be named.
A script waits as it would with ``>``, so that nothing is missing."""
_GAP_WORDS = b"\nseatrial: %d bytes of output are missing here\n"
_MOST_NAMED = 8


class RankLog:
    """The output of one rank: it goes into a file, or, where that cannot be opened, to the conductor."""

    def __init__(self, file: WrittenFile, disk: DiskWriter, spool: Callable[[], OutputSpool]) -> None:
        """``spool``: opens the one that is used in place of the file."""
        self.file, self._disk, self._open_spool = file, disk, spool
        self._spool: OutputSpool | None = None
        self._is_closed = False

    def write(self, piece: bytes) -> None:
        """Append to the output."""
        self.settle()
        if self._spool is not None:
            self._spool.write(piece)
        else:
            self._disk.write(self.file, piece)

    def close(self) -> None:
        """Note that nothing follows."""
        self._is_closed = True
        if self._spool is not None:
            self._spool.close()
        else:
            self._disk.close(self.file)

    def settle(self) -> None:
        """Once the file is refused, have all of the output sent."""
        if self.file.is_refused and self._spool is None:
            self._spool = self._open_spool()
            self._spool.write(self._disk.take_back(self.file))
            if self._is_closed:
                self._spool.close()


class RankOutput:
    """Opens what keeps the output of a rank, reads that output, and shows it."""

    def __init__(self, folder: str | None, channel: EventChannel, disk: DiskWriter) -> None:
        """Have nothing to read yet.

        Args:
            folder: where the output is kept. None: nowhere, so that it is sent.
            channel: the one to the conductor.
            disk: writes into the folder.
        """
        self._folder, self._channel, self._disk = folder, channel, disk
        self._logs: list[RankLog] = []
        self._holds = False
        """Whether output was left in its pipe, since too much waits for the disk."""
        self.spools = OutputSpools(in_pod="SEATRIAL_LIVE" in os.environ)
        """Output of ranks that goes into no file here."""
        self._relays: dict[int, Relay] = {}
        """Ranks whose output is shown."""

    def open(self, rank: int, generation: int) -> RankLog | OutputSpool:
        """Return what takes the output of a rank that starts."""
        if self._folder is None:
            return self.spools.open(rank, generation)
        path = os.path.join(self._folder, log_name(rank, generation))
        file = self._disk.open(path, _GAP_WORDS.__mod__, returns=True)
        log = RankLog(file, self._disk, partial(self.spools.open, rank, generation))
        self._logs.append(log)
        return log

    def settle(self) -> None:
        """Have the output sent that no file takes."""
        for log in self._logs:
            log.settle()

    def wait_for_disk(self, timeout_s: float) -> None:
        """Where output had to be left in its pipe, wait until the disk has taken something, at most for that time."""
        if self._holds:
            self._holds = False
            self._disk.wait_for_room(timeout_s)

    def missing(self) -> Iterator[str]:
        """Yield a sentence for each file in which output of ranks that have ended is missing, or is not yet."""
        found = [(log.file, log.file.unwritten_bytes) for log in self._logs]
        found = [(file, missing_bytes) for file, missing_bytes in found if missing_bytes]
        for file, missing_bytes in found[:_MOST_NAMED]:
            why = file.error or f"the disk has not answered for {self._disk.silent_s():.0f} s"
            yield f"{missing_bytes} bytes of output are missing in {os.path.basename(file.path)} ({why})"
        if len(found) > _MOST_NAMED:
            yield f"output is missing in {len(found) - _MOST_NAMED} more files"

    def show(self, process: RankProcess) -> None:
        """Have the output of a rank shown."""
        self._relays[process.rank] = Relay(partial(self._send, process))

    def drain(self, process: RankProcess, unregister: Callable[[int], None], *, everything: bool = False) -> None:
        """Read what a rank has printed. ``unregister``: called where nothing follows."""
        if not everything and self._disk.is_full() and not (process.watched and self._disk.silent_s() > _SLOW_S):
            self._holds = True
            return
        lines, ended = process.read(process.output_fd, everything=everything)
        relay = self._relays.get(process.rank)
        if relay is not None and self._channel.is_full():
            relay.leave_out(lines)
        elif relay is not None:
            relay.take(lines, process.buffers[process.output_fd])
        if ended:
            unregister(process.output_fd)

    def end(self, process: RankProcess) -> None:
        """Report what was not shown of a rank that has ended."""
        relay = self._relays.pop(process.rank, None)
        if relay is not None:
            relay.close()

    def _send(self, process: RankProcess, lines: list[str], left_out: int) -> None:
        self._channel.send(
            Output(
                kind="output",
                gen=process.generation,
                rank=process.rank,
                lines=lines,
                left_out=left_out,
            )
        )
