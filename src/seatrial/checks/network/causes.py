"""The fewest causes that explain which directed pairs of nodes are closed. Pure.

The likely shapes are tried from the largest to the smallest: all pairs; nodes that take no connection, or may make
none; groups that are closed to one another, or in one direction; single pairs.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Pair = tuple[int, int]
"""(source, target)"""

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
    everybody: frozenset[int]
    """Sources that were to connect to all nodes, not only at the distances 1, 2, 4, ..."""
    near: Mapping[int, frozenset[int]]
    """Source -> nodes at these distances, for each source that reported."""
    untried: Mapping[int, frozenset[int]]
    """Source -> nodes that it was to connect to and did not."""

    def is_tried(self, source: int, target: int) -> bool:
        """Return whether the source reported about a connection to the target."""
        if source == target or source not in self.near or target in self.untried.get(source, ()):
            return False
        return source in self.everybody or target in self.near[source]

    def count_out(self, source: int) -> int:
        """Return how many nodes a source connected to, or tried to."""
        if source not in self.near:
            return 0
        planned = len(self.nodes) - 1 if source in self.everybody else len(self.near[source])
        return planned - len(self.untried.get(source, ()))

    def counts_in(self) -> Mapping[int, int]:
        """Return how many nodes connected to each node, or tried to."""
        counts: Counter[int] = Counter()
        # Thousands of sources may each have stopped before thousands of targets: Counter.update is C, subtract is not.
        untried: Counter[int] = Counter()
        for source, near in self.near.items():
            if source not in self.everybody:
                counts.update(near)
            untried.update(self.untried.get(source, ()))
        common = len(self.everybody)
        return {node: counts[node] - untried[node] + common - (node in self.everybody) for node in self.nodes}


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
    pairs: frozenset[Pair] = field(default_factory=frozenset)
    """The closed pairs that it explains."""


def find_causes(closed: Collection[Pair], tried: Tried, addresses: Mapping[int, str]) -> list[Cause]:
    """Return the causes. ``closed``: pairs that were tried in vain; ``addresses``: of each node."""
    pairs = frozenset(pair for pair in closed if tried.is_tried(*pair))
    if not pairs:
        return []
    num_tried = sum(tried.count_out(node) for node in tried.nodes)
    if len(pairs) == num_tried and len(tried.near) == len(tried.nodes):
        return [Cause(shape="all", sources=tried.nodes, pairs=pairs)]
    divisions = list(_divisions(tried, addresses))
    by_preference = [_closed_nodes(pairs, tried, first=first) for first in ("in", "out")]
    for named, left in by_preference:
        if len(named) == 1 and not left:
            return named
    if any(tried.untried.values()):
        # A source that stopped early may have tried nothing but one closed subnet, which makes it no closed node.
        groups = _groups(set(pairs), pairs, divisions)
        if len(groups) == 1:
            return groups
    return min((named + _groups(left, pairs, divisions) for named, left in by_preference), key=len)


def _closed_nodes(pairs: frozenset[Pair], tried: Tried, *, first: str) -> tuple[list[Cause], set[Pair]]:
    """Name the nodes where every connection fails, in one direction or both. Also return the pairs that are left."""
    explained: dict[str, dict[int, frozenset[Pair]]] = {"in": {}, "out": {}}
    by_end: dict[str, defaultdict[int, set[Pair]]] = {"in": defaultdict(set), "out": defaultdict(set)}
    for source, target in pairs:
        by_end["in"][target].add((source, target))
        by_end["out"][source].add((source, target))
    counts_in = tried.counts_in()
    left = set(pairs)
    for direction in (first, "out" if first == "in" else "in"):
        for node, its_pairs in sorted(by_end[direction].items()):
            num_tried = counts_in[node] if direction == "in" else tried.count_out(node)
            # A pair that the other direction has explained accuses nobody else.
            if num_tried >= _LEAST_TRIED and len(its_pairs) >= num_tried and its_pairs & left:
                explained[direction][node] = frozenset(its_pairs)
                left -= its_pairs
    both = explained["in"].keys() & by_end["out"].keys()
    both = {
        node
        for node in both | (explained["out"].keys() & by_end["in"].keys())
        if _all_fail(node, by_end, counts_in, tried)
    }
    causes = []
    named: tuple[tuple[Shape, set[int]], ...] = (
        ("both", both),
        ("in", explained["in"].keys() - both),
        ("out", explained["out"].keys() - both),
    )
    for shape, names in named:
        if names:
            its = frozenset(
                pair
                for node in names
                for direction in ("in", "out")
                if shape in (direction, "both")
                for pair in by_end[direction][node]
            )
            causes.append(Cause(shape=shape, sources=tuple(sorted(names)), pairs=its))
            left -= its
    return causes, left


def _all_fail(
    node: int, by_end: Mapping[str, Mapping[int, set[Pair]]], counts_in: Mapping[int, int], tried: Tried
) -> bool:
    num_in, num_out = counts_in[node], tried.count_out(node)
    return 0 < num_in <= len(by_end["in"].get(node, ())) and 0 < num_out <= len(by_end["out"].get(node, ()))


def _groups(pairs: set[Pair], closed: frozenset[Pair], divisions: Sequence[Division]) -> list[Cause]:
    """Explain pairs by groups of nodes, the largest first. ``closed``: these pairs and those that are explained."""
    left, causes = set(pairs), list[Cause]()
    closed_blocks = [_count_by_classes(closed, division) for division in divisions] if left else []
    while left and len(causes) < _MAX_CAUSES:
        blocks = _blocks(left, closed_blocks, divisions)
        best = max(blocks, key=lambda block: (len(block[2]), -len(block[0])), default=None)
        if best is None:
            break
        sources, targets, explained = best
        left -= explained
        shape: Shape = "among" if sources == targets else "pair" if len(sources) == len(targets) == 1 else "between"
        causes.append(Cause(shape=shape, sources=sources, targets=targets, pairs=explained))
    if left:
        ends = {node for pair in left for node in pair}
        causes.append(Cause(shape="rest", sources=tuple(sorted(ends)), pairs=frozenset(left)))
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


Block = tuple[tuple[int, ...], tuple[int, ...], frozenset[Pair]]
"""Sources, targets, and the pairs that are explained."""


def _blocks(
    left: set[Pair], closed_blocks: Sequence[Mapping[Pair, int]], divisions: Sequence[Division]
) -> Iterator[Block]:
    """Yield groups of sources and targets between which no tried pair is open.

    ``closed_blocks``: for each division, the number of closed pairs by the classes of source and target.
    """
    yield from _subnets(left, closed_blocks, divisions)
    if len(left) > _MANY_PAIRS:
        return
    rows: defaultdict[int, set[int]] = defaultdict(set)
    columns: defaultdict[int, set[int]] = defaultdict(set)
    for source, target in left:
        rows[source].add(target)
        columns[target].add(source)
    cliques: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    by_row: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    by_column: defaultdict[frozenset[int], list[int]] = defaultdict(list)
    for source, targets in rows.items():
        by_row[frozenset(targets)].append(source)
        cliques[frozenset({*targets, source})].append(source)
    for target, sources in columns.items():
        by_column[frozenset(sources)].append(target)
    candidates = [
        *(
            (tuple(sorted(group)),) * 2
            for group, members in cliques.items()
            if group == set(members) and len(group) > 2
        ),
        *((tuple(sorted(members)), tuple(sorted(targets))) for targets, members in by_row.items()),
        *((tuple(sorted(sources)), tuple(sorted(members))) for sources, members in by_column.items()),
    ]
    # All pairs of such a group are left, so its size is known without building it.
    sources_of_best, targets_of_best = max(
        candidates, key=lambda groups: (len(groups[0]) * len(groups[1]), -len(groups[0]))
    )
    pairs = frozenset((source, target) for source in sources_of_best for target in targets_of_best if source != target)
    yield sources_of_best, targets_of_best, pairs


def _subnets(
    left: set[Pair], closed_blocks: Sequence[Mapping[Pair, int]], divisions: Sequence[Division]
) -> Iterator[Block]:
    """Yield the two subnets that explain the most pairs, if any do."""
    candidates = [
        (count, -len(division.classes[classes[0]]), division, classes)
        for division, num_closed in zip(divisions, closed_blocks, strict=True)
        for classes, count in _count_by_classes(left, division).items()
        if count >= _LEAST_TRIED and num_closed[classes] >= division.num_tried[classes]
    ]
    if candidates:
        # Their sizes are known before their pairs, of which there are a hundred thousand at 2,048 nodes.
        _, _, division, (one, other) = max(candidates, key=lambda candidate: candidate[:2])
        sources, targets = division.classes[one], division.classes[other]
        of = division.class_of
        yield sources, targets, frozenset(pair for pair in left if of[pair[0]] == one and of[pair[1]] == other)


def _count_by_classes(pairs: Collection[Pair], division: Division) -> Counter[Pair]:
    of = division.class_of
    return Counter([(of[source], of[target]) for source, target in pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The nodes in classes by the first bits of their addresses."""

    classes: tuple[tuple[int, ...], ...]
    class_of: Mapping[int, int]
    num_tried: Mapping[Pair, int]
    """(class of the sources, class of the targets) -> pairs that were tried."""


def _divisions(tried: Tried, addresses: Mapping[int, str]) -> Iterator[Division]:
    """Yield divisions of the nodes into subnets, each division once."""
    numbers = {}
    for node in tried.nodes:
        try:
            address = ipaddress.ip_address(addresses.get(node, "").partition("%")[0])
        except ValueError:
            return
        numbers[node] = (address.version, int(address), address.max_prefixlen)
    seen = set()
    for prefix in _PREFIXES:
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for node, (version, number, bits) in numbers.items():
            groups[version, number >> max(bits - prefix, 0)].append(node)
        classes = tuple(tuple(sorted(group)) for group in groups.values())
        if 1 < len(classes) <= _MAX_CLASSES and len(classes) < len(numbers) and classes not in seen:
            seen.add(classes)
            class_of = {node: number for number, members in enumerate(classes) for node in members}
            yield Division(classes=classes, class_of=class_of, num_tried=_num_tried(tried, classes, class_of))


def _num_tried(tried: Tried, classes: Sequence[Sequence[int]], class_of: Mapping[int, int]) -> Mapping[Pair, int]:
    counts: Counter[Pair] = Counter()
    members_of = [frozenset(members) for members in classes]
    for source, near in tried.near.items():
        of_source = class_of[source]
        if source in tried.everybody:
            for number, members in enumerate(members_of):
                counts[of_source, number] += len(members) - (number == of_source)
        else:
            counts.update((of_source, class_of[target]) for target in near)
        untried = tried.untried.get(source, frozenset())
        for number, members in enumerate(members_of) if untried else ():
            counts[of_source, number] -= len(members & untried)
    return counts
