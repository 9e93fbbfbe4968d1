"""The state from which the solver derives the next round."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from seatrial.checks.links.solver.endpoints import Endpoint, Endpoints, classify_endpoints, endpoints_of
from seatrial.checks.links.solver.rates import LinkRates, gather
from seatrial.checks.links.solver.records import LinkLimits, Observations, PairResult, Topology
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
    dead: Set[int]
    uncontended_pairs: Set[frozenset[int]]
    """The pairs that were measured while no other pair was active."""
    places: Mapping[int, int]
    """The place of each member in ``order``."""
    good: tuple[Sequence[int], ...]
    """The members that send and receive well, in that order: those without open links, and those with some."""
    groups_of: Mapping[int, Sequence[int]]
    """Member -> the places of the groups with it that passed."""
    listed: Mapping[tuple[int, Endpoint], Set[int]]
    """Place of a group, endpoint -> the other ends of its exchanges that the group lists."""

    @property
    def results(self) -> list[PairResult]:
        """The pair results for this quantity, and those that failed."""
        return [pair for pair in self.observations.pairs if pair.failed or (pair.cost is not None) == self.by_cost]

    def partners(self, member: int, tried: Container[int], most: int) -> list[int]:
        """Return known-good partners that are not in ``tried``, those without open links first."""
        start, found = self.places[member], list[int]()
        for good in self.good:
            first = bisect_left(good, start, key=self.places.__getitem__)
            others = (good[(first + step) % len(good)] for step in range(len(good)))
            left = (other for other in others if other != member and other not in tried)
            found += islice(left, most - len(found))
        return found


def solver_state(
    observations: Observations,
    topology: Topology,
    limits: LinkLimits,
    *,
    by_cost: bool,
    order: tuple[int, ...],
    first_pairs: tuple[tuple[Pair, ...], ...],
) -> SolverState:
    """Return what is known about one quantity."""
    rates = gather(observations, topology, limits, by_cost=by_cost)
    endpoints = classify_endpoints(rates)
    spotted = {end for link in endpoints.open_links for end in (link.source, link.target)}
    good = [member for member in order if endpoints.cleared(member)]
    groups_of: defaultdict[int, list[int]] = defaultdict(list)
    listed: defaultdict[tuple[int, Endpoint], set[int]] = defaultdict(set)
    for place, group in enumerate(rates.groups):
        if group.gbps is None:
            continue
        for member in group.members:
            groups_of[member].append(place)
        for slow in group.slow:
            sender, receiver = endpoints_of(slow.source, slow.target)
            listed[place, sender].add(slow.target)
            listed[place, receiver].add(slow.source)
    return SolverState(
        observations=observations,
        by_cost=by_cost,
        topology=topology,
        rates=rates,
        endpoints=endpoints,
        order=order,
        first_pairs=first_pairs,
        dead=endpoints.dead_members & {*topology.members},
        uncontended_pairs={frozenset((link.source, link.target)) for link in rates.links.values() if link.uncontended},
        places={member: place for place, member in enumerate(order)},
        good=tuple([member for member in good if (member in spotted) == is_spotted] for is_spotted in (False, True)),
        groups_of=groups_of,
        listed=listed,
    )
