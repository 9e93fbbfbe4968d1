"""What the links check asks for next, and what it says in the end: the culprit solver over each fabric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seatrial.checks._links_words import BETWEEN, Cost, Fabric, Words, costs, limit_origin
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
from seatrial.verdict.culprits.rates import gather
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.checks.links import Params

__all__ = ["judge", "next_round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was measured on a fabric."""

    rates: Observations
    by_cost: Mapping[str, tuple[PairResult, ...]]
    """By the name of the figure."""

    def with_cost(self, cost: Cost) -> Observations:
        """Rates, and of the costs only this: the solver knows one quantity besides rates."""
        return replace(self.rates, pairs=self.rates.pairs + self.by_cost[cost.figure])


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """The devices of all nodes side by side, then the nodes: what the solver wants to know of each."""
    if _not_checked(evidence):
        return None
    inside, between = list[dict[str, Any]](), list[dict[str, Any]]()
    for fabric in _fabrics(evidence, params):
        asked = _propose(_look(evidence, fabric), fabric, evidence)
        if asked is not None:
            (between if fabric.name.startswith(BETWEEN) else inside).append(_told(asked, fabric, evidence))
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
    findings: list[Finding] = []
    judged: list[Judged] = []
    absent: list[str] = []
    for fabric in _fabrics(evidence, params):
        seen = _look(evidence, fabric)
        if _propose(seen, fabric, evidence) is not None:
            absent.append(f"the last rounds between {fabric.name}")
        rates = solve(seen.rates, fabric.topology, fabric.limits)
        words = Words(evidence=evidence, fabric=fabric)
        solved = [(cost, _solve_cost(seen, fabric, cost)) for cost in costs(evidence.device_type)]
        findings += _findings(words, [(None, rates), *solved])
        if rates.limit is not None:
            judged += [each for each in _judged(evidence, fabric, rates, seen) if each.passed or not fabric.inside]
        diagnoses = (rates, *(diagnosis for _, diagnosis in solved))
        # Within a node only what was named counts: healthy pairs there may be unalike.
        if not fabric.inside:
            open_cells = (cell for diagnosis in diagnoses for cell in diagnosis.unconfirmed)
            pairs = {tuple(sorted((cell.source, cell.target))) for cell in open_cells}
            absent += [f"a clear answer on {words.pair(*pair)}" for pair in sorted(pairs)]
        absent += [f"{fabric.name}: {text}" for diagnosis in diagnoses for text in diagnosis.remains]
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent))


def _propose(seen: _Seen, fabric: Fabric, evidence: Evidence) -> Round | None:
    asked = (propose(seen.with_cost(cost), fabric.topology, fabric.limits) for cost in costs(evidence.device_type))
    return next((each for each in asked if each is not None), None)


def _solve_cost(seen: _Seen, fabric: Fabric, cost: Cost) -> Diagnosis:
    return solve(Observations(pairs=seen.by_cost[cost.figure]), fabric.topology, fabric.limits)


def _findings(words: Words, solved: Sequence[tuple[Cost | None, Diagnosis]]) -> list[Finding]:
    """Each culprit once: what else it does badly is evidence. What a bad member spoils is told beside it."""
    found: dict[tuple[int, ...], Finding] = {}
    accused = set[int]()
    for cost, diagnosis in solved:
        for named in diagnosis.culprits:
            told = words.finding(named, diagnosis, cost)
            if named.kind in ("node", "device"):
                accused.update(named.members)
            if named.members in found:
                first = found[named.members]
                told = replace(first, evidence=(*first.evidence, told.what))
            found[named.members] = told
    return [
        replace(each, severity="info")
        if each.culprit.kind == "link" and accused.intersection(each.culprit.ranks)
        else each
        for each in found.values()
    ]


def _not_checked(evidence: Evidence) -> str:
    return next((str(fact.value) for fact in evidence.facts if fact.name == "not_checked"), "")


def _fabrics(evidence: Evidence, params: Params) -> Iterator[Fabric]:
    nodes: dict[int, list[int]] = {}
    for rank, seen in sorted(evidence.ranks.items()):
        nodes.setdefault(seen.node_rank, []).append(rank)
    effect = EFFECTS[evidence.device_type]
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
    rails = 1 if evidence.device_type == "cpu" else min(map(len, nodes.values()))
    for index in range(rails):
        topology = Topology(members=tuple(ranks[index] for _, ranks in sorted(nodes.items())))
        name = BETWEEN if rails == 1 else f"{BETWEEN}, rail {index}"
        yield Fabric(name=name, topology=topology, limits=user)


def _told(asked: Round, fabric: Fabric, evidence: Evidence) -> dict[str, Any]:
    reference = gather(_look(evidence, fabric).rates, fabric.topology, fabric.limits).reference
    return {
        "fabric": fabric.name,
        "pairs": [list(pair) for pair in asked.pairs],
        "groups": [sorted(group) for group in asked.groups],
        "turns": asked.turns,
        "at_once": asked.at_once,
        "repeats": asked.repeats,
        "tell_below_gbps": asked.told_below * reference if asked.groups and reference else None,
    }


def _look(evidence: Evidence, fabric: Fabric) -> _Seen:
    """What was measured on a fabric, round by round."""
    members = set(fabric.topology.members)
    by_cost: dict[str, list[PairResult]] = {cost.figure: [] for cost in costs(evidence.device_type)}
    seen = Observations()
    for fact in evidence.facts:
        if fact.name != "asked" or fact.value["fabric"] != fabric.name:
            continue
        common = {"at_once": fact.value["at_once"], "repeats": fact.value["repeats"]}
        rates, medians = dict[tuple[int, int], float](), dict[int, float]()
        for each in evidence.figures:
            if each.stage != fact.stage or each.rank is None or each.rank not in members:
                continue
            if each.name == "group_gbps":
                medians[each.rank] = each.value
            elif each.peer is not None and each.peer in members:
                ends = (each.rank, each.peer)
                if each.name == "gbps":
                    rates[ends] = each.value
                for cost in costs(evidence.device_type):
                    # A group lists the slow ones only, and tells nothing else of them.
                    if each.name == cost.figure and not fact.value["groups"]:
                        ways = (ends, ends[::-1]) if cost.both_ways else (ends,)
                        value = each.value + cost.floor
                        by_cost[cost.figure] += [
                            PairResult(source=a, target=b, latency_s=value, **common) for a, b in ways
                        ]
        pairs = [PairResult(source=a, target=b, gbps=rate, **common) for (a, b), rate in rates.items()]
        failed = {
            each.rank: each.value
            for each in evidence.facts
            if (each.name, each.stage) == ("failed", fact.stage) and each.rank is not None and each.rank in members
        }
        # Both ends tell of it, and neither direction that has no figure came through.
        lost = {
            ends: str(why["reason"])
            for rank, why in failed.items()
            if (peer := why.get("peer")) in members
            for ends in ((rank, peer), (peer, rank))
            if ends not in rates
        }
        pairs += [PairResult(source=a, target=b, failed=why, **common) for (a, b), why in sorted(lost.items())]
        groups = fact.value["groups"]
        results = tuple(_group(tuple(group), pairs, medians, failed, fact.value) for group in groups)
        seen = seen.after(() if groups else tuple(pairs), results)
    return _Seen(rates=seen, by_cost={name: tuple(pairs) for name, pairs in by_cost.items()})


def _group(
    members: tuple[int, ...],
    pairs: Iterable[PairResult],
    medians: Mapping[int, float],
    failed: Mapping[int, Mapping[str, Any]],
    asked: Mapping[str, Any],
) -> GroupResult:
    inside = set(members)
    why = [str(failed[member]["reason"]) for member in members if member in failed]
    why += [f"rank {member} told nothing" for member in members if member not in medians]
    gbps = None if why else median([medians[member] for member in members])
    return GroupResult(
        members=members,
        gbps=gbps,
        failed=why[0] if why else "",
        slow=tuple(each for each in pairs if inside.issuperset((each.source, each.target))),
        told_below=asked["tell_below_gbps"] / gbps if gbps else 0.9,
        at_once=asked["at_once"],
        repeats=asked["repeats"],
    )


def _judged(evidence: Evidence, fabric: Fabric, rates: Diagnosis, seen: _Seen) -> Iterator[Judged]:
    """The figures of each direction of a pair that decided: those of the quietest occasions."""
    assert rates.limit is not None  # whoever calls has seen to it
    quietest: dict[tuple[int, int], int] = {}
    for pair in seen.rates.pairs:
        key = (pair.source, pair.target)
        quietest[key] = min(pair.at_once, quietest.get(key, pair.at_once))
    at_once = {fact.stage: fact.value["at_once"] for fact in evidence.facts if fact.name == "asked"}
    limit = Limit(value=rates.limit, unit="GB/s", origin=limit_origin(fabric))
    for figure in evidence.figures:
        if figure.name != "gbps" or figure.rank is None or figure.peer is None:
            continue
        if quietest.get((figure.rank, figure.peer)) == at_once.get(figure.stage, 0):
            yield Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)
