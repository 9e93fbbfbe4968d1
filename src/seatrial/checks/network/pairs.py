"""Sets of directed pairs of nodes, of which 2,048 nodes have four million: the targets of a source are bits. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int]
"""(source, target)"""
_LEAST_SHARE = 1 / 64
"""The share of a square of bits that are pairs, from which on it is exchanged at once, and not pair by pair."""
_MOST_DENSE = 1 << 14
"""Nodes of which all pairs together are bits of one number, 32 MB."""


def bits_of(numbers: Iterable[int]) -> int:
    """Return a number whose set bits are these numbers."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def numbers_of(bits: int) -> Iterator[int]:
    """Yield the numbers of the set bits, ascending."""
    # As digits, since each operation with the number takes time for all of its bits.
    digits = f"{bits:b}"[::-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A set of pairs. Only what iterates over the pairs takes time for each of them."""

    targets: Mapping[int, int] = field(default_factory=dict)
    """Source -> its targets, as bits; no source without a target."""

    def __bool__(self) -> bool:
        return bool(self.targets)

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self.targets.values())

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs, ascending."""
        return ((source, target) for source in sorted(self.targets) for target in numbers_of(self.targets[source]))

    def __contains__(self, pair: Pair) -> bool:
        return bool(self.targets.get(pair[0], 0) >> pair[1] & 1)

    def __or__(self, other: Pairs) -> Pairs:
        both = self.targets.keys() | other.targets.keys()
        return Pairs({source: self.targets.get(source, 0) | other.targets.get(source, 0) for source in both})

    def __and__(self, other: Pairs) -> Pairs:
        return _of({source: bits & other.targets.get(source, 0) for source, bits in self.targets.items()})

    def __sub__(self, other: Pairs) -> Pairs:
        return _of({source: bits & ~other.targets.get(source, 0) for source, bits in self.targets.items()})

    def between(self, sources: Iterable[int], targets: int) -> Pairs:
        """Return the pairs of some sources and targets. ``targets``: as bits; -1: all."""
        return _of({source: self.targets.get(source, 0) & targets for source in sources})

    def all_targets(self) -> int:
        """Return the targets of all sources, as bits."""
        union = 0
        for bits in self.targets.values():
            union |= bits
        return union

    def turned(self) -> Pairs:
        """Return the pairs with source and target exchanged."""
        size = max((max(source, bits.bit_length()) for source, bits in self.targets.items()), default=0)
        if size <= _MOST_DENSE and len(self) > _LEAST_SHARE * size * size:
            return _of(dict(enumerate(_transposed([self.targets.get(source, 0) for source in range(size + 1)]))))
        turned: defaultdict[int, int] = defaultdict(int)
        for source, bits in self.targets.items():
            for target in numbers_of(bits):
                turned[target] |= 1 << source
        return Pairs(turned)


def _of(targets: Mapping[int, int]) -> Pairs:
    return Pairs({source: bits for source, bits in targets.items() if bits})


def _transposed(rows: Sequence[int]) -> Iterator[int]:
    """Yield the columns of a square of bits: in halves of halves, two of the quarters are exchanged at once."""
    size = 8
    while size < max(len(rows), *(row.bit_length() for row in rows)):
        size *= 2
    width = size // 8
    square = int.from_bytes(b"".join(row.to_bytes(width, "little") for row in rows), "little")
    half = size // 2
    while half:
        # The quarter of later columns in the first rows, of each part of twice that size.
        mask = _repeated(_repeated((1 << half) - 1 << half, 2 * half, size), size, half * size)
        mask = _repeated(mask, 2 * half * size, size * size)
        distance = half * (size - 1)
        change = (square >> distance ^ square) & mask
        square ^= change | change << distance
        half //= 2
    content = square.to_bytes(size * width, "little")
    for begin in range(0, len(content), width):
        yield int.from_bytes(content[begin : begin + width], "little")


def _repeated(bits: int, period: int, length: int) -> int:
    """Return bits repeated each ``period`` up to a length, both powers of two times one another."""
    while period < length:
        bits |= bits << period
        period *= 2
    return bits
