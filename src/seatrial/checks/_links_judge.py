"""What the links check asks for next, and what it says in the end: the culprit solver over each fabric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seatrial.checks.links import EFFECTS, FLOORS_S
from seatrial.verdict.culprits import (
    Cell,
    Diagnosis,
    GroupResult,
    Limits,
    Named,
    Observations,
    PairResult,
    Round,
    Topology,
    solve,
)
from seatrial.verdict.culprits import next_round as propose
from seatrial.verdict.culprits.rates import gather
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.checks.links import Params

__all__ = ["judge", "next_round"]

_BETWEEN = "nodes"
_ORIGIN = "fleet: what healthy pairs reach"
_MOST_TOLD = 6
_UNALIKE = "compare with how they are wired (nvidia-smi topo -m): pairs of one node may differ by design"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fabric:
    """Members that are compared with one another: the devices of one node, or one device of each node."""

    name: str
    topology: Topology
    limits: Limits
    inside: bool = False
    """Of one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was measured on a fabric."""

    rates: Observations
    latencies: tuple[PairResult, ...]

    @property
    def all(self) -> Observations:
        return Observations(pairs=self.rates.pairs + self.latencies, groups=self.rates.groups, rounds=self.rates.rounds)


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """The devices of all nodes side by side, then the nodes: what the solver wants to know of each."""
    if _not_checked(evidence):
        return None
    inside, between = list[dict[str, Any]](), list[dict[str, Any]]()
    for fabric in _fabrics(evidence, params):
        asked = propose(_look(evidence, fabric).all, fabric.topology, fabric.limits)
        if asked is not None:
            (between if fabric.name.startswith(_BETWEEN) else inside).append(_told(asked, fabric, evidence))
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
        if propose(seen.all, fabric.topology, fabric.limits) is not None:
            absent.append(f"the last rounds between {fabric.name}")
        rates = solve(seen.rates, fabric.topology, fabric.limits)
        late = solve(Observations(pairs=seen.latencies), fabric.topology, fabric.limits)
        accused = {member for named in rates.culprits if named.kind in ("node", "device") for member in named.members}
        known = {named.members for named in rates.culprits} | {(member,) for member in accused}
        words = _Words(evidence=evidence, fabric=fabric, floor_s=FLOORS_S[evidence.device_type])
        told = [words.finding(named, rates, latency=False) for named in rates.culprits]
        told += [words.finding(named, late, latency=True) for named in late.culprits if named.members not in known]
        # A member that loses what it is sent spoils links both ways: it is at fault, and its links are told beside it.
        told = [
            replace(each, severity="info")
            if each.culprit.kind == "link" and accused.intersection(each.culprit.ranks)
            else each
            for each in told
        ]
        if rates.limit is not None:
            judged += [each for each in _judged(evidence, fabric, rates, seen) if each.passed or not fabric.inside]
        findings += told
        # Within a node only what was named counts: healthy pairs there may be unalike.
        if not fabric.inside:
            cells = {frozenset((cell.source, cell.target)) for cell in (*rates.unconfirmed, *late.unconfirmed)}
            absent += [f"a clear answer on {words.pair(*sorted(pair))}" for pair in sorted(cells, key=sorted)]
        absent += [f"{fabric.name}: {text}" for text in (*rates.remains, *late.remains)]
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent))


def _not_checked(evidence: Evidence) -> str:
    return next((str(fact.value) for fact in evidence.facts if fact.name == "not_checked"), "")


def _fabrics(evidence: Evidence, params: Params) -> Iterator[_Fabric]:
    nodes: dict[int, list[int]] = {}
    for rank, seen in sorted(evidence.ranks.items()):
        nodes.setdefault(seen.node_rank, []).append(rank)
    effect = EFFECTS[evidence.device_type]
    for node, ranks in sorted(nodes.items()):
        # Between processes on the CPUs of one node there is no cable: what is slow there is whoever else computes.
        if len(ranks) > 1 and evidence.device_type != "cpu":
            topology = Topology(members=tuple(ranks), kind="device")
            limits = Limits(effect=effect)
            yield _Fabric(name=f"devices of node {node}", topology=topology, limits=limits, inside=True)
    if len(nodes) < 2:
        return
    user = Limits(effect=effect, gbps=params.min_gbps, origin="user links.min_gbps" if params.min_gbps else "")
    # Processes on CPUs share what their node has; devices may have a NIC each, and then are a rail.
    rails = 1 if evidence.device_type == "cpu" else min(map(len, nodes.values()))
    for index in range(rails):
        topology = Topology(members=tuple(ranks[index] for _, ranks in sorted(nodes.items())))
        name = _BETWEEN if rails == 1 else f"{_BETWEEN}, rail {index}"
        yield _Fabric(name=name, topology=topology, limits=user)


def _told(asked: Round, fabric: _Fabric, evidence: Evidence) -> dict[str, Any]:
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


def _look(evidence: Evidence, fabric: _Fabric) -> _Seen:
    """What was measured on a fabric, round by round."""
    members = set(fabric.topology.members)
    floor_s = FLOORS_S[evidence.device_type]
    seen, late = Observations(), list[PairResult]()
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
                elif each.name == "latency_us":
                    latency_s = each.value / 1e6 + floor_s
                    late += [
                        PairResult(source=a, target=b, latency_s=latency_s, **common) for a, b in (ends, ends[::-1])
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
    return _Seen(rates=seen, latencies=tuple(late))


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


def _judged(evidence: Evidence, fabric: _Fabric, rates: Diagnosis, seen: _Seen) -> Iterator[Judged]:
    """The figures of each direction of a pair that decided: those of the quietest occasions."""
    assert rates.limit is not None  # whoever calls has seen to it
    quietest: dict[tuple[int, int], int] = {}
    for pair in seen.rates.pairs:
        key = (pair.source, pair.target)
        quietest[key] = min(pair.at_once, quietest.get(key, pair.at_once))
    at_once = {fact.stage: fact.value["at_once"] for fact in evidence.facts if fact.name == "asked"}
    limit = Limit(value=rates.limit, unit="GB/s", origin=_origin(fabric))
    for figure in evidence.figures:
        if figure.name != "gbps" or figure.rank is None or figure.peer is None:
            continue
        if quietest.get((figure.rank, figure.peer)) == at_once.get(figure.stage, 0):
            yield Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)


def _origin(fabric: _Fabric) -> str:
    return fabric.limits.origin or f"{_ORIGIN} x {1 - fabric.limits.effect:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How the culprits of one fabric are told to a person."""

    evidence: Evidence
    fabric: _Fabric
    floor_s: float

    def who(self, rank: int) -> str:
        """One member: its node, or the device where a node has several."""
        seen = self.evidence.ranks[rank]
        if self.fabric.name == _BETWEEN:
            return f"node {seen.node}"
        return seen.label()

    def pair(self, a: int, b: int) -> str:
        return f"link {self._short(a)}–{self._short(b)}"

    def _short(self, rank: int) -> str:
        return self.evidence.ranks[rank].node if self.fabric.name.startswith(_BETWEEN) else f"rank {rank}"

    def culprit(self, named: Named) -> Culprit:
        nodes = tuple(dict.fromkeys(self.evidence.ranks[rank].node for rank in named.members))
        ranks = named.members
        if named.kind == "link":
            name = self.pair(*named.members) + (", endpoints not separable" if named.inseparable else "")
            return Culprit(kind="link", name=name, ranks=ranks, nodes=nodes)
        if named.kind in ("node", "device"):
            if self.fabric.name != _BETWEEN:
                return Culprit(kind="device", name=self.who(ranks[0]), ranks=ranks, nodes=nodes)
            ranks = tuple(rank for rank, seen in self.evidence.ranks.items() if seen.node == nodes[0])
            return Culprit(kind="node", name=self.who(ranks[0]), ranks=ranks, nodes=nodes)
        name = f"the fabric between {', '.join(nodes[:8])}" if len(nodes) > 1 else f"communication inside {nodes[0]}"
        return Culprit(kind="fabric", name=name, ranks=ranks, nodes=nodes)

    def finding(self, named: Named, diagnosis: Diagnosis, *, latency: bool) -> Finding:
        """One culprit: what it reached, what its peers reached, how that was told apart, and what to do."""
        culprit = self.culprit(named)
        worst = min(named.evidence, key=lambda cell: cell.ratio, default=None)
        way = {"send": " (sending)", "receive": " (receiving)", "both": ""}[named.direction]
        if named.kind == "link" and named.direction != "both":
            a, b = named.members if named.direction == "send" else named.members[::-1]
            way = f" (from {self._short(a)} to {self._short(b)})"
        measured, limit, peers = "", None, ""
        if worst is not None:
            reference = worst.rate / worst.ratio if worst.ratio else diagnosis.reference or 0.0
            measured = worst.failed or self._value(worst.rate, latency)
            peers = f", its peers {self._value(reference, latency)}" if reference else ""
            if diagnosis.limit is not None and not latency:
                limit = Limit(value=diagnosis.limit, unit="GB/s", origin=_origin(self.fabric))
            elif latency and reference:
                value = round((1 / (reference * (1 - self.fabric.limits.effect)) - self.floor_s) * 1e6, 1)
                limit = Limit(value=value, unit="us", origin=_ORIGIN)
        what = f"{culprit.name}{way} " + (
            f"carries nothing ({worst.failed})"
            if worst is not None and worst.failed
            else f"{'has a latency of' if latency else 'reaches'} {measured}{peers}"
            if worst is not None
            else named.why
        )
        is_sure = not self.fabric.inside or worst is None or bool(worst.failed)
        if worst is not None and not latency:
            is_sure = is_sure or self._is_good_elsewhere(worst, diagnosis.limit)
        return Finding(
            severity="fail" if is_sure else "warn",
            check="links",
            what=what,
            culprit=culprit,
            measured=measured,
            limit=limit,
            evidence=(f"{named.confidence}: {named.why}", *self._cells(named.evidence, latency), *named.details),
            action=_ACTIONS[culprit.kind] if is_sure else _UNALIKE,
        )

    def _is_good_elsewhere(self, cell: Cell, limit_gbps: float | None) -> bool:
        """Whether the same two places of other nodes with such devices are clean: then it is no matter of wiring."""
        seen = self.evidence.ranks

        def place(a: int, b: int) -> tuple[object, ...]:
            return seen[a].local_rank, seen[b].local_rank, seen[a].device, seen[b].device

        rates = [
            each.value
            for each in self.evidence.figures
            if each.name == "gbps" and each.rank is not None and each.peer is not None
            if seen[each.rank].node_rank == seen[each.peer].node_rank != seen[cell.source].node_rank
            if place(each.rank, each.peer) == place(cell.source, cell.target)
        ]
        return limit_gbps is not None and bool(rates) and median(rates) >= limit_gbps

    def _value(self, rate: float, latency: bool) -> str:
        return f"{(1 / rate - self.floor_s) * 1e6:.0f} us" if latency else f"{rate:.3g} GB/s"

    def _cells(self, cells: Iterable[Cell], latency: bool) -> Iterator[str]:
        for cell in list(cells)[:_MOST_TOLD]:
            crowd = "alone" if cell.quiet else f"{cell.at_once} pairs at once"
            told = cell.failed or self._value(cell.rate, latency)
            yield f"{self._short(cell.source)} to {self._short(cell.target)}: {told}, {crowd}"


_ACTIONS = {
    "node": "look at its NIC, cable and switch port (errors, negotiated speed), and at what else uses them",
    "device": "look at its NIC, NVLink or PCIe link (width, speed, errors), and at what else uses them",
    "link": "look at the path between the two: cable, switch ports, routes; swap the cable and repeat the trial",
    "fabric": "look at what these have in common: a switch, its uplinks, or the network settings",
}
