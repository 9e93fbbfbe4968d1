"""The state of each endpoint: every member sends and receives, and either can be slow by itself.

A transfer is as fast as the slowest of its sender, its receiver and the link between them. So one clean transfer clears
a sender and a receiver, and one slow transfer accuses all three.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from seatrial.checks.links.solver.rates import CONTENDED_GROUP, LinkRates, clean_unless_listed
from seatrial.checks.links.solver.records import DirectedLink, GroupResult
from seatrial.evidence.statistics import median

MIN_PARTNERS = 2
"""A member is named once it is slow with this many known-good partners without contention: one could be a bad link."""
MANY = 4
_ALIKE_SIGMAS = 6
"""Values within this many standard deviations of the best count as similar. The extremes of many similar values lie
about four apart."""
_NEARLY = 0.85
"""The share of the limit below which a member may be unsteady: if it loses packets, its links are not slow alike."""
Endpoint = tuple[int, Literal["send", "receive"]]
EndpointState = Literal["good", "bad", "suspect", "contested", "unknown"]
"""``good``: it has a clean transfer. ``bad``: it has none, and was slow with good partners without contention.
``suspect``: it has none, and that is not confirmed. ``contested``: it was slow with good partners without contention,
and clean only under contention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Links of one endpoint of which all but one are what that one is compared with. There may be thousands."""

    links: Mapping[int, DirectedLink]
    """By the member at the other end."""
    best: tuple[float, float]
    """The two highest ratios."""
    near: tuple[Sequence[float], Sequence[float]]
    """The ratios near the best one, ascending; and near the second one, where the best one is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The state of every endpoint, and the slow links that no bad endpoint explains."""

    states: Mapping[Endpoint, EndpointState]
    links: Mapping[Endpoint, tuple[DirectedLink, ...]]
    rates: LinkRates
    accusers: Mapping[Endpoint, tuple[DirectedLink, ...]]
    """The uncontended slow links to good partners that are slow alike, one for each partner."""
    least: Mapping[Endpoint, float]
    """The least ratio that each bad endpoint accounts for."""
    dead_members: Set[int]
    compared: Mapping[Endpoint, Sequence[_Compared]]
    """The uncontended links of each endpoint to good partners, and all of them."""
    alone: Mapping[Endpoint, Sequence[DirectedLink]]
    """The links of each endpoint that were measured without contention."""
    met: Mapping[int, Set[int]]
    """Member -> those with which it was measured without contention."""
    open_links: tuple[DirectedLink, ...] = ()
    """The slow links that are not explained, the slowest first."""
    num_open: Mapping[Endpoint, int] = field(default_factory=dict)
    """The number of those of each endpoint that were measured without contention."""

    def state(self, endpoint: Endpoint) -> EndpointState:
        """Return the state of one endpoint, ``unknown`` if it was not measured."""
        return self.states.get(endpoint, "unknown")

    def bad(self, member: int) -> bool:
        """Return True if the member sends or receives badly."""
        return any(self.state(endpoint) == "bad" for endpoint in endpoints_of_member(member))

    def dead(self, member: int) -> bool:
        """Return True if a bad endpoint of the member let nothing through: any group with the member would fail."""
        return member in self.dead_members

    def cleared(self, member: int) -> bool:
        """Return True if the member both sends and receives well."""
        return all(self.state(endpoint) == "good" for endpoint in endpoints_of_member(member))

    def explained(self, link: DirectedLink) -> bool:
        """Return True if one end is bad by other evidence and the link is not far slower than that end."""
        bad = [endpoint for endpoint in endpoints_of(link.source, link.target) if self.state(endpoint) == "bad"]
        return any(not link.uncontended or link.ratio >= self.least[endpoint] for endpoint in bad)

    def states_of(self, link: DirectedLink) -> tuple[EndpointState, EndpointState]:
        """Return the state of the sender and the state of the receiver."""
        sender, receiver = endpoints_of(link.source, link.target)
        return self.state(sender), self.state(receiver)

    def accusing(self, endpoint: Endpoint) -> tuple[DirectedLink, ...]:
        """Return the uncontended slow links to good partners that are slow alike, one for each partner."""
        return self.accusers.get(endpoint, ())

    def contended(self, group: GroupResult) -> bool:
        """Return True if the exchanges of a group slowed one another down, which hides slow members and links."""
        if group.gbps is None or self.rates.reference is None:
            return False
        most = max(0.02 * len(group.members) * (len(group.members) - 1), 8)
        listed = sum(1 for pair in group.slow if "bad" not in map(self.state, endpoints_of(pair.source, pair.target)))
        return group.gbps < (1 - CONTENDED_GROUP * self.rates.effect) * self.rates.reference or listed > most

    def others(self, endpoint: Endpoint, *, besides: DirectedLink) -> list[DirectedLink]:
        """Return the links of an endpoint to other good partners; the uncontended ones only, if there are any."""
        others = [
            link
            for link in self.links.get(endpoint, ())
            if {link.source, link.target} != {besides.source, besides.target}
            and self.state(_opposite(link, endpoint)) in ("good", "contested")
        ]
        return [link for link in others if link.uncontended] or others

    def elsewhere(self, endpoint: Endpoint, *, besides: DirectedLink) -> float | None:
        """Return the ratio that an endpoint reaches with other good partners; None if that is unknown.

        With fewer than four such partners this is the best ratio. With four or more it is the median of the ratios near
        the best: a member at the limit itself has links above and below it, and a member that is bad towards some
        partners has others that are far better.
        """
        end = _opposite(besides, endpoint)[0]
        for compared in self.compared.get(endpoint, ()):
            mine = compared.links.get(end)
            num_others = len(compared.links) - (mine is not None)
            if num_others:
                break
        else:
            return None
        if num_others < MANY:
            others = [link for link in compared.links.values() if link is not mine]
            if others[0].uncontended and all(map(self.rates.slow, others)):
                return None
            return max(link.ratio for link in others)
        if mine is not None and mine.ratio == compared.best[0]:
            return _middle(compared.near[1])
        near = compared.near[0]
        if mine is None or mine.ratio < compared.best[0] - _ALIKE_SIGMAS * self.rates.spread(mine):
            return _middle(near)
        return _middle(near, without=bisect_left(near, mine.ratio))

    def at_limit(self, endpoint: Endpoint) -> bool:
        """Return True when a healthy endpoint has been slow against enough peers, without contention, that more rounds
        add nothing."""
        return self.num_open.get(endpoint, 0) >= MANY


def _middle(ordered: Sequence[float], without: int | None = None) -> float:
    """Return the median of ascending values, without the one at a place."""
    if without is None:
        return median([ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]])
    places = ((len(ordered) - 2) // 2, (len(ordered) - 1) // 2)
    return median([ordered[place + (place >= without)] for place in places])


def _alike(rates: LinkRates, links: Iterable[DirectedLink]) -> tuple[DirectedLink, ...]:
    """Return the slow links of an endpoint; if its best is nearly clean, without those that are far slower."""
    slow = [link for link in links if rates.slow(link)]
    least = _least(rates, slow)
    return tuple(link for link in slow if link.ratio >= least)


def _least(rates: LinkRates, slow: Iterable[DirectedLink]) -> float:
    """Return the least ratio that a bad endpoint with these slow links accounts for; a slower link is bad itself."""
    best = max((link.ratio for link in slow), default=0.0)
    return rates.limit * best if best >= _NEARLY * rates.limit else 0.0


def _opposite(link: DirectedLink, endpoint: Endpoint) -> Endpoint:
    """Return the other endpoint of a link."""
    return (link.target, "receive") if endpoint[1] == "send" else (link.source, "send")


def classify_endpoints(rates: LinkRates) -> Endpoints:
    """Find the state of each endpoint that took part in a measurement."""
    links: dict[Endpoint, list[DirectedLink]] = {}
    for link in rates.links.values():
        links.setdefault((link.source, "send"), []).append(link)
        links.setdefault((link.target, "receive"), []).append(link)
    frozen = {
        endpoint: tuple(sorted(many, key=lambda link: (link.source, link.target))) for endpoint, many in links.items()
    }
    clear = {endpoint for endpoint, many in frozen.items() if any(not rates.slow(link) for link in many)}
    clear |= _clear_in_groups(rates)
    states: dict[Endpoint, EndpointState] = dict.fromkeys(clear, "good")
    for endpoint, many in frozen.items():
        steady = [link for link in many if link.uncontended and not link.unsteady]
        accusers = _alike(rates, (link for link in steady if _opposite(link, endpoint) in clear))
        if endpoint not in clear:
            states[endpoint] = "bad" if len(accusers) >= MIN_PARTNERS else "suspect"
        elif len(accusers) >= MIN_PARTNERS and not any(link.uncontended and not rates.slow(link) for link in many):
            states[endpoint] = "contested"
    endpoints = _indexed(rates, states, frozen)
    slow = [link for link in rates.links.values() if rates.slow(link) and not endpoints.explained(link)]
    slow.sort(key=lambda link: (link.ratio, link.source, link.target))
    num_open = Counter(end for link in slow if link.uncontended for end in endpoints_of(link.source, link.target))
    return replace(endpoints, open_links=tuple(slow), num_open=num_open)


def _indexed(
    rates: LinkRates, states: Mapping[Endpoint, EndpointState], links: Mapping[Endpoint, tuple[DirectedLink, ...]]
) -> Endpoints:
    """Return what is asked about an endpoint for each of its links, of which there may be thousands."""
    accusers, compared = dict[Endpoint, tuple[DirectedLink, ...]](), dict[Endpoint, Sequence[_Compared]]()
    alone = {endpoint: [link for link in many if link.uncontended] for endpoint, many in links.items()}
    for endpoint, many in links.items():
        steady = (link for link in alone[endpoint] if not link.unsteady)
        accusers[endpoint] = _alike(rates, (link for link in steady if states.get(_opposite(link, endpoint)) == "good"))
        pools = (
            [link for link in some if states.get(_opposite(link, endpoint)) in ("good", "contested")]
            for some in (alone[endpoint], many)
        )
        compared[endpoint] = [_compared(rates, endpoint, pool) for pool in pools]
    bad = [endpoint for endpoint, state in states.items() if state == "bad"]
    met: defaultdict[int, set[int]] = defaultdict(set)
    for link in rates.links.values():
        if link.uncontended:
            met[link.source].add(link.target)
            met[link.target].add(link.source)
    return Endpoints(
        states=states,
        links=links,
        rates=rates,
        accusers=accusers,
        least={endpoint: _least(rates, accusers[endpoint]) for endpoint in bad},
        dead_members={endpoint[0] for endpoint in bad if any(link.failed for link in accusers[endpoint])},
        compared=compared,
        alone=alone,
        met=dict(met),
    )


def _compared(rates: LinkRates, endpoint: Endpoint, links: Collection[DirectedLink]) -> _Compared:
    first, second = ([*sorted((link.ratio for link in links), reverse=True)[:2], 0.0, 0.0])[:2]
    is_first = next((link for link in links if link.ratio == first), None)
    near = [
        sorted(link.ratio for link in some if link.ratio >= best - _ALIKE_SIGMAS * rates.spread(link))
        for best, some in ((first, links), (second, [link for link in links if link is not is_first]))
    ]
    return _Compared(
        links={_opposite(link, endpoint)[0]: link for link in links}, best=(first, second), near=(near[0], near[1])
    )


def _clear_in_groups(rates: LinkRates) -> set[Endpoint]:
    """Return the endpoints for which at least a tenth of the exchanges within a group were not slow.

    One clean exchange is not enough here: behind a slow switch, all exchanges but those within it are slow.
    """
    found: set[Endpoint] = set()
    for group in rates.groups:
        if rates.reference is None or not clean_unless_listed(group, rates.reference, rates.limit, rates.effect):
            continue
        listed: dict[Endpoint, int] = {}
        for pair in group.slow:
            for endpoint in endpoints_of(pair.source, pair.target):
                listed[endpoint] = listed.get(endpoint, 0) + 1
        most = 0.9 * (len(group.members) - 1)
        for member in group.members:
            found.update(endpoint for endpoint in endpoints_of_member(member) if listed.get(endpoint, 0) < most)
    return found


def endpoints_of_member(member: int) -> tuple[Endpoint, Endpoint]:
    """Return the sending and the receiving endpoint of a member."""
    return (member, "send"), (member, "receive")


def endpoints_of(source: int, target: int) -> tuple[Endpoint, Endpoint]:
    """Return the sender and the receiver of a transfer."""
    return (source, "send"), (target, "receive")
