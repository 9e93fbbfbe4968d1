"""The state of each endpoint: every member sends and receives, and either can be slow by itself.

A transfer is as fast as the slowest of its sender, its receiver and the link between them. So one clean transfer clears
a sender and a receiver, and one slow transfer accuses all three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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
class Endpoints:
    """The state of every endpoint, and the slow links that no bad endpoint explains."""

    states: dict[Endpoint, EndpointState]
    links: dict[Endpoint, tuple[DirectedLink, ...]]
    rates: LinkRates
    open_links: tuple[DirectedLink, ...] = ()
    """The slow links that are not explained, the slowest first."""

    def state(self, endpoint: Endpoint) -> EndpointState:
        """Return the state of one endpoint, ``unknown`` if it was not measured."""
        return self.states.get(endpoint, "unknown")

    def bad(self, member: int) -> bool:
        """Return True if the member sends or receives badly."""
        return any(self.state(endpoint) == "bad" for endpoint in endpoints_of_member(member))

    def dead(self, member: int) -> bool:
        """Return True if a bad endpoint of the member let nothing through: any group with the member would fail."""
        bad = [endpoint for endpoint in endpoints_of_member(member) if self.state(endpoint) == "bad"]
        return any(link.failed for endpoint in bad for link in self.accusing(endpoint))

    def cleared(self, member: int) -> bool:
        """Return True if the member both sends and receives well."""
        return all(self.state(endpoint) == "good" for endpoint in endpoints_of_member(member))

    def explained(self, link: DirectedLink) -> bool:
        """Return True if one end is bad by other evidence and the link is not far slower than that end."""
        bad = [endpoint for endpoint in endpoints_of(link.source, link.target) if self.state(endpoint) == "bad"]
        return any(
            not link.uncontended or link.ratio >= _least(self.rates, self.accusing(endpoint)) for endpoint in bad
        )

    def states_of(self, link: DirectedLink) -> tuple[EndpointState, EndpointState]:
        """Return the state of the sender and the state of the receiver."""
        sender, receiver = endpoints_of(link.source, link.target)
        return self.state(sender), self.state(receiver)

    def accusing(self, endpoint: Endpoint) -> tuple[DirectedLink, ...]:
        """Return the uncontended slow links to good partners that are slow alike, one for each partner."""
        return _alike(
            self.rates,
            (
                link
                for link in self.links.get(endpoint, ())
                if link.uncontended and not link.unsteady and self.state(_opposite(link, endpoint)) == "good"
            ),
        )

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
        others = self.others(endpoint, besides=besides)
        if not others or (len(others) < MANY and others[0].uncontended and all(map(self.rates.slow, others))):
            return None
        best = max(others, key=lambda link: link.ratio)
        near = [link for link in others if link.ratio >= best.ratio - _ALIKE_SIGMAS * self.rates.spread(link)]
        return median([link.ratio for link in near]) if len(others) >= MANY else best.ratio

    def at_limit(self, endpoint: Endpoint) -> bool:
        """Return True when a healthy endpoint has been slow against enough peers, without contention, that more rounds
        add nothing."""
        many = [link for link in self.links.get(endpoint, ()) if link.uncontended and self.rates.slow(link)]
        return sum(1 for link in many if not self.explained(link)) >= MANY


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
    endpoints = Endpoints(states=states, links=frozen, rates=rates)
    slow = [link for link in rates.links.values() if rates.slow(link) and not endpoints.explained(link)]
    slow.sort(key=lambda link: (link.ratio, link.source, link.target))
    return replace(endpoints, open_links=tuple(slow))


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
