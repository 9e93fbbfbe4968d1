"""The store as Gloo reads it, with the addresses of the other ranks checked: Gloo trusts the lengths in them, and reads
beyond their end.

Each rank publishes its address under a key that ends in its number. At the common store any rank may overwrite any key,
so a bad one says nothing about the rank of that number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from seatrial.rank.meeting import UnmetError

_LENGTH = struct.Struct("=Q")


class GlooStore(dist.Store):
    """The keys of a store. Torch does not keep this object alive: its maker does.

    ``get`` raises UnmetError for an address that has other lengths than the own one.
    """

    def __init__(self, store: dist.Store, ranks: Sequence[int]) -> None:
        """``ranks``: trial rank of each rank of the group. Groups within it have numbers that differ."""
        super().__init__()
        self._store, self._ranks = store, ranks
        self._lengths: dict[str, tuple[int, int]] = {}
        """Key without the number of a rank, the one of the whole group first -> the lengths in the own address."""

    def set(self, key: str, value: Any) -> None:
        """Set the key."""
        prefix, _, number = key.rpartition("/")
        # Another form than the one that we know is left to Gloo: torch 2.4 to 2.13 have one.
        if number.isdecimal() and (lengths := _lengths(_bytes(value))) is not None:
            self._lengths[prefix] = lengths
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key that another rank sets."""
        value = self._store.get(key)
        prefix, _, number = key.rpartition("/")
        wanted = self._lengths.get(prefix)
        if wanted is not None and number.isdecimal() and _lengths(value) != wanted:
            is_whole = prefix == next(iter(self._lengths)) and int(number) < len(self._ranks)
            publisher = f"rank {self._ranks[int(number)]}" if is_whole else f"number {number} of a group"
            raise UnmetError(
                f"the address that {publisher} published at the store, or another one in its name, is none"
                f" ({len(value)} bytes)"
            )
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to the number under the key."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set."""
        self._store.wait(keys, *(() if timeout is None else (timeout,)))


def _lengths(value: bytes) -> tuple[int, int] | None:
    """Return the bytes of the address, and of what follows it, behind the name of the host; None for another form."""
    at, size = 0, 0
    for _ in ("name", "address"):
        if len(value) - at < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(value, at)[0]
        at += _LENGTH.size + size
        if at > len(value):
            return None
    return size, len(value) - at


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
