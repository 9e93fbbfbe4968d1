"""Patterns in a device's memory: allocate it, write it, read it back word by word. All arithmetic is on the device.

A word has 8 bytes. The memory is allocated in blocks and processed in chunks, so that a comparison needs little memory
besides the memory under test. Offsets count over all blocks in the order of their allocation; they locate a fault in
the tested memory, not at a physical address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WORD_BYTES = 8
_CONSTANT = {"0x00": 0, "0xFF": -1, "0x55": 0x5555555555555555, "0xAA": -0x5555555555555556}
PATTERNS = (*_CONSTANT, "address", "random", "walking")
"""The same byte everywhere; in each word its index, which finds words that answer to two addresses; random words from a
seed; one bit set, one position further in each word and in each round."""

_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Powers of two, large enough to keep a GPU busy for longer than starting a kernel takes."""
_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Multiples of the chunk. Each block is a phase."""
_SCRATCH_CHUNKS = 4
"""The pattern, the expected words, and at worst the indexes of a chunk in which every word is wrong."""
_NO_MEMORY = ("out of memory", "allocate memory")
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: its multiples spread over all words (Knuth, TAOCP 3, 6.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Memory that was allocated, and the refusal of more of it."""

    blocks: tuple[Any, ...]
    """One-dimensional int64 tensors; each but the last has the size of a block."""
    size_bytes: int
    """Bytes of all blocks together."""
    refused_bytes: int = 0
    """Bytes of the block that could not be allocated; 0: every block was allocated."""
    refusal: str = ""
    """The first line of the error; empty without a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongWords:
    """Words that were read back different from what was written."""

    words: int
    """Number of wrong words."""
    first_byte: int
    """Offset of the first byte of the first wrong word."""
    last_byte: int
    """Offset of the last byte of the last wrong word."""
    expected: int
    """The first wrong word as it was written, unsigned."""
    found: int
    """The first wrong word as a second reading returned it, unsigned: where that is right, the fault lay on the way and
    not in the cell."""


def chunk_bytes(device_type: str) -> int:
    """Return the bytes that are written or compared at once."""
    return _CHUNK_BYTES["cpu" if device_type == "cpu" else "cuda"]


def scratch_bytes(device_type: str) -> int:
    """Return the bytes that writing and comparing needs besides the memory under test."""
    return _SCRATCH_CHUNKS * chunk_bytes(device_type)


def take(device: Any, size_bytes: int) -> Taken:
    """Allocate ``size_bytes`` on the ``torch.device``, rounded down to words, or as much of it as is available."""
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
    """Return the first line of an error that reports a lack of memory; None for any other error."""
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


def read_back(blocks: Sequence[Any], pattern: str, seed: int, phase: Callable[[str], None]) -> WrongWords | None:
    """Compare every word with what ``write`` wrote. Returns None when all are right."""
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
            indexes = different.nonzero().flatten()
            index = int(indexes[0])
            if first is None:
                right = expected if isinstance(expected, int) else int(expected[index])
                first = (start + index, right, int(chunk[index]))
            words += indexes.numel()
            last = start + int(indexes[-1])
        start += chunk.numel()
    if first is None:
        return None
    index, right, found = first
    return WrongWords(
        words=words,
        first_byte=index * WORD_BYTES,
        last_byte=last * WORD_BYTES + WORD_BYTES - 1,
        expected=right % 2**64,
        found=found % 2**64,
    )


def _chunks(blocks: Sequence[Any], pattern: str, verb: str, phase: Callable[[str], None]) -> Iterator[tuple[Any, int]]:
    """Yield each chunk of all blocks with its number; each block is a phase."""
    number = 0
    for block_number, block in enumerate(blocks):
        phase(f"{verb} {pattern} block {block_number} of {len(blocks)}")
        for chunk in block.split(chunk_bytes(block.device.type) // WORD_BYTES):
            yield chunk, number
            number += 1


def _base(blocks: Sequence[Any], pattern: str, seed: int) -> Any:
    """Return the first chunk of a pattern; None where every word is the same."""
    import torch

    if pattern in _CONSTANT:
        return None
    device = blocks[0].device
    count = min(chunk_bytes(device.type) // WORD_BYTES, max(block.numel() for block in blocks))
    if pattern == "address":
        return torch.arange(count, device=device)
    if pattern == "walking":
        bits = [1 << (position + seed) % 64 for position in range(64)]
        signed = torch.tensor([bit - 2**64 if bit >> 63 else bit for bit in bits], device=device)
        return signed.repeat(-(-count // 64))[:count]
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator, device=device)


def _key(pattern: str, number: int, count: int) -> int:
    """Return the word that turns the first chunk into chunk ``number`` (exclusive or), so that no two chunks are equal.

    All chunks but the last have ``count`` words, a power of two, so for addresses this adds.
    """
    if pattern == "address":
        return number * count
    key = number * _GOLDEN % 2**64 if pattern == "random" else 0
    return key - 2**64 if key >> 63 else key
