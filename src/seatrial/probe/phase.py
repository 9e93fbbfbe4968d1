"""The phase that a rank is in, in a page of memory that its agent shares.

Writing it costs about a microsecond and can never block, so a rank may pass thousands of phases a second; the agent
reads it once a second and after the rank's death, when a pipe would have lost it.
"""

from __future__ import annotations

import mmap
import os
import struct

__all__ = ["PhaseReader", "PhaseWriter", "create"]

_SIZE = 512
_HEAD = struct.Struct("<QQH")
"""Number before the label is written, number after it, length of the label: unequal numbers are a torn read."""


def create() -> int:
    """A file descriptor for one rank's page; inherited by the rank."""
    fd = os.memfd_create("seatrial-phase", 0)
    os.ftruncate(fd, _SIZE)
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
        """Number of phases entered so far and the label of the last one; empty where only a torn one could be read."""
        for _ in range(3):
            before, after, length = _HEAD.unpack(self._page[: _HEAD.size])
            text = self._page[_HEAD.size : _HEAD.size + length]
            if before == after == int.from_bytes(self._page[:8], "little"):
                return before, text.decode(errors="replace")
        return before, ""

    def close(self) -> None:
        """Give the page back."""
        self._page.close()
