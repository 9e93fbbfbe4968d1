"""Sets of directed pairs of nodes, of which 2,048 nodes have four million: the targets of a source are bits. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[int, int]
"""(source, target)"""
_LEAST_SHARE = 1 / 64
"""The share of a square of bits that are pairs, from which on it is exchanged at once, and not pair by pair."""
_MOST_DENSE = 1 << 14
"""Nodes of one square: all pairs of them are bits of one number, 32 MB."""
_MOST_RUNS = 64
"""Runs of numbers that are moved at once, each in the time of all bits."""


def bits_of(numbers: Iterable[int]) -> int:
    """Return a number whose set bits are these numbers."""
    # In bytes: an operation with a number takes time for all of its bits.
    chosen = [*numbers]
    content = bytearray(max(chosen, default=0) // 8 + 1)
    for number in chosen:
        content[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(content, "little")


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
        """Return the pairs with source and target exchanged.

        The nodes that occur are put side by side first, whatever their numbers: of many pairs squares are exchanged at
        once, and the numbers of a few are collected.
        """
        sources, targets = sorted(self.targets), [*numbers_of(self.all_targets())]
        if len(self) <= _LEAST_SHARE * len(sources) * len(targets):
            turned = defaultdict[int, list[int]](list)
            for source, target in self:
                turned[target].append(source)
            return Pairs({target: bits_of(numbers) for target, numbers in turned.items()})
        found = dict.fromkeys(targets, 0)
        for begin in range(0, len(targets), _MOST_DENSE):
            columns = _places(targets[begin : begin + _MOST_DENSE])
            for first in range(0, len(sources), _MOST_DENSE):
                rows = _places(sources[first : first + _MOST_DENSE])
                square = [columns.picked(self.targets[source]) for source in rows.numbers]
                for target, bits in zip(columns.numbers, _transposed(square), strict=False):
                    found[target] |= rows.spread(bits)
        return _of(found)


def _of(targets: Mapping[int, int]) -> Pairs:
    return Pairs({source: bits for source, bits in targets.items() if bits})


@dataclass(frozen=True, slots=True)
class _Places:
    """Ascending numbers of nodes, whose bits may lie side by side."""

    numbers: Sequence[int]
    runs: Sequence[tuple[int, int, int]]
    """(place of the first among the numbers, its number, how many follow one another)"""

    def picked(self, bits: int) -> int:
        """Return the bits at these numbers, side by side."""
        if len(self.runs) <= _MOST_RUNS:
            return sum((bits >> number & (1 << count) - 1) << place for place, number, count in self.runs)
        digits = f"{bits:0{self.numbers[-1] + 1}b}"[::-1]
        return int("".join(map(digits.__getitem__, self.numbers))[::-1], 2)

    def spread(self, bits: int) -> int:
        """Return bits that lie side by side at these numbers."""
        if len(self.runs) <= _MOST_RUNS:
            return sum((bits >> place & (1 << count) - 1) << number for place, number, count in self.runs)
        digits = ["0"] * (self.numbers[-1] + 1)
        for place in numbers_of(bits):
            digits[self.numbers[place]] = "1"
        return int("".join(digits)[::-1], 2)


def _places(numbers: Sequence[int]) -> _Places:
    later = [place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1] + 1]
    bounds = itertools.pairwise([0, *later, len(numbers)])
    return _Places(numbers, [(begin, numbers[begin], end - begin) for begin, end in bounds])


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
