"""The judge of the collectives check. Pure: no torch, no group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.checks.collectives.operations import DIRECT, OPERATIONS, array_sizes, busbw_gbps
from seatrial.checks.collectives.params import Params
from seatrial.checks.collectives.rules import WRONG_ELEMENTS, busbw_rule, latency_rule
from seatrial.checks.shared.asked_rounds import is_rounds, judge_rounds
from seatrial.checks.shared.culprits import rank_culprit, ranks_or_links
from seatrial.checks.shared.facts import describe, drop_malformed, has_fields, latest, unreadable
from seatrial.checks.shared.host_activity import is_contention, load_of_others
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Culprit, Finding, Judged, Ruling
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.statistics import VOTING_HOSTS, fleet_effect, host_median
from seatrial.util.text import format_size, named_ranks

_LINES = 8
_MOST_TIMES = 2.0
"""All ranks wait for one another in all_reduce, so that their times are alike but for when they call it, and which of
them is done first: for a few bytes that is up to this factor."""
_ROUNDING = 1e-6
"""A bandwidth and its time come from one float, and both are written whole."""
_MOST_ELEMENTS = 1 << 53
"""More elements than any array has, and exact as a float."""
_NOBODY = Culprit(kind="none", name="nobody")
_NOT_SEPARABLE = Culprit(kind="fabric", name="one of the ranks or the links between them, not separable")
_REPLACE = "take the device out of service and have it tested; do not trust a training that used it."
_TEST_ALL = (
    "run compute, memory and links for longer to tell devices from links; until then do not trust a training there."
)
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "contention": is_contention,
    "rounds": is_rounds,
    # The word of a rank stands in our sentence, so it is one of ours.
    "unsupported": lambda value: has_fields(value, operation=str, reason=str) and value["operation"] in OPERATIONS,
    "wrong_values": lambda value: (
        has_fields(value, operation=str, count=int, contributors=list)
        and value["operation"] in OPERATIONS
        and 0 < value["count"] < _MOST_ELEMENTS
    ),
}


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Fail any wrong element; compare bandwidth and latency with the user's limits, if there are any."""
    if len(evidence.ranks) == 1:
        what = "not checked: there is 1 rank"
        return Ruling(findings=(Finding(severity="info", check="collectives", what=what, culprit=_NOBODY),))
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    evidence = replace(evidence, measurements=latest(evidence.measurements))
    lacking = _lacking(evidence)
    rounds = judge_rounds(evidence, rounds=params.rounds, seconds=params.minutes * 60)
    values = [
        WRONG_ELEMENTS.judge(measurement)
        for measurement in evidence.measurements
        if measurement.name == "wrong_elements" and measurement.variant in OPERATIONS
    ]
    facts = [fact for fact in evidence.facts if fact.name == "wrong_values" and fact.rank is not None]
    wrong = _wrong(values, facts)
    right = {(entry.measurement.rank, entry.measurement.variant) for entry in values if entry.passed}
    limits = list(_judge_limits(evidence, params))
    load = load_of_others(evidence)
    unlike = list(_unlike_others(evidence, limits, params))
    unsure = [entry for entry in limits if load and not entry.passed]
    limits = [entry for entry in limits if entry not in unsure]
    slow = [_slow(evidence, entry) for entry in limits if not entry.passed]
    slow += [_loaded(evidence, entry, load) for entry in unsure]
    return Ruling(
        findings=(
            *(_trace(evidence, wrong, facts, right) if wrong else ()),
            *slow,
            *(_not_checked(evidence, *each) for each in lacking.items()),
        ),
        judged=(*values, *limits),
        absent=(
            *damaged,
            *_absent(evidence, params, lacking),
            *rounds.absent,
            *unlike,
            *(f"{entry.measurement.name} of all_reduce without other load: {load}" for entry in unsure),
        ),
        unjudged=(*(f"collectives: {name} not checked" for name in lacking), *rounds.unjudged),
        unlimited=() if busbw_rule(params).value is not None else ("collectives.min_busbw_gbps",),
    )


def _lacking(evidence: Evidence) -> dict[str, list[str]]:
    """Return the operations that every rank that finished reports as missing in the backend, with its reasons."""
    reasons: dict[str, dict[int | None, str]] = {}
    for fact in evidence.facts:
        if fact.name == "unsupported":
            reasons.setdefault(fact.value["operation"], {})[fact.rank] = fact.value["reason"]
    return {
        name: list(dict.fromkeys(reasons[name].values()))
        for name in OPERATIONS
        if name in reasons and reasons[name].keys() >= set(evidence.asked)
    }


def _not_checked(evidence: Evidence, operation: str, reasons: list[str]) -> Finding:
    return Finding(
        severity="warn",
        check="collectives",
        what=f"{operation} was not checked: backend {evidence.backend} does not have it",
        culprit=_NOBODY,
        evidence=tuple(reasons[:_LINES]),
        action="use another backend or another version of torch if your training needs it.",
    )


def _absent(evidence: Evidence, params: Params, lacking: Collection[str]) -> Iterator[str]:
    if not evidence.asked or len(lacking) == len(OPERATIONS):
        yield "any operation, from any rank"
        return
    measured = {
        (measurement.rank, measurement.name, measurement.variant, measurement.size_bytes)
        for measurement in evidence.measurements
    }
    first = min(evidence.ranks, default=-1)
    for operation, rank in itertools.product(OPERATIONS, evidence.asked):
        if operation in lacking:
            continue
        sizes = array_sizes(operation, params.sizes(evidence.device_type), len(evidence.ranks))
        is_first = rank == first
        is_limited = operation == "all_reduce" and latency_rule(params).value is not None
        times = dict.fromkeys(sizes if is_first else (*sizes[:is_limited], sizes[-1]))
        needed = [("time_us", size or None) for size in times]
        if operation != "barrier":
            needed += [("wrong_elements", None), *(("busbw", size) for size in sizes if is_first)]
        for name, size in needed:
            if (rank, name, operation, size) not in measured:
                yield f"{name} {operation} of rank {rank}" + (f" at {size} B" if size else "")


def _judge_limits(evidence: Evidence, params: Params) -> Iterator[Judged]:
    """Judge all_reduce by the measurements of the first rank, at the sizes that the limits apply to."""
    sizes = params.sizes(evidence.device_type)
    limited = (("busbw", sizes[-1], busbw_rule(params)), ("time_us", sizes[0], latency_rule(params)))
    first = min(evidence.ranks, default=-1)
    for measurement in evidence.measurements:
        if measurement.variant != "all_reduce" or measurement.rank != first:
            continue
        for name, size, rule in limited:
            if (measurement.name, measurement.size_bytes) == (name, size) and rule.value is not None:
                yield rule.judge(measurement)


def _unlike_others(evidence: Evidence, limits: Iterable[Judged], params: Params) -> Iterator[str]:
    """Yield what is absent where the first rank, which alone reports the bandwidth, has far less time than most.

    Without a limit also where it has far more: limits may come from such a run.
    """
    first, hosts = min(evidence.ranks, default=0), evidence.hosts()
    claims: list[tuple[Measurement, float | None]] = [
        (entry.measurement, entry.limit.value) for entry in limits if entry.passed
    ]
    if busbw_rule(params).value is None:
        largest = ("busbw", "all_reduce", params.sizes(evidence.device_type)[-1], first)
        claims += [(e, None) for e in evidence.measurements if (e.name, e.variant, e.size_bytes, e.rank) == largest]
    for entry, limit in claims:
        size = entry.size_bytes or 0
        times = {
            other.rank: other.value
            for other in evidence.measurements
            if (other.name, other.variant, other.size_bytes) == ("time_us", "all_reduce", size) and other.rank in hosts
        }
        if limit is None and first not in times:
            continue  # its time is absent
        own = busbw_gbps(size, times.get(first), len(evidence.ranks))
        is_less = limit is None and entry.value < own * (1 - _ROUNDING)
        if entry.name == "busbw" and (is_less or not entry.value <= own * (1 + _ROUNDING)):
            yield f"a busbw of all_reduce of {format_size(size)} that fits the time that rank {first} reports with it"
            continue
        # Each of several hosts has one vote, that of the first rank too: one other host alone cannot contradict it. Of
        # two hosts the other one speaks, and of one its other ranks.
        several = len({hosts[rank] for rank in times}) >= VOTING_HOSTS
        elsewhere = any(hosts[rank] != hosts[first] for rank in times)
        voters = {
            rank: value
            for rank, value in times.items()
            if value > 0 and (several or (hosts[rank] != hosts[first] if elsewhere else rank != first))
        }
        usual = host_median(voters, hosts, low=True) if voters else 0.0
        if entry.name == "busbw" and limit is not None:
            usual_gbps = busbw_gbps(size, usual, len(evidence.ranks))
            fits = not usual_gbps < limit * (1 - fleet_effect(evidence.device_type))
        else:
            fits = usual <= _MOST_TIMES * times.get(first, 0.0)
            fits = fits and (limit is not None or not voters or times[first] <= _MOST_TIMES * usual)
        if not fits:
            yield (
                f"a time of all_reduce of {format_size(size)} that fits the others: rank {first} reports"
                f" {times.get(first, 0.0):.3g} us, and most other ranks {usual:.3g} us"
            )


def _slow(evidence: Evidence, entry: Judged) -> Finding:
    measurement = entry.measurement
    return Finding(
        severity="fail",
        check="collectives",
        what=(f"all_reduce of {format_size(measurement.size_bytes or 0)} over {len(evidence.ranks)} ranks is too slow"),
        culprit=Culprit(kind="fabric", name="the whole group, which waits for its slowest rank or link"),
        measured=f"{measurement.value:.3g} {measurement.unit}",
        limit=entry.limit,
        action="look at the links, at the transport that was used, and at ranks that are slow alone.",
    )


def _loaded(evidence: Evidence, entry: Judged, load: str) -> Finding:
    """Return the finding for a limit that was missed beside other work: it accuses nobody."""
    what = f"all_reduce over {len(evidence.ranks)} ranks could not be judged: other processes held the CPU"
    return replace(
        _slow(evidence, entry),
        severity="warn",
        what=what,
        culprit=_NOBODY,
        evidence=(load,),
        action="end what else runs on the node and repeat the trial.",
    )


def _wrong(values: Iterable[Judged], facts: Iterable[Fact]) -> dict[tuple[int, str], float]:
    """Return the wrong elements by (rank, operation).

    Facts arrive at once; the measurements of a rank that died or was stopped perhaps never.
    """
    counts: dict[tuple[int, str], float] = {}
    for fact in facts:
        if fact.rank is not None:
            key = fact.rank, fact.value["operation"]
            counts[key] = counts.get(key, 0) + fact.value["count"]
    for entry in values:
        if not entry.passed and entry.measurement.rank is not None:
            key = entry.measurement.rank, entry.measurement.variant
            counts[key] = max(counts.get(key, 0), entry.measurement.value)
    return dict(sorted(counts.items()))


def _trace(
    evidence: Evidence,
    wrong: Mapping[tuple[int, str], float],
    facts: list[Fact],
    right: Collection[tuple[int | None, str]],
) -> list[Finding]:
    """Return a finding for each culprit that the wrong elements have in common.

    A rank that receives a wrong copy of the block that it contributed itself is the culprit for certain: that block
    passes no link. Of the others, only a block that its contributor sent to the receiver itself shows a link.

    Args:
        evidence: All of it.
        wrong: Wrong elements by (rank, operation).
        facts: What was wrong.
        right: The (rank, operation) without wrong elements.
    """
    direct: dict[int, set[int]] = {}
    forwarded: dict[int, set[int]] = {}
    certain = set[int]()
    for fact in facts:
        if fact.rank is None:
            continue
        # A list of any length and content, so it is searched for the ranks once.
        senders = {sender for sender in fact.value["contributors"] if type(sender) is int} & evidence.ranks.keys()
        # Between two ranks there is nobody else.
        is_direct = fact.value["operation"] in DIRECT or len(evidence.ranks) == 2
        (direct if is_direct else forwarded).setdefault(fact.rank, set()).update(senders)
        # An MPI may gather all blocks on one rank, which returns to each its own.
        if fact.rank in senders and (is_direct or evidence.backend != "mpi"):
            certain.add(fact.rank)
    culprits = [rank_culprit(evidence, (rank,)) for rank in sorted(certain)]
    pairs = {(sender, receiver) for receiver, senders in direct.items() for sender in senders - certain}
    lines = []
    if pairs:
        culprits.append(_between(evidence, pairs))
    elif not certain or any(senders - certain for senders in forwarded.values()):
        culprits.append(_NOT_SEPARABLE)
        lines += _unknown_path(forwarded, right)
    named = short_names(evidence.ranks)
    lines += [
        f"{named(fact.rank)}: {_described(evidence, fact.value)}" for fact in facts[:_LINES] if fact.rank is not None
    ]
    lines += [f"{named(rank)}: {count:.0f} wrong elements in {name}" for (rank, name), count in wrong.items()][:_LINES]
    affected = {rank for rank, _ in wrong}
    least = "" if affected <= set(evidence.asked) else "at least "
    on = f"{len(affected)} rank{'' if len(affected) == 1 else 's'}"
    return [
        Finding(
            severity="fail",
            check="collectives",
            what=f"wrong values in {', '.join(sorted({name for _, name in wrong}))}",
            culprit=culprit,
            measured=f"{least}{sum(wrong.values()):.0f} wrong elements on {on}",
            limit=WRONG_ELEMENTS.limit(),
            evidence=tuple(lines),
            # The block that a rank contributed itself passed no link.
            action=_REPLACE if culprit.kind == "rank" else _TEST_ALL,
        )
        for culprit in culprits
    ]


def _unknown_path(forwarded: Mapping[int, set[int]], right: Collection[tuple[int | None, str]]) -> list[str]:
    """Return the reason why nobody is named by blocks that others forwarded; nothing where there were none."""
    if not any(forwarded.values()):
        return []
    lines = ["ranks forward the blocks of others in all_gather and broadcast: the path of a wrong one is not known"]
    if all((receiver, operation) in right for receiver in forwarded for operation in DIRECT):
        lines.append(f"what these ranks receive directly is right ({', '.join(DIRECT)})")
    return lines


def _described(evidence: Evidence, value: Mapping[str, Any]) -> str:
    """Return the wrong values that a rank received: ``operation all_reduce; count 3; contributed by rank 3``."""
    senders = sorted({rank for rank in value["contributors"] if type(rank) is int} & evidence.ranks.keys())
    received = describe({key: part for key, part in value.items() if key != "contributors"})
    return f"{received}; contributed by {named_ranks(senders)}" if senders else received


def _between(evidence: Evidence, pairs: Collection[tuple[int, int]]) -> Culprit:
    """Return the culprit for wrong elements by (sender, receiver): what the pairs have in common, by the fewest hosts.

    The ranks of one host may all lie, so that they count as one end of a link.
    """
    hosts, named = evidence.hosts(), short_names(evidence.ranks)
    ends = {rank for pair in pairs for rank in pair}
    host_pairs = {frozenset(hosts[rank] for rank in pair) for pair in pairs}
    common_hosts = frozenset[str].intersection(*host_pairs)
    if len(ends) == 2:
        sides = [[rank] for rank in sorted(ends)]
    else:
        sides = [[rank for rank in sorted(ends) if hosts[rank] == host] for host in common_hosts]
    if len(sides) == 2:
        sides.sort(key=lambda side: (len(side), side))
        names = [named(side[0]) if len(side) == 1 else evidence.ranks[side[0]].place for side in sides]
        name = f"link {names[0]}–{names[1]}, endpoints not separable"
        return Culprit(kind="link", name=name, ranks=tuple(sorted(ends)))
    first = next(iter(pairs))
    common = {rank for rank in first if all(rank in pair for pair in pairs)}
    if not common and len(host_pairs) > 1:
        common = {rank for rank in ends if hosts[rank] in common_hosts}
    if not common:
        return _NOT_SEPARABLE
    send, receive = (not common.isdisjoint(ranks) for ranks in zip(*pairs, strict=True))
    way = "lead to" if not send else "leave" if not receive else "lead to or leave"
    return ranks_or_links(evidence, sorted(common), way)
