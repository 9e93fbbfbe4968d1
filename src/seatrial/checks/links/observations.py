"""The answers of the ranks, as observations of the culprit solver."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from seatrial.checks.links.fabrics import Cost, Fabric, costs, device_kind
from seatrial.checks.links.solver import GroupResult, Observations, PairResult
from seatrial.checks.links.solver.cover import ALL_PAIRS, most_rounds
from seatrial.checks.shared.facts import drop_malformed, has_fields, unreadable
from seatrial.checks.shared.speed import CPU_SHARE
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.evidence.statistics import median
from seatrial.rank.groups import is_place
from seatrial.util.text import named_ranks, quoted

Item = TypeVar("Item", Measurement, Fact)
ByStageAndRank = Mapping[tuple[str, int], Sequence[Item]]
"""Measurements or facts by stage and rank: a large fleet has too many to search all of them for each fabric."""

_MOST_REPEATS = 1_000_000
_LONGEST_REASON = 200
"""Characters of a rank about a failure, as many as it sends."""
_MOST_GBPS = 9_000.0
"""The rate that no link has, GB/s: ten times one direction of a GPU's NVLink 5 (datasheet: 1.8 TB/s in both)."""
_LEAST_LATENCY_US = 0.01
"""The latency that no link has, microseconds: light needs as long for 3 m."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the ranks reported in all rounds."""

    evidence: Evidence
    """Without malformed entries."""
    damaged: tuple[str, ...]
    """The facts that could not be read, and the measurements that cannot be."""
    rounds: Mapping[str, Sequence[Fact]]
    """The rounds of each fabric that its first rank has begun: ``value`` is the part of the conductor's request."""
    measurements: ByStageAndRank[Measurement]
    pages: Mapping[int, tuple[str, int]]
    """Rank -> address and port of its page of words."""
    failed: ByStageAndRank[Fact]
    """Transfers and groups that failed, and meetings that failed for want of any connection, as both ends say."""
    unmet: ByStageAndRank[Fact]
    """Meetings that did not come about, which accuses nobody."""
    late: ByStageAndRank[Fact]
    """Groups that had no time for all their exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricObservations:
    """What the ranks measured on one fabric."""

    rates: Observations
    by_cost: Mapping[str, Observations]
    """By the name of the measurement."""
    late: tuple[GroupResult, ...]
    """Groups that had no time for all their exchanges, as if all the others had been clean."""
    unmet: Mapping[frozenset[int], str]
    """The last words about each pair that did not meet."""
    damaged: tuple[str, ...]
    """The words of each rank about one that the round did not let it meet."""

    @property
    def members(self) -> Set[int]:
        """The members that any result is about."""
        observed = (self.rates, *self.by_cost.values())
        pairs = (pair for each in observed for pair in (*each.pairs, *each.outliers))
        groups = (group.members for group in (*self.rates.groups, *self.late))
        return {end for pair in pairs for end in (pair.source, pair.target)}.union(*groups)

    def with_cost(self, cost: Cost) -> Observations:
        """Return the rates with one of the costs, from which the solver derives the next round.

        It knows one quantity besides rates. The late groups are included: another round would not give them more time.
        """
        mine, rates = self.by_cost[cost.measurement], self.rates
        return replace(rates, pairs=rates.pairs + mine.pairs, groups=rates.groups + self.late, outliers=mine.outliers)


def read_answers(evidence: Evidence) -> Answers:
    """Return what the ranks reported, without malformed entries."""
    damaged = unreadable(evidence, _FORMS)
    evidence = drop_malformed(evidence, _FORMS)
    # A rank that lies, or whose clock is broken, must not be the standard for the links of others.
    impossible = [entry for entry in evidence.measurements if _is_impossible(entry)]
    damaged += tuple(dict.fromkeys(f"a {entry.name} of rank {entry.rank} that can be" for entry in impossible))
    evidence = replace(
        evidence, measurements=tuple(entry for entry in evidence.measurements if not _is_impossible(entry))
    )
    # Each rank reports each value of a pair or group once. A repeated one must not be a vote or replace the first one.
    values: dict[tuple[str, str, int | None, int | None], Measurement] = {}
    repeated: dict[str, None] = {}
    for entry in evidence.measurements:
        if values.setdefault((entry.stage, entry.name, entry.rank, entry.peer), entry) is not entry:
            repeated[f"one {entry.name} of rank {entry.rank} for each transfer"] = None
    damaged += tuple(repeated)
    evidence = replace(evidence, measurements=tuple(values.values()))
    rounds, not_read = _rounds(evidence)
    damaged += not_read
    failed, unmet = _meetings(evidence)
    ends = [(fact.stage, fact.rank, fact.value.get("peer")) for fact in failed]
    damaged += tuple(dict.fromkeys(_directions_without_rate(evidence, rounds, ends)))
    return Answers(
        evidence=evidence,
        damaged=damaged,
        rounds=rounds,
        measurements=_by_stage_and_rank(evidence.measurements),
        pages={
            fact.rank: (fact.value["host"], fact.value["port"])
            for fact in evidence.facts
            if fact.name == "page" and fact.rank is not None
        },
        failed=_by_stage_and_rank(failed),
        unmet=_by_stage_and_rank(unmet),
        late=_by_stage_and_rank(fact for fact in evidence.facts if fact.name == "late"),
    )


def _rounds(evidence: Evidence) -> tuple[Mapping[str, Sequence[Fact]], tuple[str, ...]]:
    """Return the rounds of each fabric that were begun, and what cannot be read of those that were requested."""
    rounds: dict[str, list[Fact]] = {}
    damaged: dict[str, None] = {}
    begun = {(fact.stage, fact.value["fabric"], fact.rank) for fact in evidence.facts if fact.name == "asked"}
    asked = frozenset(evidence.asked)
    for stage, request in evidence.rounds.items():
        read = set[str]()
        for part in filter(_is_part, request["parts"] if has_fields(request, parts=list) else ()):
            fabric, first = part["fabric"], min(rank for group in (part["groups"] or part["pairs"]) for rank in group)
            if fabric in read:
                # Each one would be all measurements of the stage once more.
                damaged[f"one request for {stage} on {fabric}"] = None
            elif (stage, fabric, first) in begun:
                fact = Fact(check="links", name="asked", value=part, rank=first, stage=stage)
                rounds.setdefault(fabric, []).append(fact)
            elif first in asked:
                damaged[f"{stage} on {fabric}, which rank {first} was to begin"] = None
            read.add(fabric)
    return rounds, tuple(damaged)


def _meetings(evidence: Evidence) -> tuple[list[Fact], list[Fact]]:
    """Return the failures that count, and the meetings that did not come about.

    A rank has one word about each peer in a round, and one about joining a group, however often it speaks. Two that
    have met are alone: then a failure is a matter of the two. Before that a third one may have kept one of them away
    or its page from readers; so where one end says that it has met nobody, the other one's failure accuses nobody. No
    connection at all counts as a failure if both ends say so.
    """
    words: dict[tuple[str, int | None, int | None], Fact] = {}
    for fact in evidence.facts:
        if fact.name in ("failed", "unmet", "unreachable"):
            peer = fact.value.get("peer")
            words.setdefault((fact.stage, fact.rank, peer if peer in evidence.ranks else None), fact)
    failed, unmet = list[Fact](), list[Fact]()
    for (stage, rank, peer), fact in words.items():
        other = None if peer is None else words.get((stage, peer, rank))
        names = (fact.name, other.name if other else "")
        is_failure = names == ("unreachable", "unreachable") or (names[0] == "failed" and names[1] in ("", "failed"))
        (failed if is_failure else unmet).append(fact)
    return failed, unmet


def _directions_without_rate(
    evidence: Evidence, rounds: Mapping[str, Iterable[Fact]], failures: Iterable[tuple[str, int | None, int | None]]
) -> Iterator[str]:
    """Yield the ranks that kept back how fast they sent to a peer which says how fast it sent to them.

    ``failures``: (stage, rank, peer) of the transfers that failed.
    """
    sent = {(entry.stage, entry.rank, entry.peer) for entry in evidence.measurements if entry.name == "gbps"}
    failed = {(stage, frozenset((rank, peer))) for stage, rank, peer in failures}
    for fact in itertools.chain.from_iterable(rounds.values()):
        for a, b in (pair for pair in fact.value["pairs"] if len(pair) == 2):
            for source, target in ((a, b), (b, a)):
                is_known = (fact.stage, source, target) in sent or (fact.stage, frozenset((a, b))) in failed
                if not is_known and (fact.stage, target, source) in sent:
                    yield f"a rate of rank {source} to rank {target}"


def _is_impossible(entry: Measurement) -> bool:
    if entry.name in ("gbps", "group_gbps"):
        return entry.value > _MOST_GBPS
    if entry.name == "resent_share":
        return entry.value < 0
    return entry.name == "latency_us" and entry.value < _LEAST_LATENCY_US


def _is_part(value: Any) -> bool:
    """Return whether this is a part of a request as ``round_request.py`` makes it: the events may be damaged."""
    if not has_fields(value, fabric=str, at_once=int, repeats=int, groups=list, pairs=list):
        return False
    below, groups = value.get("list_below_gbps"), [*value["groups"], *value["pairs"]]
    return (
        1 <= value["at_once"] <= _MOST_REPEATS
        and 1 <= value["repeats"] <= _MOST_REPEATS
        and bool(groups)
        and all(isinstance(group, list) and group and all(isinstance(rank, int) for rank in group) for group in groups)
        and _are_disjoint(value["groups"])
        and (below is None or (isinstance(below, (int, float)) and 0 < below < math.inf))
    )


def _are_disjoint(groups: Sequence[Sequence[int]]) -> bool:
    """Return whether no rank is in two groups, which would measure at once."""
    return sum(len(set(group)) for group in groups) == len({rank for group in groups for rank in group})


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "asked": lambda value: has_fields(value, fabric=str),
    "failed": lambda value: has_fields(value, reason=str) and isinstance(value.get("peer"), (int, type(None))),
    "unmet": lambda value: has_fields(value, reason=str) and isinstance(value.get("peer"), (int, type(None))),
    "unreachable": lambda value: has_fields(value, peer=int, reason=str),
    "page": lambda value: is_place(value.get("host"), value.get("port")) if isinstance(value, dict) else False,
    "late": lambda value: has_fields(value, fabric=str),
}


def _by_stage_and_rank(items: Iterable[Item]) -> ByStageAndRank[Item]:
    by_stage_and_rank: dict[tuple[str, int], list[Item]] = {}
    for item in items:
        if item.rank is not None:
            by_stage_and_rank.setdefault((item.stage, item.rank), []).append(item)
    return by_stage_and_rank


def observe(answers: Answers, fabric: Fabric) -> FabricObservations:
    """Return what the ranks measured on a fabric, round by round."""
    members = frozenset(fabric.topology.members)
    compared = costs(device_kind(answers.evidence))
    by_cost = {cost.measurement: Observations() for cost in compared}
    rates, late = Observations(), list[GroupResult]()
    not_met: dict[frozenset[int], str] = {}
    damaged: dict[str, None] = {}
    for fact in rounds_of(answers, fabric):
        common: dict[str, Any] = {key: fact.value[key] for key in ("at_once", "repeats")}
        # A rank speaks of those that the round let it meet. With another one it would make a member, or a broken link.
        met, measurements = _met(fact.value, members), list[Measurement]()
        for measurement in _of_members(answers.measurements, fact, fabric):
            if measurement.name == "group_gbps" or met(measurement.rank, measurement.peer):
                measurements.append(measurement)
            else:
                damaged[f"a {measurement.name} of rank {measurement.rank} about a transfer of its round"] = None
        # Of a group, the ranks report outliers only.
        field = "outliers" if fact.value["groups"] else "pairs"
        for cost in compared:
            mine = by_cost[cost.measurement]
            results = tuple(_cost_results(cost, measurements, common))
            by_cost[cost.measurement] = replace(mine, **{field: getattr(mine, field) + results})
        failed, unmet = list[Fact](), list[Fact]()
        for words, kept in ((answers.failed, failed), (answers.unmet, unmet)):
            for item in _of_members(words, fact, fabric):
                peer = item.value.get("peer")
                if met(item.rank, peer):
                    kept.append(item)
                elif peer is not None or not fact.value["groups"]:
                    damaged[f"what rank {item.rank} says of a transfer of its round"] = None
        pairs = _pair_results(measurements, failed, members, common)
        medians = {
            measurement.rank: measurement.value
            for measurement in measurements
            if measurement.name == "group_gbps" and measurement.rank is not None and 0 < measurement.value < math.inf
        }
        groups = [tuple(dict.fromkeys(group)) for group in fact.value["groups"] if members.issuperset(group)]
        on_time = list[GroupResult]()
        inside = _pairs_inside(groups, pairs)
        for number, group in enumerate(groups):
            if len(group) < 2:
                continue
            said = [item for rank in group for item in answers.failed.get((fact.stage, rank), ())]
            missed = [item for rank in group for item in answers.unmet.get((fact.stage, rank), ())]
            result = _group_result(group, inside.get(number, ()), medians, (said, missed), fact.value)
            in_late = [rank for rank in group if (fact.stage, rank) in answers.late]
            # All members hear from the first one that time is up: what less than half of them say is their own.
            if len(in_late) > len(group) / 2 and not said and not missed:
                late.append(replace(result, failed="", gbps=fact.value.get("list_below_gbps") or 1.0, at_once=1))
            else:
                on_time.append(result)
        rates = rates.after(() if groups else tuple(pairs), tuple(on_time))
        if not groups:
            now = {_ends(item): _reason(item) for item in unmet}
            not_met |= now
            rates = replace(rates, unmet=(*rates.unmet, *now))
    return FabricObservations(rates=rates, by_cost=by_cost, late=tuple(late), unmet=not_met, damaged=tuple(damaged))


def _of_members(items: ByStageAndRank[Item], asked: Fact, fabric: Fabric) -> Iterator[Item]:
    """Yield what the members of a fabric said in one round."""
    for rank in fabric.topology.members:
        yield from items.get((asked.stage, rank), ())


def _met(requested: Mapping[str, Any], members: frozenset[int]) -> Callable[[int | None, int | None], bool]:
    """Return a function that returns whether two members are a pair, or of one group, of the requested round."""
    pairs = {frozenset(pair) for pair in requested["pairs"] if members.issuperset(pair)}
    groups = [group for group in requested["groups"] if members.issuperset(group)]
    group_of = {rank: number for number, group in enumerate(groups) for rank in group}

    def met(rank: int | None, peer: int | None) -> bool:
        if rank is None or peer is None or rank == peer:
            return False
        return frozenset((rank, peer)) in pairs or (rank in group_of and group_of[rank] == group_of.get(peer))

    return met


def rounds_of(answers: Answers, fabric: Fabric) -> Sequence[Fact]:
    """Return the rounds of a fabric: a record of somebody else may have more than any search asks for."""
    members = fabric.topology.members
    # Without the members that have no page a search of pairs takes more rounds than one of groups, and one more where
    # their number is odd.
    most = max(most_rounds(fabric.topology), most_rounds(replace(fabric.topology, members=members[:ALL_PAIRS]))) + 1
    return answers.rounds.get(fabric.name, ())[:most]


def _pairs_inside(groups: Iterable[Sequence[int]], pairs: Iterable[PairResult]) -> Mapping[int, Sequence[PairResult]]:
    """Return the pairs inside each of the groups, which have no member in common, by the number of the group."""
    group_of = {rank: number for number, group in enumerate(groups) for rank in group}
    inside: dict[int, list[PairResult]] = {}
    for pair in pairs:
        number = group_of.get(pair.source)
        if number is not None and number == group_of.get(pair.target):
            inside.setdefault(number, []).append(pair)
    return inside


def _ends(fact: Fact) -> frozenset[int]:
    """Return the ranks that a meeting was of."""
    return frozenset(rank for rank in (fact.rank, fact.value.get("peer")) if rank is not None)


def _pair_results(
    measurements: Sequence[Measurement], failed: Iterable[Fact], members: frozenset[int], common: Mapping[str, Any]
) -> list[PairResult]:
    """Return the rate of each direction that came through, and the reason for each that did not."""
    rates = {
        (measurement.rank, measurement.peer): measurement.value
        for measurement in measurements
        if measurement.name == "gbps" and measurement.rank is not None and measurement.peer is not None
    }
    starved = _starved(measurements)
    # Both ends of a pair report its failure, which applies to every direction without a measurement.
    reasons = {
        ends: _reason(fact)
        for fact in failed
        if fact.rank is not None and (peer := fact.value.get("peer")) in members and peer != fact.rank
        for ends in ((fact.rank, peer), (peer, fact.rank))
        if ends not in rates
    }
    return [
        *(
            PairResult(source=a, target=b, gbps=rate, starved=frozenset((a, b)) in starved, **common)
            for (a, b), rate in rates.items()
        ),
        *(PairResult(source=a, target=b, failed=reason, **common) for (a, b), reason in sorted(reasons.items())),
    ]


def _reason(fact: Fact) -> str:
    """Return the words of a rank about a failure: what is not ours stands in quotes."""
    reason = str(fact.value["reason"])
    return reason if re.fullmatch(r"timeout after [\d.]{1,9} s", reason) else quoted(reason, _LONGEST_REASON)


def _starved(measurements: Iterable[Measurement]) -> frozenset[frozenset[int | None]]:
    """Return the pairs of which an end got too little of the CPU time that it could use."""
    return frozenset(
        frozenset((measurement.rank, measurement.peer))
        for measurement in measurements
        if measurement.name == "cpu_share" and not CPU_SHARE.passes(measurement.value)
    )


def _cost_results(cost: Cost, measurements: Sequence[Measurement], common: Mapping[str, Any]) -> Iterator[PairResult]:
    starved, values = _starved(measurements), dict[tuple[int, int], float]()
    reports: dict[tuple[int, int], float] = {}
    for measurement in measurements:
        if measurement.name == cost.measurement and measurement.rank is not None and measurement.peer is not None:
            key = measurement.rank, measurement.peer
            reports[key] = max(measurement.value, reports.get(key, measurement.value))
    for (a, b), value in reports.items():
        # Both ends report a value that covers both ways, and the worse report counts. A report of one end alone is its
        # word about the other one: it accuses nobody, and is no standard.
        if not cost.both_ways:
            values[a, b] = value
        elif (b, a) in reports:
            values[a, b] = max(value, reports[b, a])
    for (a, b), value in values.items():
        # Lost segments are no matter of the CPU.
        lacked = cost.both_ways and frozenset((a, b)) in starved
        yield PairResult(source=a, target=b, cost=value + cost.floor, starved=lacked, **common)


def _group_result(
    members: tuple[int, ...],
    pairs: Iterable[PairResult],
    medians: Mapping[int, float],
    said: tuple[Sequence[Fact], Sequence[Fact]],
    requested: Mapping[str, Any],
) -> GroupResult:
    """Return the result of one group. ``pairs``: those inside it; ``medians`` (GB/s): by rank; ``said``: failures of
    its members, and those that did not meet; ``requested``: the round."""
    failures, unmet = said
    inside = set(members)
    silent = [rank for rank in members if rank not in medians]
    # Where one gave up, those that had met it could not join, either.
    reports = [report for report in _reports(failures, inside) if report[1] or not unmet]
    failed_why = ""
    if failures:
        failed_why = _reason(reports[0][0]) if reports else _alone(failures[0], inside)
    elif unmet:
        peer = _peer(unmet[0], inside)
        met = "all others" if peer is None else f"rank {peer}"
        failed_why = f"rank {unmet[0].rank} says that it did not meet {met}: {_reason(unmet[0])}"
    elif silent:
        failed_why = f"no rate came from {named_ranks(silent)}, and nobody reported a failure"
    gbps = None if failed_why else median([medians[rank] for rank in members])
    listed_below = 0.9
    if gbps and requested.get("list_below_gbps"):
        listed_below = requested["list_below_gbps"] / gbps
    elif gbps:  # nothing was known to be healthy, so the ranks reported all exchanges
        pairs = [pair for pair in pairs if pair.failed or (pair.gbps or 0.0) < listed_below * gbps]
    return GroupResult(
        members=members,
        gbps=gbps,
        failed=failed_why,
        reports=tuple(about for _, about in reports),
        is_unreported=bool(failed_why) and not reports,
        slow=tuple(pairs),
        listed_below=listed_below,
        at_once=requested["at_once"],
        repeats=requested["repeats"],
    )


def _reports(failures: Iterable[Fact], members: Collection[int]) -> Iterator[tuple[Fact, frozenset[int]]]:
    """Yield each failure that counts, and the members that it is about; nobody, where the group was not formed.

    Any member can stop another one at the store, or stay away so that others wait in vain. So silence says nothing
    about who is silent, the word of one end nothing about the other one, and a member that could not join nothing
    about itself. Both ends of a transfer have read that the other one has come: if it fails, both say so. If most
    members could not join, it is a matter of the group: they are of as many hosts, or all of one.
    """
    by_ends = {(fact.rank, _peer(fact, members)): fact for fact in failures}
    outside = [fact for (_, peer), fact in by_ends.items() if peer is None]
    if len(outside) > len(members) / 2:
        yield outside[0], frozenset()
    for (rank, peer), fact in by_ends.items():
        if rank is not None and peer is not None and (peer, rank) in by_ends:
            yield fact, frozenset((rank, peer))


def _peer(fact: Fact, members: Container[int]) -> int | None:
    """Return the member with which a transfer failed; None: the group was not formed."""
    peer = fact.value.get("peer")
    return peer if peer in members and peer != fact.rank else None


def _alone(fact: Fact, members: Container[int]) -> str:
    peer = _peer(fact, members)
    what = "that it could not join, which most do not say" if peer is None else f"of rank {peer} what that one does not"
    return f"rank {fact.rank} says {what}: {_reason(fact)}"
