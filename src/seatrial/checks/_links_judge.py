"""What the links check asks for next, and what it says in the end: the culprit solver over each fabric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from seatrial.checks._fleet import listed
from seatrial.checks._links_words import BETWEEN, Cost, Fabric, Words, costs, limit_origin
from seatrial.checks.base import holds, sound
from seatrial.checks.links import EFFECTS
from seatrial.verdict.culprits import (
    Diagnosis,
    GroupResult,
    Limits,
    Observations,
    PairResult,
    Round,
    Topology,
    solve,
)
from seatrial.verdict.culprits import next_round as propose
from seatrial.verdict.culprits.rates import Rates, gather
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact, Figure
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.checks.links import Params

__all__ = ["judge", "next_round"]


Item = TypeVar("Item", Figure, Fact)
ByPlace = Mapping[tuple[str, int], Sequence[Item]]
"""By stage and rank: of a large fleet there is too much to look through for each fabric."""

_GRAVITY = ("info", "warn", "error", "fail")
_MOST_REPEATS = 1_000_000
_FEW_FAST = 2
"""One transfer may have been lucky."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the ranks told."""

    evidence: Evidence
    asked: Mapping[str, Sequence[Fact]]
    """By fabric."""
    figures: ByPlace[Figure]
    failed: ByPlace[Fact]
    late: ByPlace[Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was measured on a fabric."""

    rates: Observations
    by_cost: Mapping[str, Observations]
    """By the name of the figure."""
    late: tuple[GroupResult, ...]
    """Groups that had no time for all their exchanges, as if the others had been clean."""

    def with_cost(self, cost: Cost) -> Observations:
        """To ask by. Rates, and of the costs only this: the solver knows one quantity besides rates.

        With the late groups: another round of them would have no more time.
        """
        mine, rates = self.by_cost[cost.figure], self.rates
        return replace(rates, pairs=rates.pairs + mine.pairs, groups=rates.groups + self.late, outliers=mine.outliers)


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """The devices of all nodes side by side, then the nodes: what the solver wants to know of each."""
    if _not_checked(evidence):
        return None
    told = _read(evidence)
    inside, between = list[dict[str, Any]](), list[dict[str, Any]]()
    for fabric in _fabrics(told.evidence, params):
        seen = _look(told, fabric)
        asked = _propose(seen, fabric, told.evidence)
        if asked is not None:
            (between if fabric.name.startswith(BETWEEN) else inside).append(_part(asked, fabric, seen))
    # Each node is quiet for its own devices; between nodes one round has the fabric for itself.
    parts = inside or between[:1]
    if not parts:
        return None
    ranks = {rank for part in parts for group in (part["pairs"] or part["groups"]) for rank in group}
    return tuple(sorted(ranks)), {"parts": parts}


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Name who is at fault on each fabric; what could not be told is absent."""
    why = _not_checked(evidence)
    if why:
        return Ruling(unjudged=(f"links not measured: {why}",))
    told = _read(evidence)
    evidence = told.evidence
    findings: list[Finding] = []
    judged: list[Judged] = []
    absent: list[str] = []
    met = set[int]()
    for fabric in _fabrics(evidence, params):
        met.update(() if fabric.inside else fabric.topology.members)
        seen = _look(told, fabric)
        if _propose(seen, fabric, evidence) is not None:
            absent.append(f"the last rounds between {fabric.name}")
        if seen.late:
            absent.append(f"{fabric.name}: time for all exchanges of {len(seen.late)} groups (raise links.timeout_s)")
        rates = solve(seen.rates, fabric.topology, fabric.limits)
        words = Words(evidence=evidence, fabric=fabric)
        solved = [(cost, solve(seen.by_cost[cost.figure], fabric.topology, fabric.limits)) for cost in _costs(evidence)]
        findings += _findings(words, [(None, rates), *solved])
        findings += _far_better(words, gather(seen.rates, fabric.topology, fabric.limits), findings)
        if rates.limit is not None:
            judged += [each for each in _judged(told, fabric, rates, seen) if each.passed or not fabric.inside]
        diagnoses = (rates, *(diagnosis for _, diagnosis in solved))
        # Within a node only what was named counts: healthy pairs there may be unalike.
        if not fabric.inside:
            open_cells = (cell for diagnosis in diagnoses for cell in diagnosis.unconfirmed)
            pairs = {tuple(sorted((cell.source, cell.target))) for cell in open_cells}
            absent += [f"a clear answer on {words.pair(*pair)}" for pair in sorted(pairs)]
        absent += [f"{fabric.name}: {text}" for diagnosis in diagnoses for text in diagnosis.remains]
    lonely = sorted(evidence.ranks.keys() - met) if met and evidence.device_type != "cpu" else []
    unjudged = (f"links: no other node has a device beside {listed('rank', lonely)}",) if lonely else ()
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent), unjudged=unjudged)


def _costs(evidence: Evidence) -> tuple[Cost, ...]:
    return costs(_kind(evidence))


def _kind(evidence: Evidence) -> str:
    return "cpu" if evidence.device_type == "cpu" else "cuda"


def _propose(seen: _Seen, fabric: Fabric, evidence: Evidence) -> Round | None:
    asked = (propose(seen.with_cost(cost), fabric.topology, fabric.limits) for cost in _costs(evidence))
    return next((each for each in asked if each is not None), None)


def _findings(words: Words, solved: Sequence[tuple[Cost | None, Diagnosis]]) -> list[Finding]:
    """Each culprit once: what else it does badly is evidence. What a bad member spoils is told beside it."""
    found: dict[tuple[int, ...], Finding] = {}
    for cost, diagnosis in solved:
        for named in diagnosis.culprits:
            told = words.finding(named, diagnosis, cost)
            if named.members in found:
                first, second = sorted((told, found[named.members]), key=_gravity)[::-1]
                told = replace(first, evidence=(*first.evidence, second.what))
            found[named.members] = told
    accused = {
        rank: _gravity(each)
        for each in found.values()
        if each.culprit.kind in ("node", "device")
        for rank in each.culprit.ranks
    }
    # A member that is only warned of takes no blame off a dead link.
    return [
        replace(each, severity="info")
        if each.culprit.kind == "link" and any(accused.get(rank, -1) >= _gravity(each) for rank in each.culprit.ranks)
        else each
        for each in found.values()
    ]


def _far_better(words: Words, rates: Rates, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Where most nodes are slow alike, they are what all are held against: those that are not tell of it."""
    fast = [cell for cell in rates.cells.values() if cell.ratio * rates.limit > 1]
    if words.fabric.inside or rates.goal is not None or rates.reference is None or findings or len(fast) < _FEW_FAST:
        return
    best = max(fast, key=lambda cell: cell.ratio)
    shown = ", ".join(dict.fromkeys(words.pair(*sorted((cell.source, cell.target))) for cell in fast[:_FEW_FAST]))
    yield Finding(
        severity="warn",
        check="links",
        what=f"some links reach far more than most do, {best.rate:.3g} GB/s and {rates.reference:.3g} GB/s: "
        "there are two kinds of nodes, or most of them are slow",
        culprit=Culprit(kind="none", name="nobody can be named"),
        measured=f"{best.rate:.3g} GB/s",
        evidence=(f"{len(fast)} of {len(rates.cells)} transfers, such as {shown}",),
        action="give links.min_gbps: what every link has to reach.",
    )


def _gravity(finding: Finding) -> int:
    return _GRAVITY.index(finding.severity)


def _not_checked(evidence: Evidence) -> str:
    return next((str(fact.value) for fact in evidence.facts if fact.name == "not_checked"), "")


def _fabrics(evidence: Evidence, params: Params) -> Iterator[Fabric]:
    nodes: dict[int, list[int]] = {}
    for rank, seen in sorted(evidence.ranks.items()):
        nodes.setdefault(seen.node_rank, []).append(rank)
    effect = EFFECTS[_kind(evidence)]
    for node, ranks in sorted(nodes.items()):
        # Between processes on the CPUs of one node there is no cable: what is slow there is whoever else computes.
        if len(ranks) > 1 and evidence.device_type != "cpu":
            topology = Topology(members=tuple(ranks), kind="device")
            limits = Limits(effect=effect)
            yield Fabric(name=f"devices of node {node}", topology=topology, limits=limits, inside=True)
    if len(nodes) < 2:
        return
    user = Limits(effect=effect, gbps=params.min_gbps, origin="user links.min_gbps" if params.min_gbps else "")
    # Processes on CPUs share what their node has; devices may have a NIC each, and then are a rail.
    rails = 1 if evidence.device_type == "cpu" else max(map(len, nodes.values()))
    for index in range(rails):
        members = tuple(ranks[index] for _, ranks in sorted(nodes.items()) if index < len(ranks))
        if len(members) > 1:
            name = BETWEEN if rails == 1 else f"{BETWEEN}, rail {index}"
            yield Fabric(name=name, topology=Topology(members=members), limits=user)


def _part(asked: Round, fabric: Fabric, seen: _Seen) -> dict[str, Any]:
    reference = gather(seen.rates, fabric.topology, fabric.limits).reference
    return {
        "fabric": fabric.name,
        "pairs": [list(pair) for pair in asked.pairs],
        "groups": [sorted(group) for group in asked.groups],
        "turns": asked.turns,
        "at_once": asked.at_once,
        "repeats": asked.repeats,
        "tell_below_gbps": asked.told_below * reference if asked.groups and reference else None,
    }


def _read(evidence: Evidence) -> _Told:
    evidence = sound(
        evidence,
        {
            "asked": _is_round,
            "failed": lambda value: holds(value, reason=str) and isinstance(value.get("peer"), (int, type(None))),
            "late": lambda value: holds(value, fabric=str),
        },
    )
    asked: dict[str, list[Fact]] = {}
    for fact in evidence.facts:
        if fact.name == "asked":
            asked.setdefault(fact.value["fabric"], []).append(fact)
    failed, late = (_by_place(fact for fact in evidence.facts if fact.name == name) for name in ("failed", "late"))
    return _Told(evidence=evidence, asked=asked, figures=_by_place(evidence.figures), failed=failed, late=late)


def _is_round(value: Any) -> bool:
    if not holds(value, fabric=str, at_once=int, repeats=int, groups=list):
        return False
    below = value.get("tell_below_gbps")
    return (
        1 <= value["at_once"] <= _MOST_REPEATS
        and 1 <= value["repeats"] <= _MOST_REPEATS
        and all(isinstance(group, list) and all(isinstance(each, int) for each in group) for group in value["groups"])
        and (below is None or (isinstance(below, (int, float)) and 0 < below < math.inf))
    )


def _by_place(told: Iterable[Item]) -> ByPlace[Item]:
    found: dict[tuple[str, int], list[Item]] = {}
    for each in told:
        if each.rank is not None:
            found.setdefault((each.stage, each.rank), []).append(each)
    return found


def _look(told: _Told, fabric: Fabric) -> _Seen:
    """What was measured on a fabric, round by round."""
    members = frozenset(fabric.topology.members)
    by_cost = {cost.figure: Observations() for cost in _costs(told.evidence)}
    seen, late = Observations(), list[GroupResult]()
    for fact in told.asked.get(fabric.name, ()):
        common: dict[str, Any] = {key: fact.value[key] for key in ("at_once", "repeats")}
        figures = [
            each
            for rank in fabric.topology.members
            for each in told.figures.get((fact.stage, rank), ())
            if each.name == "group_gbps" or (each.peer in members and each.peer != rank)
        ]
        medians = {
            each.rank: each.value
            for each in figures
            if each.name == "group_gbps" and each.rank is not None and 0 < each.value < math.inf
        }
        rates = {
            (each.rank, each.peer): each.value
            for each in figures
            if each.name == "gbps" and each.rank is not None and each.peer is not None
        }
        # Of a group only what stood out is told.
        where = "outliers" if fact.value["groups"] else "pairs"
        for cost in _costs(told.evidence):
            costly = tuple(_costly(cost, figures, common))
            mine = by_cost[cost.figure]
            by_cost[cost.figure] = replace(mine, **{where: getattr(mine, where) + costly})
        pairs = [PairResult(source=a, target=b, gbps=rate, **common) for (a, b), rate in rates.items()]
        failed = [each for rank in fabric.topology.members for each in told.failed.get((fact.stage, rank), ())]
        # Both ends tell of it, and neither direction that has no figure came through.
        lost = {
            ends: str(each.value["reason"])
            for each in failed
            if each.rank is not None and (peer := each.value.get("peer")) in members and peer != each.rank
            for ends in ((each.rank, peer), (peer, each.rank))
            if ends not in rates
        }
        pairs += [PairResult(source=a, target=b, failed=why, **common) for (a, b), why in sorted(lost.items())]
        groups = [tuple(dict.fromkeys(group)) for group in fact.value["groups"] if members.issuperset(group)]
        why = {each.rank: str(each.value["reason"]) for each in failed if each.rank is not None}
        results = list[GroupResult]()
        for group in (group for group in groups if len(group) > 1):
            result = _group(group, pairs, medians, why, fact.value)
            if any((fact.stage, member) in told.late for member in group) and why.keys().isdisjoint(group):
                late.append(replace(result, failed="", gbps=fact.value.get("tell_below_gbps") or 1.0, at_once=1))
            else:
                results.append(result)
        seen = seen.after(() if groups else tuple(pairs), tuple(results))
    return _Seen(rates=seen, by_cost=by_cost, late=tuple(late))


def _costly(cost: Cost, figures: Iterable[Figure], common: Mapping[str, Any]) -> Iterator[PairResult]:
    for each in figures:
        if each.name == cost.figure and each.rank is not None and each.peer is not None:
            for a, b in ((each.rank, each.peer), (each.peer, each.rank))[: 2 if cost.both_ways else 1]:
                yield PairResult(source=a, target=b, latency_s=each.value + cost.floor, **common)


def _group(
    members: tuple[int, ...],
    pairs: Iterable[PairResult],
    medians: Mapping[int, float],
    failed: Mapping[int, str],
    asked: Mapping[str, Any],
) -> GroupResult:
    inside = set(members)
    why = [failed[member] for member in members if member in failed]
    why += [f"rank {member} told nothing" for member in members if member not in medians]
    gbps = None if why else median([medians[member] for member in members])
    told_below = 0.9
    if gbps and asked.get("tell_below_gbps"):
        told_below = asked["tell_below_gbps"] / gbps
    elif gbps:  # nothing was known to be healthy, and all exchanges are told
        pairs = [each for each in pairs if each.failed or (each.gbps or 0.0) < told_below * gbps]
    return GroupResult(
        members=members,
        gbps=gbps,
        failed=why[0] if why else "",
        slow=tuple(each for each in pairs if inside.issuperset((each.source, each.target))),
        told_below=told_below,
        at_once=asked["at_once"],
        repeats=asked["repeats"],
    )


def _judged(told: _Told, fabric: Fabric, rates: Diagnosis, seen: _Seen) -> Iterator[Judged]:
    """The figures of each direction of a pair that decided: those of the quietest occasions."""
    assert rates.limit is not None  # whoever calls has seen to it
    quietest: dict[tuple[int, int], int] = {}
    for pair in seen.rates.pairs:
        key = (pair.source, pair.target)
        quietest[key] = min(pair.at_once, quietest.get(key, pair.at_once))
    limit = Limit(value=rates.limit, unit="GB/s", origin=limit_origin(fabric))
    for fact in told.asked.get(fabric.name, ()):
        for rank in fabric.topology.members:
            for figure in told.figures.get((fact.stage, rank), ()):
                key = (rank, rank if figure.peer is None else figure.peer)
                if figure.name == "gbps" and quietest.get(key) == fact.value["at_once"]:
                    yield Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)
