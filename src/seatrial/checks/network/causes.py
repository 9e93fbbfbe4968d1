"""The fewest causes that explain which directed pairs of nodes are closed. Pure.

The likely shapes are tried from the largest to the smallest: all pairs; nodes that take no connection, or may make
none; groups that are closed to one another, or in one direction; single pairs.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from seatrial.checks.network.pairs import Pairs, bits_of, numbers_of

_PREFIXES = (8, 12, 16, 20, 22, 23, 24, 25, 26, 27, 28, 32, 48, 56, 64)
"""Lengths in bits by which nodes are divided into subnets."""
_MAX_CLASSES = 64
Shape = Literal["all", "in", "out", "both", "among", "between", "pair", "rest"]

_MANY_PAIRS = 20_000
"""Pairs above which only subnets are tried as groups: then each source stopped early, and no two tried the same."""
_MAX_CAUSES = 16
"""Causes that are worked out; the pairs beyond them are counted."""
_LEAST_TRIED = 2
"""Pairs that a node needs to be named by itself: of two nodes it is not known which one is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Which pairs were tried."""

    nodes: tuple[int, ...]
    """All nodes, ascending."""
    planned: Pairs
    """Each source that reported, with the nodes that it was to connect to."""
    pairs: Pairs
    """The part of ``planned`` about which it reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One explanation of some closed pairs."""

    shape: Shape
    """``in``, ``out``, ``both``: the sources are the nodes that take no connection, make none, or neither. ``among``:
    the sources do not reach one another. ``between``, ``pair``: the sources do not reach the targets. ``rest``: more
    pairs than causes are worked out for."""
    sources: tuple[int, ...]
    targets: tuple[int, ...] = ()
    mutual: bool = False
    """Nor do the targets reach the sources."""
    pairs: Pairs = field(default_factory=Pairs)
    """The closed pairs that it explains."""


def find_causes(
    failed: Pairs, tried: Tried, addresses: Mapping[int, str], hosts: Mapping[int, str] = MappingProxyType({})
) -> list[Cause]:
    """Return the causes.

    Args:
        failed: Pairs that were tried in vain.
        tried: Which pairs were tried.
        addresses: Of each node.
        hosts: Where each node joined, as far as that is known: what several nodes at one place say is one word.
    """
    closed = failed & tried.pairs
    if not closed:
        return []
    if len(closed) == len(tried.pairs) and len(tried.planned.targets) == len(tried.nodes):
        return [Cause(shape="all", sources=tried.nodes, pairs=closed)]
    works = tried.pairs - closed
    divisions = list(_divisions(tried.nodes, works, addresses))
    by_preference = _closed_nodes(closed, works, hosts)
    for named, left in by_preference:
        if len(named) == 1 and not left:
            return named
    if len(tried.pairs) < len(tried.planned):
        # A source that stopped early may have tried nothing but one closed subnet, which makes it no closed node.
        groups = _groups(closed, divisions)
        if len(groups) == 1:
            return groups
    return min((named + _groups(left, divisions) for named, left in by_preference), key=len)


def _closed_nodes(closed: Pairs, works: Pairs, hosts: Mapping[int, str]) -> list[tuple[list[Cause], Pairs]]:
    """Name the nodes where every connection fails, in one direction or both, with the pairs that this leaves.

    First with preference for nodes that take no connection, then for nodes that make none.
    """
    turned = closed.turned()
    mute = {source for source in closed.targets if source not in works.targets}
    reached = works.all_targets()
    deaf = {target for target in turned.targets if not reached >> target & 1}
    both = mute & deaf
    several_in = {node for node in deaf if _has_several(turned.targets[node], hosts)}
    several_out = {node for node in mute if _has_several(closed.targets[node], hosts)}
    # A pair that the other direction has explained accuses nobody else.
    left_in = {node for node in several_in if turned.targets[node] & ~bits_of(several_out)}
    left_out = {node for node in several_out if closed.targets[node] & ~bits_of(several_in)}
    results = []
    for named_in, named_out in ((several_in, left_out), (left_in, several_out)):
        shapes: tuple[tuple[Shape, set[int]], ...] = (
            ("both", both & (named_in | named_out)),
            ("in", named_in - both),
            ("out", named_out - both),
        )
        causes, left = list[Cause](), closed
        for shape, nodes in shapes:
            if nodes:
                into = closed.between(closed.targets, bits_of(nodes)) if shape != "out" else Pairs()
                out_of = closed.between(nodes, -1) if shape != "in" else Pairs()
                cause = Cause(shape=shape, sources=tuple(sorted(nodes)), pairs=into | out_of)
                causes.append(cause)
                left -= cause.pairs
        results.append((causes, left))
    return results


def _has_several(nodes: int, hosts: Mapping[int, str]) -> bool:
    """Return whether enough of these nodes, given as bits, are at different places."""
    if nodes.bit_count() < _LEAST_TRIED:
        return False
    places = set[str]()
    for node in numbers_of(nodes):
        places.add(hosts.get(node) or f"node {node}")
        if len(places) >= _LEAST_TRIED:
            return True
    return False


def _groups(closed: Pairs, divisions: Sequence[Division]) -> list[Cause]:
    """Explain pairs by groups of nodes, the largest first."""
    left, causes = closed, list[Cause]()
    while left and len(causes) < _MAX_CAUSES:
        best = max(_blocks(left, divisions), key=lambda block: (len(block.pairs), -len(block.sources)), default=None)
        if best is None:
            break
        left -= best.pairs
        causes.append(best)
    if left:
        ends = bits_of(left.targets) | left.all_targets()
        causes.append(Cause(shape="rest", sources=tuple(numbers_of(ends)), pairs=left))
    return list(_merged(causes))


def _merged(causes: Sequence[Cause]) -> Iterator[Cause]:
    """Yield the causes, with two opposite directions as one."""
    by_ends = {(cause.sources, cause.targets): cause for cause in causes}
    for cause in causes:
        opposite = by_ends.get((cause.targets, cause.sources))
        if opposite is None or opposite is cause:
            yield cause
        elif cause.sources < cause.targets:
            yield replace(cause, mutual=True, pairs=cause.pairs | opposite.pairs)


def _blocks(left: Pairs, divisions: Sequence[Division]) -> Iterator[Cause]:
    """Yield groups of sources and targets between which no tried pair works."""
    yield from _subnets(left, divisions)
    if len(left) > _MANY_PAIRS:
        return
    cliques: defaultdict[int, int] = defaultdict(int)
    by_row: defaultdict[int, int] = defaultdict(int)
    by_column: defaultdict[int, int] = defaultdict(int)
    for source, targets in left.targets.items():
        by_row[targets] |= 1 << source
        cliques[targets | 1 << source] |= 1 << source
    for target, sources in left.turned().targets.items():
        by_column[sources] |= 1 << target
    candidates = [
        *((group, group) for group, members in cliques.items() if group == members and group.bit_count() > 2),
        *((sources, targets) for targets, sources in by_row.items()),
        *((sources, targets) for sources, targets in by_column.items()),
    ]
    # All pairs of such a group are left, so its size is known without them.
    sources, targets = max(
        candidates, key=lambda ends: (ends[0].bit_count() * ends[1].bit_count(), -ends[0].bit_count())
    )
    yield _block(tuple(numbers_of(sources)), tuple(numbers_of(targets)), left)


def _subnets(left: Pairs, divisions: Sequence[Division]) -> Iterator[Cause]:
    """Yield the two subnets that explain the most pairs, if any do."""
    candidates = [
        (count, -len(division.classes[one]), division.classes[one], division.classes[other])
        for division in divisions
        for (one, other), count in _count_by_classes(left, division).items()
        if count >= _LEAST_TRIED
    ]
    if candidates:
        # Their sizes are known before their pairs, of which there are a hundred thousand at 2,048 nodes.
        _, _, sources, targets = max(candidates, key=lambda candidate: candidate[:2])
        yield _block(sources, targets, left)


def _block(sources: tuple[int, ...], targets: tuple[int, ...], left: Pairs) -> Cause:
    shape: Shape = "among" if sources == targets else "pair" if len(sources) == len(targets) == 1 else "between"
    return Cause(shape=shape, sources=sources, targets=targets, pairs=left.between(sources, bits_of(targets)))


def _count_by_classes(left: Pairs, division: Division) -> Counter[tuple[int, int]]:
    """Return how many pairs are left from one subnet to another one, of those between which none works."""
    counts: Counter[tuple[int, int]] = Counter()
    for source, targets in left.targets.items():
        one = division.class_of[source]
        for other in division.closed[one]:
            counts[one, other] += (targets & division.bits[other]).bit_count()
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The nodes in classes by the first bits of their addresses."""

    classes: tuple[tuple[int, ...], ...]
    bits: tuple[int, ...]
    """The nodes of each class, as bits."""
    class_of: Mapping[int, int]
    closed: tuple[tuple[int, ...], ...]
    """For each class, the classes to which no tried pair works."""


def _divisions(nodes: Sequence[int], works: Pairs, addresses: Mapping[int, str]) -> Iterator[Division]:
    """Yield divisions of the nodes into subnets, each division once."""
    numbers = {}
    for node in nodes:
        try:
            address = ipaddress.ip_address(addresses.get(node, "").partition("%")[0])
        except ValueError:
            return
        numbers[node] = (address.version, int(address), address.max_prefixlen)
    seen = set()
    for prefix in _PREFIXES:
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for node, (version, number, length) in numbers.items():
            groups[version, number >> max(length - prefix, 0)].append(node)
        classes = tuple(map(tuple, groups.values()))
        if 1 < len(classes) <= _MAX_CLASSES and len(classes) < len(numbers) and classes not in seen:
            seen.add(classes)
            yield _divided(classes, works)


def _divided(classes: tuple[tuple[int, ...], ...], works: Pairs) -> Division:
    bits = tuple(map(bits_of, classes))
    reached = [works.between(members, -1).all_targets() for members in classes]
    return Division(
        classes=classes,
        bits=bits,
        class_of={node: number for number, members in enumerate(classes) for node in members},
        closed=tuple(tuple(other for other, its in enumerate(bits) if not its & those) for those in reached),
    )
