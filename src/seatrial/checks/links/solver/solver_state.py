"""The state from which the solver derives the next round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seatrial.checks.links.solver.endpoints import Endpoints
from seatrial.checks.links.solver.rates import LinkRates
from seatrial.checks.links.solver.records import Observations, PairResult, Topology
from seatrial.util.round_robin import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverState:
    """Everything known about one quantity (rates or costs) of one fabric."""

    observations: Observations
    by_cost: bool
    """Whether the quantity is the cost; otherwise it is the rate."""
    topology: Topology
    rates: LinkRates
    endpoints: Endpoints
    order: tuple[int, ...]
    """The members, shuffled by the seed."""
    first_pairs: tuple[tuple[Pair, ...], ...]
    dead: frozenset[int]

    @property
    def results(self) -> list[PairResult]:
        """The pair results for this quantity, and those that failed."""
        return [pair for pair in self.observations.pairs if pair.failed or (pair.cost is not None) == self.by_cost]

    @property
    def uncontended_pairs(self) -> set[frozenset[int]]:
        """The pairs that were measured while no other pair was active."""
        return {frozenset((link.source, link.target)) for link in self.rates.links.values() if link.uncontended}

    def partners(self, member: int, tried: Iterable[int] = ()) -> list[int]:
        """Return the known-good partners that are not in ``tried``, those without open links first."""
        excluded = {member, *tried}
        spotted = {end for link in self.endpoints.open_links for end in (link.source, link.target)}
        good = [other for other in self.order if other not in excluded and self.endpoints.cleared(other)]
        start = self.order.index(member)
        distance = {other: (index - start) % len(self.order) for index, other in enumerate(self.order)}
        return sorted(good, key=lambda other: (other in spotted, distance[other]))
