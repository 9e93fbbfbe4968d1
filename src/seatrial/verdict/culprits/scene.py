"""What the next round is worked out from: all that is known, weighed, and whom to ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seatrial.verdict.circle import Pair
from seatrial.verdict.culprits.rates import Rates
from seatrial.verdict.culprits.records import Observations, PairResult, Topology
from seatrial.verdict.culprits.sides import Sides

__all__ = ["Scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One quantity of one fabric, as it stands."""

    observations: Observations
    latency: bool
    """Which of the two quantities is looked at."""
    topology: Topology
    rates: Rates
    sides: Sides
    order: tuple[int, ...]
    """The members, shuffled by the seed, those of one switch together."""
    first_pairs: tuple[tuple[Pair, ...], ...]
    dead: frozenset[int]

    @property
    def of_kind(self) -> list[PairResult]:
        """The results that tell of this quantity."""
        return [each for each in self.observations.pairs if each.failed or (each.latency_s is not None) == self.latency]

    @property
    def quiet_pairs(self) -> set[frozenset[int]]:
        """Measured with nobody else at work."""
        return {frozenset((cell.source, cell.target)) for cell in self.rates.cells.values() if cell.quiet}

    def partners(self, member: int, tried: Iterable[int] = ()) -> list[int]:
        """Known-good partners: spotless ones first, those of its own switch before, then by the seeded order."""
        mine = self.topology.switch.get(member)
        apart = {member, *tried}
        spotted = {end for cell in self.sides.open_cells for end in (cell.source, cell.target)}
        rail = self.topology.rail.get(member)
        good = [
            other
            for other in self.order
            if other not in apart and self.sides.cleared(other) and self.topology.rail.get(other) == rail
        ]
        switch = self.topology.switch
        start = self.order.index(member)
        place = {other: (index - start) % len(self.order) for index, other in enumerate(self.order)}
        return sorted(good, key=lambda other: (other in spotted, switch.get(other) != mine, place[other]))
