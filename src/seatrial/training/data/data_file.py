"""A data file, plain or compressed with gzip, read from front to back; every fault is reported with file and offset."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from seatrial.errors import RequestError
from seatrial.files import open_to_read, status_behind_links

MAX_BYTES = 2**30
"""Most bytes read from one file; the largest data set here has a fifth of it."""
NOT_PUBLISHED = "it is not the published one, or has changed in the meantime"
_CHUNK_BYTES = 2**20
_GZIP_MAGIC = b"\x1f\x8b"


class DataFile:
    """An open data file."""

    def __init__(self, path: Path, file: IO[bytes], size_bytes: int, *, packed: bool) -> None:
        self.path = path
        self.at = 0
        """Bytes read so far, after unpacking."""
        self.size_bytes = None if packed else size_bytes
        """Size of the whole file; None where only unpacking shows it."""
        self._file = file

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
            part = self._file.read(size_bytes)
        except EOFError:
            raise self.wrong("it is cut short: its gzip stream does not end") from None
        except (OSError, zlib.error) as error:
            raise self.wrong(f"it cannot be read ({error})") from error
        self.at += len(part)
        return part

    def end(self) -> None:
        """Raise RequestError when there is more content. At the end of a gzip file its checksum is compared."""
        at = self.at
        if self.read_some(1):
            raise self.wrong("there is more content than its header says", at=at)

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
        packed = magic == _GZIP_MAGIC
        if packed:
            file = cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=file)))
        yield DataFile(path, file, status.st_size, packed=packed)


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
