"""The diagnosis: it derives the culprits from the observations, whose order has no influence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Literal

from seatrial.checks.links.solver.cover import most_rounds
from seatrial.checks.links.solver.cuts import Cut, find_cuts, join_switches, name_cuts
from seatrial.checks.links.solver.endpoints import (
    MIN_PARTNERS,
    Endpoints,
    classify_endpoints,
    endpoints_of,
    endpoints_of_member,
)
from seatrial.checks.links.solver.rates import LinkRates, gather
from seatrial.checks.links.solver.records import (
    FAILURES,
    Diagnosis,
    DirectedLink,
    Direction,
    LinkLimits,
    MemberKind,
    Observations,
    Suspect,
    Topology,
)
from seatrial.checks.links.solver.together import holds_one, of_sources, together, without_parts

_NO_LIMITS = LinkLimits()
_MOST_LINKS = 8
_LEAST_HUB = 3
"""From this number of slow links on, one member is at fault instead of its links."""
_LEAST_TO_OTHERS = 2
"""The least number of those links that must lead to members that are neither bad nor have as many slow links."""
_SIGMAS = 3
"""A link within this many standard deviations of the limit is measured again."""
ENOUGH_REPEATS = 45
"""The number of transfers from which on the result for a link is final."""


def solve(observations: Observations, topology: Topology, limits: LinkLimits = _NO_LIMITS) -> Diagnosis:
    """Name the culprits, and list what could not be determined.

    LinkRates and costs are judged separately, each relative to its own reference. Raises ValueError for a result of a
    member that the topology does not have.
    """
    diagnosis = _solve_quantity(observations, topology, limits, by_cost=False)
    if all(pair.cost is None for pair in observations.pairs):
        return diagnosis
    costs = _solve_quantity(observations, topology, limits, by_cost=True)
    known = {(suspect.kind, suspect.members) for suspect in diagnosis.culprits}
    return replace(
        diagnosis,
        culprits=diagnosis.culprits
        + tuple(suspect for suspect in costs.culprits if (suspect.kind, suspect.members) not in known),
        unconfirmed=diagnosis.unconfirmed + costs.unconfirmed,
        remains=diagnosis.remains + tuple(text for text in costs.remains if text not in diagnosis.remains),
    )


def _solve_quantity(observations: Observations, topology: Topology, limits: LinkLimits, *, by_cost: bool) -> Diagnosis:
    """Return the diagnosis by rates or by costs alone."""
    rates = gather(observations, topology, limits, by_cost=by_cost)
    if not rates.links and not rates.groups:
        return Diagnosis()
    endpoints = classify_endpoints(rates)
    cuts = find_cuts(endpoints, topology)
    switches = name_cuts(cuts)
    crossing = {link for switch in switches for link in switch.evidence}
    named_cuts = tuple(cut for cut in cuts if not crossing.isdisjoint(cut.links))
    members, switches = join_switches(_suspect_members(endpoints, topology), switches, rates)
    links, unconfirmed = _suspect_links(endpoints, named_cuts, topology, observations.given_up)
    named = {end for suspect in members for end in suspect.members}
    opened = [link for link in _failed_once(rates, named_cuts, links) if named.isdisjoint((link.source, link.target))]
    links = _merge_hubs(links, opened, topology, named)
    unconfirmed = tuple(dict.fromkeys((*unconfirmed, *opened)))
    # A member that is named for several slow links explains its other slow links, too.
    hubs = {end for suspect in links if suspect.kind == topology.kind for end in suspect.members}
    unconfirmed = tuple(link for link in unconfirmed if hubs.isdisjoint((link.source, link.target)))
    culprits = [*members, *switches, *links, *_whole_fabric(rates, limits, by_cost)]
    silent = {
        member
        for suspect in links
        if hubs.issuperset(suspect.members)
        for member in suspect.members
        if suspect.ratio == 0
    }
    failed_groups, remains = _failed_groups(rates, endpoints, silent, topology)
    if len(members) > len(topology.members) / 2:
        share = f"{len(members)} of {len(topology.members)}"
        what = f"{share} are slower than the rest: two kinds of members, or a common cause"
        culprits = [Suspect(kind="fabric", members=topology.members, why=what), *switches]
    if observations.rounds >= most_rounds(topology):
        remains.append(f"the search was ended after {observations.rounds} rounds")
    if rates.contended and (rates.groups or any(not link.uncontended for link in rates.links.values())):
        remains.append("the pairs slowed one another down: what is slower than they were together was not seen")
    if not by_cost:
        gaps = _uncovered(observations, topology, {member for culprit in members for member in culprit.members})
        if gaps:
            remains.append(gaps)
    return Diagnosis(
        culprits=(*_with_the_cpu(culprits, topology), *failed_groups),
        unconfirmed=unconfirmed,
        remains=tuple(remains),
        reference=rates.reference,
        limit=None if rates.reference is None else rates.limit * rates.reference,
    )


def _suspect_members(endpoints: Endpoints, topology: Topology) -> list[Suspect]:
    """Return the members with a bad endpoint."""
    found = []
    for member in topology.members:
        bad = [endpoint for endpoint in endpoints_of_member(member) if endpoints.state(endpoint) == "bad"]
        if not bad:
            continue
        # The other direction of a dead member may have been tried with one partner only; it counts as bad, too.
        is_both = all(endpoints.state(endpoint) in ("bad", "suspect") for endpoint in endpoints_of_member(member))
        direction: Direction = "both" if is_both else bad[0][1]
        links = [link for endpoint in endpoints_of_member(member) for link in endpoints.accusing(endpoint)]
        links.sort(key=lambda link: (link.ratio, link.source, link.target))
        partners = {end for link in links for end in (link.source, link.target)} - {member}
        found.append(
            Suspect(
                kind=topology.kind,
                members=(member,),
                direction=direction,
                why=f"slow with {len(partners)} known-good partners, one at a time",
                ratio=links[0].ratio,
                evidence=tuple(links),
            )
        )
    return found


def _with_the_cpu(suspects: Sequence[Suspect], topology: Topology) -> Iterator[Suspect]:
    """Yield the suspects, and for a member that most links cannot accuse, the slow links whose ends had the CPU.

    One end that says it lacked the CPU does not make such a link fast.
    """
    for suspect in suspects:
        had_cpu = [link for link in suspect.evidence if not link.starved]
        if suspect.kind != topology.kind or not suspect.lacked_cpu or not had_cpu:
            yield suspect
            continue
        by_pair: dict[tuple[int, int], list[DirectedLink]] = {}
        for link in had_cpu:
            by_pair.setdefault((min(link.source, link.target), max(link.source, link.target)), []).append(link)
        for pair, links in sorted(by_pair.items()):
            yield replace(_link(pair, links, pair), why="other links of its ends are slow too, and lacked the CPU")


def link_fault(endpoints: Endpoints, link: DirectedLink) -> Literal["yes", "no", "unclear", "unknown"]:
    """Return whether an uncontended slow link is at fault itself: both ends are good, and clearly better elsewhere.

    ``unclear``: the difference is within the noise. ``unknown``: the ends have no good links for comparison.
    """
    if link.unsteady:
        return "unclear"
    sender, receiver = endpoints_of(link.source, link.target)
    sent, received = endpoints.elsewhere(sender, besides=link), endpoints.elsewhere(receiver, besides=link)
    if sent is None or received is None or endpoints.states_of(link) != ("good", "good"):
        return "unknown"
    limit = endpoints.rates.limit * min(1.0, sent, received)
    # With enough transfers the noise no longer counts in favor of the link.
    few = link.repeats < ENOUGH_REPEATS
    spread = endpoints.rates.spread(link)
    if link.ratio >= limit + (_SIGMAS * spread if few else 0.0):
        return "no"
    return "yes" if link.failed or link.ratio < limit - (_SIGMAS if few else 1) * spread else "unclear"


def _suspect_links(
    endpoints: Endpoints, cuts: Sequence[Cut], topology: Topology, given_up: Set[frozenset[int]]
) -> tuple[list[Suspect], tuple[DirectedLink, ...]]:
    """Return the links that no bad member and no cut explains, and the slow links that are still unconfirmed."""
    clear: dict[tuple[int, int], list[DirectedLink]] = {}
    ambiguous: dict[tuple[int, int], list[DirectedLink]] = {}
    unconfirmed = []
    spare = _spare_partners(endpoints, topology, given_up)
    for link in endpoints.open_links:
        if any(cut.holds(link) for cut in cuts):
            continue
        pair = (min(link.source, link.target), max(link.source, link.target))
        fault = link_fault(endpoints, link) if link.uncontended else ""
        if fault == "yes":
            clear.setdefault(pair, []).append(link)
        elif fault == "unknown" and not _could_separate(endpoints, link, spare):
            ambiguous.setdefault(pair, []).append(link)
        else:
            unconfirmed.append(link)
    for pair in clear.keys() & ambiguous.keys():
        # One direction shows that the link is at fault, and the other direction belongs to the same link.
        clear[pair] += ambiguous.pop(pair)
    found = [_link(pair, links, ()) for pair, links in sorted(clear.items())]
    for pair, links in sorted(ambiguous.items()):
        suspects = {
            endpoint[0]
            for link in links
            for endpoint in endpoints_of(link.source, link.target)
            if endpoints.state(endpoint) != "good"
        }
        found.append(_link(pair, links, tuple(sorted(suspects))))
    return found, tuple(unconfirmed)


def _failed_once(rates: LinkRates, cuts: Sequence[Cut], links: Sequence[Suspect]) -> list[DirectedLink]:
    """Return the links that failed in one round and came through in others, and that nothing else explains."""
    explained = {suspect.members for suspect in links}
    return [
        link
        for key, link in sorted(rates.links.items())
        if link.is_open and (min(key), max(key)) not in explained and not any(cut.holds(link) for cut in cuts)
    ]


def _merge_hubs(
    links: Sequence[Suspect], opened: Iterable[DirectedLink], topology: Topology, named: set[int]
) -> list[Suspect]:
    """Replace several slow links of one member by that member: one bad end is likelier than several bad cables.

    ``opened`` failed once, each with another partner; these name a member, and none of them is named itself.

    Such a member is bad towards some others only, or only at times. It is named only if enough of its slow links lead
    to members that cannot be at fault themselves; if either end explains the links equally well, the links stay named.
    """
    once: dict[tuple[int, int], list[DirectedLink]] = {}
    for link in opened:
        failed = replace(link, ratio=0.0, rate=0.0, failed=link.failures[0])
        once.setdefault((min(link.source, link.target), max(link.source, link.target)), []).append(failed)
    known = [*links, *(_link(pair, failed, ()) for pair, failed in once.items())]
    left, hubs = known, set[int]()
    while left:
        ends = Counter(end for suspect in left for end in suspect.members)
        most = max(ends.values())
        if most < _LEAST_HUB:
            break
        hubs |= {end for end, number in ends.items() if number == most}
        left = [suspect for suspect in left if hubs.isdisjoint(suspect.members)]
    found = []
    of_hubs: dict[int, list[Suspect]] = {}
    for suspect in known:
        for end in hubs.intersection(suspect.members):
            of_hubs.setdefault(end, []).append(suspect)
    bad = hubs | named
    # A member that is already named is not named twice.
    for end in sorted(hubs - named):
        mine = of_hubs[end]
        to_others = [suspect for suspect in mine if bad.isdisjoint({*suspect.members} - {end})]
        if len(to_others) >= _LEAST_TO_OTHERS:
            why = f"{len(mine)} of its links are slow or failed: one end is likelier than {len(mine)} cables"
            found.append(_common(topology.kind, (end,), why, mine))
    explained = {suspect.members[0] for suspect in found} | (hubs & named)
    left = [suspect for suspect in links if explained.isdisjoint(suspect.members)]
    if max(len(left), len(found)) > _MOST_LINKS:
        # That many links do not fail independently; they share an unknown cause.
        several, how = (links, "are slow") if links else (known, "failed once")
        why = f"{len(several)} links between good ends {how}, and no member and no cut between two sets explains them"
        return [_common("fabric", tuple(sorted({end for suspect in several for end in suspect.members})), why, several)]
    return [*found, *left]


def _common(
    kind: MemberKind | Literal["fabric"], members: tuple[int, ...], why: str, links: Sequence[Suspect]
) -> Suspect:
    """Return one likely suspect for several links."""
    ends = frozenset(members)
    sends = {link.source in ends for suspect in links for link in suspect.evidence}
    return Suspect(
        kind=kind,
        members=members,
        direction="both" if len(members) > 1 or len(sends) > 1 else "send" if sends == {True} else "receive",
        confidence="likely",
        why=why,
        ratio=min(suspect.ratio or 0.0 for suspect in links),
        evidence=tuple(suspect.evidence[0] for suspect in links),
    )


def _link(pair: tuple[int, int], links: Sequence[DirectedLink], inseparable: tuple[int, ...]) -> Suspect:
    """Return the suspect for one or both directions of a pair."""
    ways = {link.source == pair[0] for link in links}
    why = "both ends are good with others" if not inseparable else "its ends have no other good peer"
    return Suspect(
        kind="link",
        members=pair,
        direction="both" if len(ways) == 2 else "send" if ways == {True} else "receive",
        confidence="likely" if inseparable else "confirmed",
        why=why,
        ratio=min(link.ratio for link in links),
        evidence=tuple(links),
        inseparable=inseparable,
    )


def _could_separate(endpoints: Endpoints, link: DirectedLink, spare: Mapping[int, Collection[int]]) -> bool:
    """Return True if a measurement with another good member could separate the link from its ends.

    ``spare``: as ``_spare_partners`` returns it.
    """
    return any(
        endpoints.state(endpoint) != "good"
        and len(endpoints.accusing(endpoint)) < MIN_PARTNERS
        and any(other not in (link.source, link.target) for other in spare[endpoint[0]])
        for endpoint in endpoints_of(link.source, link.target)
    )


def _spare_partners(
    endpoints: Endpoints, topology: Topology, given_up: Set[frozenset[int]]
) -> Mapping[int, Collection[int]]:
    """Return good members with which each end of an open link was not measured yet: two, of which one may be the other
    end.

    Pairs that were given up, which did not meet, are measured no more.
    """
    cleared = [member for member in topology.members if endpoints.cleared(member)]
    found: dict[int, Collection[int]] = {}
    for link in endpoints.open_links:
        for end in (link.source, link.target):
            if end not in found:
                met = endpoints.met.get(end, frozenset())
                others = (other for other in cleared if other != end and other not in met)
                found[end] = [*islice((other for other in others if frozenset((end, other)) not in given_up), 2)]
    return found


def _whole_fabric(rates: LinkRates, limits: LinkLimits, by_cost: bool) -> list[Suspect]:
    """Return the fabric if everything is slow alike, which only an external limit can show."""
    if by_cost or limits.gbps is None or rates.reference is None or rates.reference >= limits.gbps:
        return []
    why = f"even healthy pairs reach {rates.reference:.3g} GB/s of {limits.gbps:.3g} ({limits.origin or 'limit'})"
    members = tuple(sorted({member for key in rates.links for member in key}))
    ratio = rates.reference / limits.gbps
    if len(members) == 2:
        why = f"{why}, and nobody else is there"
        return [Suspect(kind="link", members=members, confidence="likely", why=why, ratio=ratio, inseparable=members)]
    return [Suspect(kind="fabric", members=members, why=why, ratio=ratio)]


def _failed_groups(
    rates: LinkRates, endpoints: Endpoints, silent: set[int], topology: Topology
) -> tuple[list[Suspect], list[str]]:
    """Return the fabric for each group that failed twice although its pairs are all clean, and the open questions.

    A pause of one member fails a group, too, but only once. Dead members, dead links and the members in ``silent``
    explain a failed group. If all reports are about one member or one pair, that one is named: it may have made them
    up.
    """
    found: list[Suspect] = []
    remains: list[str] = []
    reports: list[tuple[frozenset[int], ...]] = []
    groups = together(rates)
    dead = of_sources(link for link in rates.links.values() if link.uncontended and link.failed and not link.is_open)
    failed = {
        members: results
        for members, results in groups.failed.items()
        if not any(map(endpoints.dead, members)) and members.isdisjoint(silent) and not holds_one(members, dead)
    }
    clean = {members for members in failed if groups.all_clean(members)}
    whole = {*without_parts(clean)}
    for members, results in failed.items():
        reported = [result for result in results if not result.is_unreported]
        reason = (reported or results)[0].failed or "no measurement was measured"
        reports += [result.reports or (frozenset(),) for result in reported]
        what = f"a group of {len(members)} {'failed' if reported else 'stopped'} ({reason})"
        if not reported:
            remains.append(what)
        elif members not in clean:
            remains.append(f"{what}, and not every pair in it was measured since")
        elif members not in whole:
            continue  # the whole group decides: it is repeated, and this part of it is not
        elif groups.has_passed(members):
            remains.append(f"{what}, and passed when it was repeated")
        elif len(reported) >= FAILURES:
            why = f"the group failed ({reason}) although every pair in it is clean: it takes many at once to show"
            found.append(Suspect(kind="fabric", members=tuple(sorted(members)), confidence="likely", why=why))
        else:
            remains.append(f"{what}, every pair in it is clean, and it did not fail with a report again")
    about = (
        frozenset[int]().union(*reports[0]).intersection(*(each for some in reports for each in some)) if found else ()
    )
    how_many = f"{len(found)} group{'' if len(found) == 1 else 's'}"
    if len(about) == 1:
        why = f"{how_many} with it failed, all reports are about it, and as a pair it is clean"
        found = [Suspect(kind=topology.kind, members=tuple(about), confidence="likely", why=why)]
    elif len(about) == 2:
        pair = tuple(sorted(about))
        why = f"{how_many} with both failed, all reports are about them, and as a pair they are clean"
        found = [Suspect(kind="link", members=pair, confidence="likely", why=why, inseparable=pair)]
    return found, remains


def _uncovered(observations: Observations, topology: Topology, named: Iterable[int]) -> str:
    """Return a clause with the number of unmeasured pairs, without those of members in ``named``; empty if none."""
    excluded = set(named)
    members = [member for member in topology.members if member not in excluded]
    bit = {member: 1 << index for index, member in enumerate(members)}
    paired = dict(bit)
    for pair in observations.pairs:
        if pair.source in bit and pair.target in bit:
            paired[pair.source] |= bit[pair.target]
            paired[pair.target] |= bit[pair.source]
    for group in observations.groups:
        if group.gbps is not None:
            inside = sum(bit[member] for member in group.members if member in bit)
            for member in group.members:
                if member in bit:
                    paired[member] |= inside
    everybody = sum(bit.values())
    missing = sum((everybody & ~paired[member]).bit_count() for member in members) // 2
    return f"{missing} pairs were not measured" if missing else ""
