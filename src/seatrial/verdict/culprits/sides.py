"""Which side of a transfer is at fault: each member sends and receives, and each can be slow by itself.

A transfer is as fast as the slowest of its sender, its receiver and the link between. So one clean transfer clears a
sender and a receiver, and a slow one accuses three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.verdict.culprits.rates import CONTENDED_GROUP, Rates, clean_unless_listed
from seatrial.verdict.culprits.records import Cell, GroupResult
from seatrial.verdict.statistics import median

__all__ = ["MANY", "PARTNERS", "Side", "Sides", "State", "alike", "both_sides", "other_side", "sides_of", "weigh"]

PARTNERS = 2
"""With so many known-good partners a suspect is slow on a quiet fabric before it is named: one may be a bad link."""
MANY = 4
_ALIKE_SIGMAS = 6
"""Of many that are alike the best and the worst lie about four of these apart."""
_NEARLY = 0.85
"""Of the limit. A member that is further below may be unsteady: one that loses packets is not slow with all alike."""
Side = tuple[int, Literal["send", "receive"]]
State = Literal["good", "bad", "suspect", "contested", "unknown"]
"""``good``: has a clean transfer. ``bad``: none, and slow with good partners on a quiet fabric. ``suspect``: none, and
not confirmed. ``contested``: slow on a quiet fabric with good partners, and clean only while others were at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The state of every side, and the cells that no bad side explains."""

    states: dict[Side, State]
    cells: dict[Side, tuple[Cell, ...]]
    rates: Rates
    broken: frozenset[int]
    """Members that failed by themselves: what is slow with them needs no other explanation."""
    open_cells: tuple[Cell, ...] = ()
    """Slow and not explained, the slowest first."""

    def state(self, side: Side) -> State:
        return self.states.get(side, "unknown")

    def bad(self, member: int) -> bool:
        return member in self.broken or any(self.state(side) == "bad" for side in both_sides(member))

    def dead(self, member: int) -> bool:
        """Bad, and nothing at all came through on a quiet fabric: a group with it would only fail."""
        if member in self.broken:
            return True
        bad = [side for side in both_sides(member) if self.state(side) == "bad"]
        return any(cell.failed for side in bad for cell in self.accusing(side))

    def cleared(self, member: int) -> bool:
        return all(self.state(side) == "good" for side in both_sides(member))

    def explained(self, cell: Cell) -> bool:
        """Slow because of a member that is bad by other evidence, and not by far more than that."""
        if not self.broken.isdisjoint((cell.source, cell.target)):
            return True
        bad = [side for side in sides_of(cell.source, cell.target) if self.state(side) == "bad"]
        return any(not cell.quiet or cell.ratio >= self._least(side) for side in bad)

    def _least(self, side: Side) -> float:
        """What a bad side reaches with any good partner, unless the link is bad, too."""
        return _least(self.rates, self.accusing(side))

    def states_of(self, cell: Cell) -> tuple[State, State]:
        """Of its sender and of its receiver."""
        sender, receiver = sides_of(cell.source, cell.target)
        return self.state(sender), self.state(receiver)

    def accusing(self, side: Side) -> tuple[Cell, ...]:
        """Slow on a quiet fabric with partners that are good on their side, one a partner, and all alike."""
        return alike(
            self.rates,
            (c for c in self.cells.get(side, ()) if c.quiet and self.state(other_side(c, side)) == "good"),
        )

    def contended(self, group: GroupResult) -> bool:
        """So much in a group is slow that its exchanges slowed one another down: that hides what is slower."""
        if group.gbps is None or self.rates.reference is None:
            return False
        most = max(0.02 * len(group.members) * (len(group.members) - 1), 8)
        told = sum(1 for each in group.slow if "bad" not in map(self.state, sides_of(each.source, each.target)))
        return group.gbps < (1 - CONTENDED_GROUP * self.rates.effect) * self.rates.reference or told > most

    def others(self, side: Side, *, besides: Cell) -> list[Cell]:
        """The transfers of a side with other good partners, on a quiet fabric where that was measured."""
        others = [
            cell
            for cell in self.cells.get(side, ())
            if {cell.source, cell.target} != {besides.source, besides.target}
            and self.state(other_side(cell, side)) in ("good", "contested")
        ]
        return [cell for cell in others if cell.quiet] or others

    def elsewhere(self, side: Side, *, besides: Cell) -> float | None:
        """What a side reaches with other good partners; a ratio.

        The best of a few. Of four and more the median of those that are like the best: a member at the limit itself
        has links above it and below, and one that is bad towards some has others that are far better.
        """
        others = self.others(side, besides=besides)
        if not others or (len(others) < MANY and others[0].quiet and all(map(self.rates.slow, others))):
            return None
        best = max(others, key=lambda cell: cell.ratio)
        near = [each for each in others if each.ratio >= best.ratio - _ALIKE_SIGMAS * self.rates.spread(each)]
        return median([each.ratio for each in near]) if len(others) >= MANY else best.ratio

    def at_limit(self, side: Side) -> bool:
        """Good, and yet slow with so many on a quiet fabric that more of them would tell nothing new."""
        many = [cell for cell in self.cells.get(side, ()) if cell.quiet and self.rates.slow(cell)]
        return sum(1 for cell in many if not self.explained(cell)) >= MANY


def alike(rates: Rates, cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The slow ones of a side; where its best is nearly clean, without the far slower: those are not its fault."""
    slow = [cell for cell in cells if rates.slow(cell)]
    least = _least(rates, slow)
    return tuple(cell for cell in slow if cell.ratio >= least)


def _least(rates: Rates, slow: Iterable[Cell]) -> float:
    best = max((cell.ratio for cell in slow), default=0.0)
    return rates.limit * best if best >= _NEARLY * rates.limit else 0.0


def other_side(cell: Cell, side: Side) -> Side:
    return (cell.target, "receive") if side[1] == "send" else (cell.source, "send")


def weigh(rates: Rates, broken: Iterable[int] = ()) -> Sides:
    """Find the state of each side that took part in a measurement."""
    cells: dict[Side, list[Cell]] = {}
    for cell in rates.cells.values():
        cells.setdefault((cell.source, "send"), []).append(cell)
        cells.setdefault((cell.target, "receive"), []).append(cell)
    frozen = {side: tuple(sorted(many, key=lambda cell: (cell.source, cell.target))) for side, many in cells.items()}
    clear = {side for side, many in frozen.items() if any(not rates.slow(cell) for cell in many)}
    clear |= _clear_in_groups(rates)
    apart = frozenset(broken)
    states: dict[Side, State] = dict.fromkeys(clear, "good")
    for side, many in frozen.items():
        quiet = [cell for cell in many if cell.quiet and other_side(cell, side) in clear]
        quiet = [cell for cell in quiet if apart.isdisjoint((cell.source, cell.target))]
        accusers = alike(rates, quiet)
        if side not in clear:
            states[side] = "bad" if len(accusers) >= PARTNERS else "suspect"
        elif len(accusers) >= PARTNERS and not any(cell.quiet and not rates.slow(cell) for cell in many):
            states[side] = "contested"
    sides = Sides(states=states, cells=frozen, rates=rates, broken=apart)
    slow = [cell for cell in rates.cells.values() if rates.slow(cell) and not sides.explained(cell)]
    slow.sort(key=lambda cell: (cell.ratio, cell.source, cell.target))
    return replace(sides, open_cells=tuple(slow))


def _clear_in_groups(rates: Rates) -> set[Side]:
    """Sides of whose exchanges within a group a tenth or more were not slow: behind a slow switch all others are."""
    found: set[Side] = set()
    for group in rates.groups:
        if rates.reference is None or not clean_unless_listed(group, rates.reference, rates.limit, rates.effect):
            continue
        told: dict[Side, int] = {}
        for each in group.slow:
            for side in sides_of(each.source, each.target):
                told[side] = told.get(side, 0) + 1
        most = 0.9 * (len(group.members) - 1)
        for member in group.members:
            found.update(side for side in both_sides(member) if told.get(side, 0) < most)
    return found


def both_sides(member: int) -> tuple[Side, Side]:
    return (member, "send"), (member, "receive")


def sides_of(source: int, target: int) -> tuple[Side, Side]:
    return (source, "send"), (target, "receive")
