"""What members share: a switch or a rail whose links are slow together, while each end is good by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from seatrial.verdict.culprits.records import Cell, Named, Topology
from seatrial.verdict.culprits.sides import PARTNERS, Sides

__all__ = ["Cut", "find_cuts", "name_cuts"]

_SHARE = 0.9
"""Of the transfers across a cut so many are slow: a few may have been lucky."""
_MOST_BLOCKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Two sets of members between which all is slow, within which it is not; equal sets: all within one rail."""

    near: frozenset[int]
    far: frozenset[int]
    near_name: str = ""
    far_name: str = ""
    """Empty with a name on the near side: all other members."""
    cells: tuple[Cell, ...]
    """The slow ones across, the slowest first."""

    def holds(self, cell: Cell) -> bool:
        one_way = cell.source in self.near and cell.target in self.far
        return one_way or (cell.target in self.near and cell.source in self.far)

    @property
    def sure(self) -> bool:
        """Confirmed by enough pairs, and slowed down alike."""
        ratios = [cell.ratio for cell in self.confirmed]
        enough = min(PARTNERS + 1, len(self.near), len(self.far) if self.near != self.far else len(self.near) // 2)
        return len(ratios) >= enough and max(ratios) <= 1.25 * min(ratios) + 0.05

    @property
    def confirmed(self) -> tuple[Cell, ...]:
        """Slow on a quiet fabric, without a common member."""
        quiet = [cell for cell in self.cells if cell.quiet]
        degree = Counter(end for cell in quiet for end in (cell.source, cell.target))
        # Those with few others first: they leave the most for the rest.
        quiet.sort(key=lambda cell: sorted((degree[cell.source], degree[cell.target])))
        seen: set[int] = set()
        found = []
        for cell in quiet:
            if seen.isdisjoint((cell.source, cell.target)):
                seen |= {cell.source, cell.target}
                found.append(cell)
        return tuple(found)


def find_cuts(sides: Sides, topology: Topology) -> tuple[Cut, ...]:
    """Where the slow cells that nobody explains fill all that lies between two sets of at least two members."""
    open_cells = [cell for cell in sides.open_cells if "contested" not in sides.states_of(cell)]
    if len(open_cells) < 4:
        return ()
    members = [member for member in topology.members if not sides.bad(member)]
    seen = _look(sides)
    cuts: list[Cut] = []
    for rail, inside in _by_name(topology.rail, members).items():
        cuts += _cut(seen, open_cells, frozenset(inside), frozenset(inside), (rail, rail))
    blocks: Sequence[tuple[str, frozenset[int]]]
    blocks = [(name, frozenset(inside)) for name, inside in _by_name(topology.switch, members).items()]
    if not blocks:
        blocks = [("", block) for block in _components(sides, open_cells, members)]
        if len(blocks) > _MOST_BLOCKS:
            # Too little was measured yet to see who reaches whom.
            return tuple(cuts)
    blocks = [(name, block) for name, block in blocks if len(block) > 1]
    home = {member: index for index, (_, block) in enumerate(blocks) for member in block}
    touched = {
        (min(home[cell.source], home[cell.target]), max(home[cell.source], home[cell.target]))
        for cell in open_cells
        if cell.source in home and cell.target in home and home[cell.source] != home[cell.target]
    }
    whole: set[int] = set()
    if topology.switch and len(blocks) > 2:
        for index in sorted({index for pair in touched for index in pair}):
            name, near = blocks[index]
            found = _cut(seen, open_cells, near, frozenset(home) - near, (name, ""))
            whole |= {index} if found else set()
            cuts += found
    for index, other in sorted(touched):
        if whole.isdisjoint((index, other)):
            (near_name, near), (far_name, far) = blocks[index], blocks[other]
            cuts += _cut(seen, open_cells, near, far, (near_name, far_name))
    return tuple(cuts)


def name_cuts(cuts: Iterable[Cut], topology: Topology) -> tuple[Named, ...]:
    """Name what the confirmed cuts have in common: a rail, one switch towards all others, or what lies between two."""
    confirmed = [cut for cut in cuts if cut.sure]
    found = [
        _named("rail", cut.near, cut.near_name, [cut], "all its pairs are slow, other rails are not")
        for cut in confirmed
        if cut.near == cut.far
    ]
    between = [cut for cut in confirmed if cut.near != cut.far]
    for cut in between:
        if cut.near_name and not cut.far_name:
            found.append(
                _named("switch", cut.near, cut.near_name, [cut], "slow towards every other switch, not within itself")
            )
            continue
        small, large = sorted((cut.near, cut.far), key=len)
        members = small if len(small) < len(large) and not cut.near_name else small | large
        name = f"{cut.near_name}–{cut.far_name}" if cut.near_name else ""
        found.append(_named("switch", members, name, [cut], "everything between two halves is slow, nothing within"))
    return tuple(found)


def _named(kind: str, members: frozenset[int], name: str, cuts: Sequence[Cut], why: str) -> Named:
    cells = sorted((cell for cut in cuts for cell in cut.confirmed), key=lambda cell: (cell.ratio, cell.source))
    return Named(
        kind="rail" if kind == "rail" else "switch",
        members=tuple(sorted(members)),
        name=name,
        why=why,
        ratio=cells[0].ratio,
        evidence=tuple(cells),
    )


def _by_name(labels: Mapping[int, str], members: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for member in members:
        if member in labels:
            found.setdefault(labels[member], []).append(member)
    return {name: found[name] for name in sorted(found)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    bit: dict[int, int]
    sent: dict[int, int]
    """Member -> the bits of those to whom its transfers were measured, in a group or as a pair."""
    clean: tuple[tuple[int, int], ...]
    """On a quiet fabric."""


def _look(sides: Sides) -> _Seen:
    groups = [group for group in sides.rates.groups if group.gbps is not None]
    members = sorted({end for key in sides.rates.cells for end in key}.union(*(group.members for group in groups)))
    bit = {member: 1 << index for index, member in enumerate(members)}
    sent = dict.fromkeys(members, 0)
    for group in groups:
        inside = sum(bit[member] for member in group.members)
        for member in group.members:
            sent[member] |= inside & ~bit[member]
    for source, target in sides.rates.cells:
        sent[source] |= bit[target]
    clean = (key for key, cell in sides.rates.cells.items() if cell.quiet and not sides.rates.slow(cell))
    return _Seen(bit=bit, sent=sent, clean=tuple(clean))


def _cut(
    seen: _Seen, slow: Iterable[Cell], near: frozenset[int], far: frozenset[int], names: tuple[str, str]
) -> list[Cut]:
    if min(len(near), len(far)) < 2:
        return []
    pairs = min(3, len(near) * len(far) if near != far else len(near) * (len(near) - 1) // 2)
    kept: list[Cell] = []
    # One direction alone may be slow. On a quiet fabric nothing that crosses it is clean.
    for start, end in {(near, far), (far, near)}:
        across = [cell for cell in slow if cell.source in start and cell.target in end]
        there = sum(seen.bit.get(member, 0) for member in end)
        crossed = sum((seen.sent.get(member, 0) & there).bit_count() for member in start)
        refuted = any(source in start and target in end for source, target in seen.clean)
        if not refuted and len(across) >= _SHARE * crossed:
            kept += across
    if len({frozenset((cell.source, cell.target)) for cell in kept}) < pairs:
        return []
    kept.sort(key=lambda cell: (cell.ratio, cell.source, cell.target))
    return [Cut(near=near, far=far, near_name=names[0], far_name=names[1], cells=tuple(kept))]


def _components(sides: Sides, slow: Iterable[Cell], members: Sequence[int]) -> list[frozenset[int]]:
    """Members that reach each other over pairs that are clean in both directions."""
    apart: dict[int, set[int]] = {}
    for cell in slow:
        apart.setdefault(cell.source, set()).add(cell.target)
        apart.setdefault(cell.target, set()).add(cell.source)
    near: dict[int, set[int]] = {member: set() for member in members}
    for source, target in sides.rates.cells:
        if source in near and target in near:
            near[source].add(target)
            near[target].add(source)
    groups = [frozenset(group.members) for group in sides.rates.groups if group.gbps is not None]
    left, blocks = set(members), []
    while left:
        reached, todo = set[int](), [min(left)]
        while todo:
            member = todo.pop()
            reached.add(member)
            left.discard(member)
            reach = near[member] & left
            for group in groups:
                if member in group:
                    reach |= left & group
            new = reach - apart.get(member, set())
            left -= new
            todo += new
        blocks.append(frozenset(reached))
    return sorted(blocks, key=lambda block: (-len(block), min(block)))
