"""Which side of a transfer is at fault: each member sends and receives, and each can be slow by itself.

A transfer is as fast as the slowest of its sender, its receiver and the link between. So one clean transfer clears a
sender and a receiver, and a slow one accuses three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.verdict.culprits.rates import CONTENDED, Rates
from seatrial.verdict.culprits.records import Cell, GroupResult
from seatrial.verdict.statistics import median

__all__ = ["PARTNERS", "Side", "Sides", "State", "both_sides", "other_side", "sides_of", "weigh"]

PARTNERS = 2
"""With so many known-good partners a suspect is slow on a quiet fabric before it is named: one may be a bad link."""
_MANY = 4
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
        """Slow because of a member that is bad by other evidence."""
        if not self.broken.isdisjoint((cell.source, cell.target)):
            return True
        return "bad" in self.states_of(cell)

    def states_of(self, cell: Cell) -> tuple[State, State]:
        """Of its sender and of its receiver."""
        sender, receiver = sides_of(cell.source, cell.target)
        return self.state(sender), self.state(receiver)

    def accusing(self, side: Side) -> tuple[Cell, ...]:
        """Slow on a quiet fabric with partners that are good on their side, one a partner."""
        return tuple(
            cell
            for cell in self.cells.get(side, ())
            if cell.quiet and self.rates.slow(cell) and self.state(other_side(cell, side)) == "good"
        )

    def contended(self, group: GroupResult) -> bool:
        """So much in a group is slow that its exchanges slowed one another down: that hides what is slower."""
        if group.gbps is None or self.rates.reference is None:
            return False
        most = max(0.02 * len(group.members) * (len(group.members) - 1), 8)
        told = sum(1 for each in group.slow if "bad" not in map(self.state, sides_of(each.source, each.target)))
        return group.gbps < CONTENDED * self.rates.reference or told > most

    def elsewhere(self, side: Side, *, besides: Cell) -> float | None:
        """What a side reaches with other good partners, on a quiet fabric where that was measured; a ratio.

        The best of a few. Of four and more the median: a member at the limit itself has links above it and below.
        """
        others = [
            cell
            for cell in self.cells.get(side, ())
            if {cell.source, cell.target} != {besides.source, besides.target}
            and self.state(other_side(cell, side)) in ("good", "contested")
        ]
        ratios = [cell.ratio for cell in others if cell.quiet] or [cell.ratio for cell in others]
        if not ratios:
            return None
        return median(ratios) if len(ratios) >= _MANY else max(ratios)

    def at_limit(self, side: Side) -> bool:
        """Good, and yet slow with so many on a quiet fabric that more of them would tell nothing new."""
        many = [cell for cell in self.cells.get(side, ()) if cell.quiet and self.rates.slow(cell)]
        return sum(1 for cell in many if not self.explained(cell)) >= _MANY


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
        accusers = {
            (cell.target if side[1] == "send" else cell.source)
            for cell in many
            if cell.quiet and rates.slow(cell) and other_side(cell, side) in clear
        } - apart
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
        if group.gbps is None or rates.reference is None or group.gbps * group.told_below < 0.8 * rates.reference:
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
