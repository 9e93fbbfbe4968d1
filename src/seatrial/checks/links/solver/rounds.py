"""Choice of the next round. Each call derives from the observations alone what is still missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from itertools import islice

from seatrial.checks.links.solver.cover import ALL_PAIRS, ONE_BY_ONE, cover_pairs, most_rounds, shuffled
from seatrial.checks.links.solver.cuts import find_cuts
from seatrial.checks.links.solver.endpoints import MANY, MIN_PARTNERS, Endpoint, endpoints_of
from seatrial.checks.links.solver.group_rounds import in_groups, thinner_groups
from seatrial.checks.links.solver.rates import MOST_REPEATS
from seatrial.checks.links.solver.records import DirectedLink, LinkLimits, Observations, Round, Topology
from seatrial.checks.links.solver.solve import ENOUGH_REPEATS, link_fault
from seatrial.checks.links.solver.solver_state import SolverState, solver_state
from seatrial.checks.links.solver.trace import failed_once_more, in_turns, trace
from seatrial.util.round_robin import Pair

_COVER_REPEATS = 9
_UNCONTENDED_REPEATS = 15
_UNCONTENDED_PAIRS = 64
"""The largest number of pairs that one round measures one after the other; over all rounds four times as many."""
_CONTROLS = 3
_THINNING_FACTOR = 8
"""Pairs that slowed one another down are measured again with this many times fewer of them at once."""
_MOST_TURNS = 16
"""The largest number of turns for many suspect pairs."""
_NEIGHBOURS = 3
"""The number of other bad members with which each bad member is measured."""
_NO_LIMITS = LinkLimits()


def next_round(
    observations: Observations,
    topology: Topology,
    limits: LinkLimits = _NO_LIMITS,
    *,
    seed: int = 0,
) -> Round | None:
    """Return what to measure next; None if nothing would change the diagnosis, or after ``most_rounds`` rounds.

    Measure the round, take ``observations.after(...)``, and call again. A pair without a result must be reported as
    failed or as unmet, otherwise it is requested again.
    """
    if len(topology.members) < 2 or observations.rounds >= most_rounds(topology):
        return None
    order = shuffled(topology, seed)
    plan = cover_pairs(order)
    first = _first_pairs(plan, observations, few=len(order) <= ONE_BY_ONE)
    if first is not None:
        return first
    all_steps = (_once_more, trace, failed_once_more, _suspects, _thinner_pairs, thinner_groups, in_groups)
    for by_cost, steps in ((False, all_steps), (True, (_once_more, _suspects, _thinner_pairs))):
        state = solver_state(observations, topology, limits, by_cost=by_cost, order=order, first_pairs=plan)
        for step in steps:
            found = _without(step(state), observations.given_up)
            if found is not None:
                return found
        if not any(pair.cost is not None for pair in observations.pairs):
            break
    return None


def _first_pairs(plan: Sequence[tuple[Pair, ...]], observations: Observations, *, few: bool) -> Round | None:
    """Return the first pairs not measured yet: all pairs of a small fleet, else one for each member."""
    known = {frozenset((pair.source, pair.target)) for pair in observations.pairs} | observations.given_up
    if few:
        missing = tuple(pair for pairs in plan for pair in pairs if frozenset(pair) not in known)
        return Round(pairs=missing, turns=len(missing), repeats=_UNCONTENDED_REPEATS) if missing else None
    for pairs in plan:
        missing = tuple(pair for pair in pairs if frozenset(pair) not in known)
        if missing:
            return Round(pairs=missing, repeats=_COVER_REPEATS if len(missing) > 1 else _UNCONTENDED_REPEATS)
    return None


def _without(wanted: Round | None, given_up: Set[frozenset[int]]) -> Round | None:
    """Return the round without the pairs that were given up; None if none is left."""
    if wanted is None or given_up.isdisjoint(map(frozenset, wanted.pairs)):
        return wanted
    turns = (wanted.pairs[turn :: wanted.turns] for turn in range(wanted.turns))
    return in_turns(([pair for pair in pairs if frozenset(pair) not in given_up] for pairs in turns), wanted.repeats)


def _once_more(state: SolverState) -> Round | None:
    """Return the slow pairs of a small fleet for a second measurement: its first one was uncontended already."""
    if len(state.order) > ONE_BY_ONE:
        return None
    times = Counter(frozenset((result.source, result.target)) for result in state.results)
    near_limit = (1 + state.rates.limit) / 2
    slow = {
        (min(c.source, c.target), max(c.source, c.target)) for c in state.rates.links.values() if c.ratio < near_limit
    }
    if state.rates.reference and state.rates.goal and state.rates.reference < 1.05 * state.rates.goal:
        slow = {(min(key), max(key)) for key in state.rates.links}
    pairs = tuple(sorted(pair for pair in slow if times[frozenset(pair)] <= 2))
    return Round(pairs=pairs, turns=len(pairs), repeats=MOST_REPEATS) if pairs else None


def _suspects(state: SolverState) -> Round | None:
    """Return suspects with known-good partners, slow links with other links of their ends, and healthy pairs.

    They run one after the other without contention; if they are too many for that, with fewer at once than before.
    """
    wanted = _wanted(state) or _among_the_bad(state)
    done = state.uncontended_pairs
    controls = [pair for pair in _controls(state) if frozenset(pair) not in done]
    if len(wanted) > _UNCONTENDED_PAIRS and controls:
        wanted = []
    elif len(wanted) > _UNCONTENDED_PAIRS and state.rates.contended:
        return None
    elif len(wanted) > _UNCONTENDED_PAIRS and (thinner := thinner_groups(state)) is not None:
        return thinner
    elif len(wanted) > _UNCONTENDED_PAIRS and (sieve := _sieve(state, wanted)) is not None:
        return sieve
    wanted = wanted[: max(0, min(_UNCONTENDED_PAIRS, 4 * _UNCONTENDED_PAIRS - len(done)))]
    # Either end may be the first one of a pair, which a round measures once.
    pairs = tuple({frozenset(pair): pair for pair in (*wanted, *controls)}.values())
    if not pairs:
        return None
    return Round(pairs=pairs, turns=len(pairs), repeats=_UNCONTENDED_REPEATS)


def _controls(state: SolverState) -> list[Pair]:
    """Return a few healthy pairs: the rate that they reach without contention is the reference for all others."""
    if len(state.order) < 4:
        return []
    spotted = {end for link in state.endpoints.open_links for end in (link.source, link.target)}
    good = [member for member in state.order if state.endpoints.cleared(member) and member not in spotted]
    if len(good) < 2:
        good = [member for member in state.order if state.endpoints.cleared(member)]
    # Pairs from an earlier round stay the controls, even if other members look healthy by now.
    done = sum(1 for pair in state.uncontended_pairs if all(state.endpoints.cleared(member) for member in pair))
    return [] if done >= _CONTROLS else list(zip(good[::2], good[1::2], strict=False))[:_CONTROLS]


def _wanted(state: SolverState) -> list[Pair]:
    """Return the pairs that need an uncontended measurement before they are judged, the slowest first."""
    endpoints, done = state.endpoints, state.uncontended_pairs
    wanted: dict[frozenset[int], Pair] = {}
    again: dict[frozenset[int], Pair] = {}
    cuts = find_cuts(endpoints, state.topology)
    for cut in cuts:
        confirmed = {end for link in cut.confirmed for end in (link.source, link.target)}
        links = [
            link for link in cut.links if not link.uncontended and confirmed.isdisjoint((link.source, link.target))
        ]
        for link in links[: MIN_PARTNERS + 1 - len(cut.confirmed)]:
            wanted[frozenset((link.source, link.target))] = (link.source, link.target)
    waiting: set[Endpoint] = set()
    ends = (endpoint for link in endpoints.open_links for endpoint in endpoints_of(link.source, link.target))
    for endpoint in dict.fromkeys(ends):
        if endpoints.state(endpoint) in ("suspect", "contested"):
            pairs = _separate(state, endpoint)
            waiting.update({endpoint} if pairs else ())
            wanted.update((frozenset(pair), pair) for pair in pairs)
    asked = Counter[Endpoint]()
    for link in endpoints.open_links:
        mine = endpoints_of(link.source, link.target)
        if waiting.intersection(mine) or any(cut.holds(link) for cut in cuts):
            continue
        pair = (link.source, link.target)
        # A member at the limit itself has many such links, and a few of them are enough.
        if any(asked[endpoint] >= MANY for endpoint in mine):
            continue
        if not link.uncontended:
            if not any(endpoints.at_limit(endpoint) for endpoint in mine):
                asked.update(mine)
                wanted[frozenset(pair)] = pair
                if link.failed:
                    # It will hardly recover, so other links of its ends are needed too.
                    wanted.update((frozenset(other), other) for other in _elsewhere(state, link))
            continue
        fault = link_fault(endpoints, link)
        if fault == "unclear" and link.repeats < ENOUGH_REPEATS:
            asked.update(mine)
            # The links with which it is compared may have been fast by chance.
            compared = (endpoints.others(endpoint, besides=link) for endpoint in mine)
            best = (max(others, key=lambda other: other.ratio) for others in compared if others)
            again.update(
                (frozenset((other.source, other.target)), (other.source, other.target)) for other in (link, *best)
            )
        elif fault != "no":
            wanted.update((frozenset(other), other) for other in _elsewhere(state, link))
    return list((again | {key: pair for key, pair in wanted.items() if key not in done}).values())


def _separate(state: SolverState, endpoint: Endpoint) -> list[Pair]:
    """Return pairs of a suspect with known-good partners; of a contested one with those with whom it was clean."""
    endpoints, member = state.endpoints, endpoint[0]
    if endpoints.state(endpoint) == "contested":
        clean = [link for link in endpoints.links[endpoint] if not endpoints.rates.slow(link) and not link.uncontended]
        return [(link.source, link.target) for link in clean[:MIN_PARTNERS]] or _unlisted(state, endpoint)
    missing = MIN_PARTNERS - len(endpoints.accusing(endpoint))
    tried = endpoints.met.get(member, frozenset())
    pairs = [(member, other) for other in state.partners(member, tried, max(missing, 0))]
    if pairs:
        return pairs
    # No member is known to be good, so the suspect pairs themselves are measured again.
    contended = [link for link in endpoints.links.get(endpoint, ()) if not link.uncontended]
    return [(link.source, link.target) for link in contended[:MIN_PARTNERS]]


def _unlisted(state: SolverState, endpoint: Endpoint) -> list[Pair]:
    """Return pairs of an endpoint with members of a group with whom it was not slow there."""
    member, found, done = endpoint[0], list[Pair](), state.uncontended_pairs
    for place in state.groups_of.get(member, ()):
        listed = state.listed.get((place, endpoint), frozenset())
        others = (other for other in state.rates.groups[place].members if other != member and other not in listed)
        pairs = ((member, other) for other in others if frozenset((member, other)) not in done)
        found += islice(pairs, MIN_PARTNERS - len(found))
    return found


def _among_the_bad(state: SolverState) -> list[Pair]:
    """Return pairs of bad members: if they are clean with one another, something that they share is slow."""
    if len(state.order) <= ALL_PAIRS:
        return []
    bad = [member for member in state.order if state.endpoints.bad(member)]
    known = {frozenset(key) for key in state.rates.links}
    steps = range(1, min(_NEIGHBOURS, len(bad) - 1) + 1)
    pairs = [(member, bad[(index + step) % len(bad)]) for index, member in enumerate(bad) for step in steps]
    return [pair for pair in {frozenset(pair): pair for pair in pairs}.values() if frozenset(pair) not in known]


def _elsewhere(state: SolverState, link: DirectedLink) -> list[Pair]:
    """Return pairs of both ends of a slow link with other known-good partners, for comparison with the link."""
    found = []
    for endpoint in endpoints_of(link.source, link.target):
        mine = state.endpoints.alone.get(endpoint, ())
        if len(mine) <= MANY and all(map(state.endpoints.rates.slow, mine)):
            tried = {link.source, link.target} | state.endpoints.met.get(endpoint[0], frozenset())
            found += [(endpoint[0], other) for other in state.partners(endpoint[0], tried, MIN_PARTNERS)]
    return found


def _sieve(state: SolverState, wanted: Sequence[Pair]) -> Round | None:
    """Return disjoint pairs of those wanted, if they are too many for one at a time, with fewer at once than before."""
    busy: set[int] = set()
    pairs = []
    for pair in wanted:
        if busy.isdisjoint(pair):
            busy.update(pair)
            pairs.append(pair)
    turns = min(len(pairs), _MOST_TURNS)
    at_once = -(-len(pairs) // turns)
    links = state.rates.links
    fresh = tuple(pair for pair in pairs if pair not in links or links[pair].at_once > 2 * at_once)
    if not fresh or at_once < 2:
        return None
    return Round(pairs=fresh, turns=min(len(fresh), turns), repeats=_UNCONTENDED_REPEATS)


def _thinner_pairs(state: SolverState) -> Round | None:
    """Return the first pairs again, with fewer at once, if contention hid their faults."""
    if not state.rates.contended:
        return None
    for pairs in state.first_pairs:
        links = [state.rates.links[pair] for pair in pairs if pair in state.rates.links]
        again = tuple((c.source, c.target) for c in links if c.at_once > 1 and not state.endpoints.explained(c))
        if again:
            at_once = -(-max(state.rates.links[pair].at_once for pair in again) // _THINNING_FACTOR)
            turns = -(-len(again) // at_once)
            return Round(pairs=again, turns=turns, repeats=_COVER_REPEATS)
    return None
