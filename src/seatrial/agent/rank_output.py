"""The output of a node's ranks: kept in the folder of the run, or on its way to the conductor; and what is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from seatrial.agent.event_channel import EventChannel, append
from seatrial.agent.output_spool import OutputSpool, OutputSpools
from seatrial.agent.program_ranks import Relay
from seatrial.agent.rank_process import RankProcess, log_name
from seatrial.protocol.commands import Output


class RankOutput:
    """Opens what keeps the output of a rank, reads that output, and shows it."""

    def __init__(self, folder: str | None, channel: EventChannel) -> None:
        """``folder``: where the output is kept. None: nowhere, so that it is sent."""
        self._folder, self._channel = folder, channel
        self.spools = OutputSpools(in_pod="SEATRIAL_LIVE" in os.environ)
        """Output of ranks that goes into no file here."""
        self._relays: dict[int, Relay] = {}
        """Ranks whose output is shown."""

    def open(self, rank: int, generation: int) -> BinaryIO | OutputSpool:
        """Return what takes the output of a rank that starts."""
        file = append(os.path.join(self._folder, log_name(rank, generation))) if self._folder else None
        return file if file is not None else self.spools.open(rank, generation)

    def show(self, process: RankProcess) -> None:
        """Have the output of a rank shown."""
        self._relays[process.rank] = Relay(partial(self._send, process))

    def drain(self, process: RankProcess, unregister: Callable[[int], None], *, everything: bool = False) -> None:
        """Read what a rank has printed. ``unregister``: called where nothing follows."""
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
