"""Sets of directed pairs of nodes, of which 2,048 nodes have four million: the targets of a source are bits. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Pair = tuple[int, int]
"""(source, target)"""


def bits_of(numbers: Iterable[int]) -> int:
    """Return a number whose set bits are these numbers."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def numbers_of(bits: int) -> Iterator[int]:
    """Yield the numbers of the set bits, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


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
        turned: defaultdict[int, int] = defaultdict(int)
        for source, bits in self.targets.items():
            for target in numbers_of(bits):
                turned[target] |= 1 << source
        return Pairs(turned)


def _of(targets: Mapping[int, int]) -> Pairs:
    return Pairs({source: bits for source, bits in targets.items() if bits})
