"""The files of the storage check: tokens that ranks look for, and the file that is written, dropped and read back.

A file of data loses its name as soon as it is open: whatever ends the process, its space is free again. Tokens have to
be seen by others; they are a few bytes, removed as soon as all have looked, and what a killed trial left is removed by
a later one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Moved",
    "Wrong",
    "append",
    "candidates",
    "create_token",
    "drop_from_cache",
    "find_token",
    "nameless_file",
    "read",
    "remove_leftovers",
    "seen_ranks",
    "verify",
    "write",
]

_NAME = "seatrial-storage-{key}-{rank}.{kind}"
_OURS = re.compile(r"seatrial-storage-[0-9a-f]{16}-\d+\.(token|data)")
_OLD_S = 24 * 3600.0
_CHUNK_BYTES = 8 << 20
_FIRST_SYNC_BYTES, _MOST_SYNC_BYTES = 8 << 20, 256 << 20
_QUICK_S, _SLOW_S = 0.5, 2.0
"""A process that waits in one fsync for 15 s is taken for frozen, so on a slow disk less is synced at a time."""
_PAGE_BYTES = 4096
_GOLDEN = 0x9E3779B97F4A7C15

Phase = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes that were written or read, from when on (seconds since the epoch), and how long that took."""

    size_bytes: int
    began_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What a comparison of a file's bytes found."""

    compared_bytes: int
    wrong_bytes: int
    first_offset: int | None
    """Of the first wrong byte, or of the first that is missing."""


def candidates(folder: str | None) -> tuple[str, ...]:
    """Where to try: the folder that was named, or this process's working folder and then the temporary folder."""
    if folder is not None:
        return (folder,)
    found = []
    with contextlib.suppress(OSError):  # the working folder may have been removed
        found.append(os.getcwd())
    return (*found, tempfile.gettempdir())


def create_token(folder: str, key: str, rank: int) -> None:
    """Create this rank's token. Raises OSError."""
    fd = os.open(_path(folder, key, rank, "token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{rank}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def find_token(folders: Iterable[str], key: str, rank: int, *, remove: bool = False) -> str | None:
    """The folder that holds this rank's token, which is removed if asked for; None when none does."""
    for folder in folders:
        path = _path(folder, key, rank, "token")
        with contextlib.suppress(OSError):
            os.lstat(path)
            if remove:
                os.unlink(path)
            return folder
    return None


def seen_ranks(folder: str, key: str, ranks: Collection[int]) -> list[int]:
    """The ranks whose tokens are to be seen in the folder, ascending. Raises OSError."""
    listed = set(os.listdir(folder))
    found = []
    for rank in sorted(ranks):
        path = _path(folder, key, rank, "token")
        if os.path.basename(path) in listed or _opens(path):
            found.append(rank)
    return found


def _opens(path: str) -> bool:
    """A network file system may list a folder from its cache; a name that it never looked for, it has to look up."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def remove_leftovers(folder: str, now_s: float) -> list[str]:
    """Remove what trials of this user left there that were killed, if it is older than a day. Returns the names."""
    removed = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _OURS.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                old = now_s - seen.st_mtime > _OLD_S
                if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and old:
                    os.unlink(entry.path)
                    removed.append(entry.name)
    return removed


@contextlib.contextmanager
def nameless_file(folder: str, key: str, rank: int) -> Iterator[int]:
    """A new file, open for writing and reading, that has no name any more. Raises OSError."""
    path = _path(folder, key, rank, "data")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        yield fd
    finally:
        os.close(fd)


def append(fd: int, count: int, until: float, phase: Phase) -> list[float]:
    """Append 4 KiB and fsync, so many times or until then (monotonic). Seconds of each. Raises OSError."""
    page = os.urandom(_PAGE_BYTES)
    readings: list[float] = []
    for number in range(count):
        phase(f"append {number}")
        started = time.perf_counter()
        os.write(fd, page)
        os.fsync(fd)
        readings.append(time.perf_counter() - started)
        if time.monotonic() > until:
            break
    return readings


def write(fd: int, size_bytes: int, seed: int, until: float, phase: Phase) -> Moved:
    """Write seeded data, all of it fsynced, or what can be until then (monotonic). Raises OSError.

    Making the data counts, which is a few percent of what a fast disk needs.
    """
    import torch

    base, buffer = _base(seed), bytearray(_CHUNK_BYTES)
    view = torch.frombuffer(buffer, dtype=torch.int64)
    began_s, started = time.time(), time.perf_counter()
    written = synced = 0
    sync_bytes = _FIRST_SYNC_BYTES
    while written < size_bytes and (time.monotonic() < until or not written):
        phase(f"write at {written}")
        torch.bitwise_xor(base, _key(written // _CHUNK_BYTES), out=view)
        count = min(_CHUNK_BYTES, size_bytes - written)
        _write_all(fd, memoryview(buffer)[:count])
        written += count
        if written - synced >= sync_bytes or written == size_bytes:
            phase(f"fsync at {written}")
            before = time.perf_counter()
            os.fsync(fd)
            took, synced = time.perf_counter() - before, written
            if took < _QUICK_S:
                sync_bytes = min(2 * sync_bytes, _MOST_SYNC_BYTES)
            elif took > _SLOW_S:
                sync_bytes = max(sync_bytes // 2, _FIRST_SYNC_BYTES)
    if synced < written:
        phase(f"fsync at {written}")
        os.fsync(fd)
    return Moved(size_bytes=written, began_s=began_s, seconds=time.perf_counter() - started)


def drop_from_cache(fd: int, size_bytes: int) -> float:
    """Ask the kernel to forget the file's pages. Returns the share that it kept, by ``mincore``; 1 where unknown.

    What a file system caches elsewhere (ZFS), and what a server caches, is not reached by this.
    """
    kept = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        # A private mapping, because an address is to be had of writable ones only. It is never written to.
        with mmap.mmap(fd, size_bytes, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(mapped)
            failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(size_bytes), kept)
            del start
    except (OSError, ValueError):  # not every file system maps files; a file that lost its end cannot be mapped whole
        return 1.0
    return 1.0 if failed else sum(entry & 1 for entry in kept) / len(kept)


def read(fd: int, size_bytes: int, until: float, phase: Phase) -> Moved:
    """Read the file once from its beginning, or what can be until then (monotonic). Raises OSError."""
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    began_s, started = time.time(), time.perf_counter()
    done = 0
    while done < size_bytes and (time.monotonic() < until or not done):
        phase(f"read at {done}")
        count = _read_all(fd, buffer[: min(_CHUNK_BYTES, size_bytes - done)], done)
        if not count:
            break
        done += count
    return Moved(size_bytes=done, began_s=began_s, seconds=time.perf_counter() - started)


def verify(fd: int, size_bytes: int, seed: int, until: float, phase: Phase) -> Wrong:
    """Compare every byte with what ``write`` wrote, or what can be until then (monotonic). Raises OSError."""
    import torch

    base, buffer = _base(seed), bytearray(_CHUNK_BYTES)
    found = torch.frombuffer(buffer, dtype=torch.uint8)
    done = wrong_bytes = 0
    first: int | None = None
    while done < size_bytes and (time.monotonic() < until or not done):
        phase(f"compare at {done}")
        wanted = min(_CHUNK_BYTES, size_bytes - done)
        count = _read_all(fd, memoryview(buffer)[:wanted], done)
        expected = torch.bitwise_xor(base, _key(done // _CHUNK_BYTES)).view(torch.uint8)
        different = found[:count] != expected[:count]
        if count < wanted or bool(different.any()):
            places = different.nonzero().flatten()
            wrong_bytes += places.numel() + wanted - count
            if first is None:
                first = done + (int(places[0]) if places.numel() else count)
        done += wanted
    return Wrong(compared_bytes=done, wrong_bytes=wrong_bytes, first_offset=first)


def _path(folder: str, key: str, rank: int, kind: str) -> str:
    return os.path.join(folder, _NAME.format(key=key, rank=rank, kind=kind))


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_all(fd: int, buffer: memoryview, offset: int) -> int:
    """Bytes read; fewer than the buffer holds at the end of the file only."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def _base(seed: int) -> Any:
    """The first chunk of the data: random words."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (_CHUNK_BYTES // 8,), generator=generator)


def _key(number: int) -> int:
    """What the first chunk is combined with (exclusive or) in chunk ``number``: no storage may find two alike."""
    key = number * _GOLDEN % 2**64
    return key - 2**64 if key >> 63 else key
