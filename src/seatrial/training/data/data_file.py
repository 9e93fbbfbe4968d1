"""A data file, plain or compressed with gzip, read from front to back; every fault is reported with file and offset."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from seatrial.errors import RequestError
from seatrial.files import open_to_read, status_behind_links

MAX_BYTES = 2**30
"""Most bytes read from one file; the largest data set here has a fifth of it."""
NOT_PUBLISHED = "it is not the published one, or has changed in the meantime"
NOT_TOGETHER = "do not belong together"
"""In the sentence about files of a data set that contradict one another; some may have changed in the meantime."""
_CHUNK_BYTES = 2**20
_PACKED_BYTES = 2**16
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS


class DataFile:
    """An open data file."""

    def __init__(self, path: Path, file: IO[bytes], size_bytes: int, *, packed: bool) -> None:
        self.path = path
        self.at = 0
        """Bytes read so far, after unpacking."""
        self.size_bytes = None if packed else size_bytes
        """Size of the whole file; None where only unpacking shows it."""
        self._file = file
        self._unpacking = zlib.decompressobj(_GZIP) if packed else None
        self._disk_bytes = size_bytes
        self._packed_bytes = 0
        """Read so far of a packed file."""

    def read(self, size_bytes: int, what: str) -> bytearray:
        """Return exactly ``size_bytes`` bytes. Memory grows with the content, not with the size that a header
        claims."""
        if self.at + size_bytes > (MAX_BYTES if self.size_bytes is None else self.size_bytes):
            holds = f"at most {MAX_BYTES} bytes are read" if self.size_bytes is None else f"it has {self.size_bytes}"
            raise self.wrong(f"{what} would end at byte {self.at + size_bytes}, and {holds}")
        content = bytearray()
        while len(content) < size_bytes:
            part = self.read_some(min(_CHUNK_BYTES, size_bytes - len(content)))
            if not part:
                raise self.wrong(f"it ends within {what}, which has {size_bytes} bytes from byte {self.at} on")
            content += part
        return content

    def read_some(self, size_bytes: int) -> bytes:
        """Return at most ``size_bytes`` bytes; none at the end."""
        if self.at > MAX_BYTES:
            raise self.wrong(f"at most {MAX_BYTES} bytes are read of one file")
        try:
            part = self._file.read(size_bytes) if self._unpacking is None else self._unpack(self._unpacking, size_bytes)
        except (OSError, zlib.error) as error:
            raise self.wrong(f"it cannot be read ({error})") from error
        self.at += len(part)
        return part

    def _unpack(self, unpacking: zlib._Decompress, size_bytes: int) -> bytes:
        """Return the next bytes of what is packed: one member of gzip, as in the published files, and nothing else.

        ``gzip`` would read on: zeros one by one, of which a hole has any number, and members without content.
        """
        while not unpacking.eof:
            packed = unpacking.unconsumed_tail
            if not packed:
                packed = self._file.read(_PACKED_BYTES)
                self._packed_bytes += len(packed)
            # Blocks without content, and a name or a comment in the header, may go on without end.
            if self._packed_bytes > _most_packed(self.at):
                raise self.wrong(f"{self._packed_bytes} packed bytes are too many for what they hold")
            if part := unpacking.decompress(packed, size_bytes):
                return part
            if not (packed or unpacking.eof):
                raise self.wrong("it is cut short: its gzip stream does not end")
        if unpacking.unused_data or self._file.read(1):
            raise self.wrong("there is more in the file after its gzip stream")
        return b""

    def end(self) -> None:
        """Raise RequestError when there is more content. At the end of a gzip file its checksum is compared."""
        at = self.at
        if self.read_some(1):
            raise self.wrong("there is more content than its header says", at=at)

    def require_size(self, size_bytes: int) -> None:
        """Raise RequestError where a packed file is larger than any that holds ``size_bytes`` bytes."""
        if self.size_bytes is None and self._disk_bytes > _most_packed(size_bytes):
            raise self.wrong(f"the packed file has {self._disk_bytes} bytes, too many for {size_bytes}")

    def wrong(self, found: str, *, at: int | None = None) -> RequestError:
        """Return the error for a fault at an offset, by default the current one."""
        unpacked = " of what is unpacked from it" if self.size_bytes is None else ""
        return damaged(self.path, f"at byte {self.at if at is None else at}{unpacked}", found)


@contextlib.contextmanager
def open_data_file(path: Path, folder: Path | None = None) -> Iterator[DataFile]:
    """Open a data file; its first bytes decide whether it is compressed, since names differ.

    Raises RequestError for a path that is no regular file, cannot be opened or is empty.

    Args:
        path: the file.
        folder: the folder above it that a person has named; default: the one that holds it.
    """
    with contextlib.ExitStack() as stack:
        try:
            file: IO[bytes] = stack.enter_context(open_to_read(path, named_folder=folder))
            status = os.fstat(file.fileno())
            magic = file.read(len(_GZIP_MAGIC))
            file.seek(0)
        except OSError as error:
            raise damaged(path, "", f"it cannot be read ({error.strerror})") from error
        if not status.st_size:
            raise damaged(path, "at byte 0", "it is empty")
        opened = DataFile(path, file, status.st_size, packed=magic == _GZIP_MAGIC)
        opened.require_size(MAX_BYTES)
        yield opened


def _most_packed(size_bytes: int) -> int:
    """Return the most bytes of a packed file with so much content: where nothing can be made smaller, gzip adds 5 bytes
    to every 16 KiB or less, and a header."""
    return size_bytes + size_bytes // 8 + 2**20


def is_folder(path: Path, folder: Path | None) -> bool:
    """Return whether a path leads to a folder, which ``open_data_file`` may be asked for files of."""
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(status_behind_links(path, folder).st_mode)
    return False


def damaged(path: Path, where: str, found: str) -> RequestError:
    """Return the error for a file that exists but is unusable; ``where`` (an offset) may be empty."""
    return RequestError(
        f"the data file {path} on {socket.gethostname()} is not usable{where and f', {where}'}: {found}; "
        "fetch or copy it again."
    )
