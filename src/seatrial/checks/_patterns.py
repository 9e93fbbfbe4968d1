"""Patterns in a device's memory: take it, write it, read it back word by word. All arithmetic is on the device.

A word has 8 bytes. The memory is taken in blocks, and worked on in chunks, so that what a comparison needs beside the
memory under test stays small. Offsets count over all blocks in the order in which they were taken; they say where in
the tested memory a fault lies, not at which physical address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "PATTERNS",
    "WORD_BYTES",
    "Taken",
    "Wrong",
    "chunk_bytes",
    "read_back",
    "refusal",
    "scratch_bytes",
    "take",
    "write",
]

WORD_BYTES = 8
_CONSTANT = {"0x00": 0, "0xFF": -1, "0x55": 0x5555555555555555, "0xAA": -0x5555555555555556}
PATTERNS = (*_CONSTANT, "address", "random", "walking")
"""The same byte everywhere; in each word its own number, which finds words that answer to two addresses; seeded random
words; one bit set, that of the next word in the next place, and every round one place further."""

_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Powers of two: large enough to keep a GPU busy for as long as starting its kernels takes."""
_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Multiples of the chunk. A phase is told for each."""
_SCRATCH_CHUNKS = 4
"""The pattern, what is expected, and at worst the places of a chunk in which every word is wrong."""
_NO_MEMORY = ("out of memory", "allocate memory")
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: multiples of it share no bits that matter (Knuth, TAOCP 3, 6.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Memory that was allocated, and what refused more of it."""

    blocks: tuple[Any, ...]
    """One-dimensional int64 tensors; each but the last has the size of a block."""
    size_bytes: int
    refused_bytes: int = 0
    """Size of the block that could not be had; 0: all could."""
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """Words that were read back otherwise than they were written."""

    words: int
    first_byte: int
    last_byte: int
    """Offsets of the first byte of the first and of the last byte of the last one."""
    expected: int
    found: int
    """Of the first one, as unsigned numbers. It is read once more for this: where it is right then, the fault lay on
    the way and not in the cell."""


def chunk_bytes(device_type: str) -> int:
    """Bytes that are written or compared at once."""
    return _CHUNK_BYTES["cpu" if device_type == "cpu" else "cuda"]


def scratch_bytes(device_type: str) -> int:
    """Bytes that writing and comparing needs beside the memory under test."""
    return _SCRATCH_CHUNKS * chunk_bytes(device_type)


def take(device: Any, size_bytes: int) -> Taken:
    """Allocate so much on the ``torch.device``, rounded down to words, or what can be had of it."""
    import torch

    block_bytes = _BLOCK_BYTES["cpu" if device.type == "cpu" else "cuda"]
    left = size_bytes - size_bytes % WORD_BYTES
    blocks: list[Any] = []
    while left:
        wanted = min(left, block_bytes)
        try:
            blocks.append(torch.empty(wanted // WORD_BYTES, dtype=torch.int64, device=device))
        except (RuntimeError, MemoryError) as error:
            reason = refusal(error)
            if reason is None:
                raise
            taken = size_bytes - size_bytes % WORD_BYTES - left
            return Taken(blocks=tuple(blocks), size_bytes=taken, refused_bytes=wanted, refusal=reason)
        left -= wanted
    return Taken(blocks=tuple(blocks), size_bytes=size_bytes - size_bytes % WORD_BYTES)


def refusal(error: Exception) -> str | None:
    """What an error says that only says that there was no memory to be had; None for any other."""
    text = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or any(mark in text.lower() for mark in _NO_MEMORY):
        return text.splitlines()[0][:200]
    return None


def write(blocks: Sequence[Any], pattern: str, seed: int, phase: Callable[[str], None]) -> None:
    """Write a pattern over all blocks."""
    import torch

    base = _base(blocks, pattern, seed)
    for chunk, number in _chunks(blocks, pattern, "write", phase):
        if base is None:
            chunk.fill_(_CONSTANT[pattern])
        else:
            torch.bitwise_xor(base[: chunk.numel()], _key(pattern, number, base.numel()), out=chunk)


def read_back(blocks: Sequence[Any], pattern: str, seed: int, phase: Callable[[str], None]) -> Wrong | None:
    """Compare every word with what ``write`` wrote; None when all are right."""
    import torch

    base = _base(blocks, pattern, seed)
    words, start = 0, 0
    first: tuple[int, int, int] | None = None
    last = 0
    for chunk, number in _chunks(blocks, pattern, "read", phase):
        expected = (
            _CONSTANT[pattern]
            if base is None
            else torch.bitwise_xor(base[: chunk.numel()], _key(pattern, number, base.numel()))
        )
        different = chunk != expected
        if bool(different.any()):
            places = different.nonzero().flatten()
            place = int(places[0])
            if first is None:
                right = expected if isinstance(expected, int) else int(expected[place])
                first = (start + place, right, int(chunk[place]))
            words += places.numel()
            last = start + int(places[-1])
        start += chunk.numel()
    if first is None:
        return None
    place, right, found = first
    return Wrong(
        words=words,
        first_byte=place * WORD_BYTES,
        last_byte=last * WORD_BYTES + WORD_BYTES - 1,
        expected=right % 2**64,
        found=found % 2**64,
    )


def _chunks(blocks: Sequence[Any], pattern: str, verb: str, phase: Callable[[str], None]) -> Iterator[tuple[Any, int]]:
    """Each chunk of all blocks with its number, and a phase for each block."""
    number = 0
    for block_number, block in enumerate(blocks):
        phase(f"{verb} {pattern} block {block_number} of {len(blocks)}")
        for chunk in block.split(chunk_bytes(block.device.type) // WORD_BYTES):
            yield chunk, number
            number += 1


def _base(blocks: Sequence[Any], pattern: str, seed: int) -> Any:
    """The pattern's first chunk; None where every word is the same."""
    import torch

    if pattern in _CONSTANT:
        return None
    device = blocks[0].device
    count = min(chunk_bytes(device.type) // WORD_BYTES, max(block.numel() for block in blocks))
    if pattern == "address":
        return torch.arange(count, device=device)
    if pattern == "walking":
        bits = [1 << (place + seed) % 64 for place in range(64)]
        signed = torch.tensor([bit - 2**64 if bit >> 63 else bit for bit in bits], device=device)
        return signed.repeat(-(-count // 64))[:count]
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator, device=device)


def _key(pattern: str, number: int, count: int) -> int:
    """What the first chunk is combined with (exclusive or) in chunk ``number``, so that no two chunks are alike.

    All chunks but the last have ``count`` words, a power of two, so for addresses this adds.
    """
    if pattern == "address":
        return number * count
    key = number * _GOLDEN % 2**64 if pattern == "random" else 0
    return key - 2**64 if key >> 63 else key
