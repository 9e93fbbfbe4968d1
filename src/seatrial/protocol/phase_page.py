"""The phase of a rank, in a page of memory that it shares with its agent.

Writing costs about a microsecond and can never block, so a rank may pass thousands of phases a second. The agent reads
the page once a second and after the rank's death, when a pipe would have lost it.
"""

from __future__ import annotations

import mmap
import struct

from seatrial.util import memory_file

_SIZE = 512
_HEAD = struct.Struct("<QQH")
"""Number before the label was written, number after it, length of the label. Unequal numbers mean a torn read."""


def create() -> int:
    """Return a file descriptor of a new page, for one rank to inherit."""
    fd = memory_file.create(bytes(_SIZE))
    # A page that a rank makes shorter would end its agent by SIGBUS.
    memory_file.keep_size(fd)
    return fd


class PhaseWriter:
    """The rank's side."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _SIZE)
        self.number = 0
        self.label = ""

    def write(self, label: str) -> None:
        """Enter the next phase."""
        self.number += 1
        self.label = label
        text = label.encode()[: _SIZE - _HEAD.size]
        page = self._page
        page[:8] = self.number.to_bytes(8, "little")
        page[_HEAD.size : _HEAD.size + len(text)] = text
        page[8 : _HEAD.size] = self.number.to_bytes(8, "little") + len(text).to_bytes(2, "little")


class PhaseReader:
    """The agent's side."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, _SIZE, prot=mmap.PROT_READ)

    def read(self) -> tuple[int, str]:
        """Return the number of phases entered so far and the label of the last one (empty after torn reads only)."""
        for _ in range(3):
            before, after, length = _HEAD.unpack(self._page[: _HEAD.size])
            text = self._page[_HEAD.size : _HEAD.size + length]
            if before == after == int.from_bytes(self._page[:8], "little"):
                return before, text.decode(errors="replace")
        return before, ""

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
