"""The data file of the storage check: written, dropped from the page cache, read back and compared.

The file loses its name as soon as it is open, so its space is free again however the process ends. Where a neighbor has
given it another name before that, which a folder without the sticky bit allows, it is empty at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from seatrial.checks.storage.tokens import file_path
from seatrial.files import create, remove

_CHUNK_BYTES = 8 << 20
_FIRST_SYNC_BYTES, _MOST_SYNC_BYTES = 8 << 20, 256 << 20
_QUICK_S, _SLOW_S = 0.5, 2.0
"""A process that waits in one fsync for 15 s counts as frozen, so on a slow disk each fsync covers fewer bytes."""
_PAGE_BYTES = 4096
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples modulo 2**64 differ from one another."""

Phase = Callable[[str], None]
"""Reports the label of the phase that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes that were written or read."""

    size_bytes: int
    began_s: float
    """The start, in seconds since the epoch."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing a file's bytes with the written ones."""

    compared_bytes: int
    wrong_bytes: int
    first_offset: int | None
    """The offset of the first wrong or missing byte; None if there is none."""


@contextlib.contextmanager
def nameless_file(folder: str, rank: int) -> Iterator[int]:
    """Open a new file for writing and reading, and remove its name, which nobody can know before. Yields the
    descriptor. Raises OSError."""
    path = file_path(folder, secrets.token_hex(8), rank, "data")
    with create(path, mode=0o600) as file:
        with contextlib.suppress(FileNotFoundError):  # in a folder without the sticky bit others may remove it
            remove(path)
        try:
            yield file.fileno()
        finally:
            # Those others may have given it another name before it lost this one: nothing but that may stay.
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), 0)


def append(fd: int, count: int, until: float, phase: Phase) -> list[float]:
    """Append 4 KiB and fsync, ``count`` times or until the monotonic time ``until``. Returns the seconds of each.

    Raises OSError.
    """
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


def write(fd: int, size_bytes: int, seed: int, until: float, phase: Phase) -> Transfer:
    """Write and fsync ``size_bytes`` of seeded data, or what the disk takes until the monotonic time ``until``.

    The time includes generating the data, a few percent of what a fast disk needs. Raises OSError.
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
            sync_s, synced = time.perf_counter() - before, written
            if sync_s < _QUICK_S:
                sync_bytes = min(2 * sync_bytes, _MOST_SYNC_BYTES)
            elif sync_s > _SLOW_S:
                sync_bytes = max(sync_bytes // 2, _FIRST_SYNC_BYTES)
    if synced < written:
        phase(f"fsync at {written}")
        os.fsync(fd)
    return Transfer(size_bytes=written, began_s=began_s, seconds=time.perf_counter() - started)


def drop_from_cache(fd: int, size_bytes: int) -> float:
    """Ask the kernel to drop the file's pages. Returns the share that it kept, by ``mincore``; 1 if unknown.

    This does not reach the separate cache of a file system (ZFS), or the cache of a server.
    """
    kept = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        # ctypes gives the address of a writable mapping only, so this one is private. It is never written to.
        with mmap.mmap(fd, size_bytes, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(mapped)
            failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(size_bytes), kept)
            del start
    except (OSError, ValueError):  # not every file system maps files; a truncated file cannot be mapped whole
        return 1.0
    return 1.0 if failed else sum(entry & 1 for entry in kept) / len(kept)


def read(fd: int, size_bytes: int, until: float, phase: Phase) -> Transfer:
    """Read the file once from its beginning, or as far as possible until the monotonic time ``until``.

    Raises OSError.
    """
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    began_s, started = time.time(), time.perf_counter()
    done = 0
    while done < size_bytes and (time.monotonic() < until or not done):
        phase(f"read at {done}")
        count = _read_all(fd, buffer[: min(_CHUNK_BYTES, size_bytes - done)], done)
        if not count:
            break
        done += count
    return Transfer(size_bytes=done, began_s=began_s, seconds=time.perf_counter() - started)


def verify(fd: int, size_bytes: int, seed: int, until: float, phase: Phase) -> Comparison:
    """Compare every byte with those of ``write``, or as many as possible until the monotonic time ``until``.

    Raises OSError.
    """
    import torch

    base, buffer = _base(seed), bytearray(_CHUNK_BYTES)
    actual = torch.frombuffer(buffer, dtype=torch.uint8)
    done = wrong_bytes = 0
    first: int | None = None
    while done < size_bytes and (time.monotonic() < until or not done):
        phase(f"compare at {done}")
        wanted = min(_CHUNK_BYTES, size_bytes - done)
        count = _read_all(fd, memoryview(buffer)[:wanted], done)
        expected = torch.bitwise_xor(base, _key(done // _CHUNK_BYTES)).view(torch.uint8)
        different = actual[:count] != expected[:count]
        if count < wanted or bool(different.any()):
            offsets = different.nonzero().flatten()
            wrong_bytes += offsets.numel() + wanted - count
            if first is None:
                first = done + (int(offsets[0]) if offsets.numel() else count)
        done += wanted
    return Comparison(compared_bytes=done, wrong_bytes=wrong_bytes, first_offset=first)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_all(fd: int, buffer: memoryview, offset: int) -> int:
    """Return the number of bytes read, which is less than the buffer holds only at the end of the file."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def _base(seed: int) -> Any:
    """Return the first chunk of the data: random 64-bit words, a tensor of ``_CHUNK_BYTES // 8``."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (_CHUNK_BYTES // 8,), generator=generator)


def _key(number: int) -> int:
    """Return the word that turns the first chunk into chunk ``number`` (exclusive or), so that no two are equal."""
    key = number * _GOLDEN % 2**64
    return key - 2**64 if key >> 63 else key
