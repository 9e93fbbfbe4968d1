"""A simulated cluster that answers the rounds of the links check as ranks do: without wires, noise and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from seatrial.checks.links import CHECK
from seatrial.checks.links.fabrics import MAX_RESENT
from seatrial.checks.links.params import Params
from seatrial.evidence.evidence import Evidence, RankRecord
from seatrial.evidence.findings import Ruling
from seatrial.evidence.measurement import Fact, Measurement
from seatrial.util.round_robin import round_robin

GBPS = 10.0
DEAD = "timeout after 10 s"
Slow = dict[tuple[int | None, int | None], float]


@dataclass(kw_only=True)
class SimulatedCluster:
    """Ranks that answer a round as ``links.measure`` does. No noise, no time."""

    nodes: int
    nproc_per_node: int = 1
    device_type: str = "cpu"
    slow: Mapping[tuple[int | None, int | None], float] = field(default_factory=dict)
    """(source, target) -> the share of the rate that is left; None is any rank; 0: nothing comes through."""
    late_us: Mapping[int, float] = field(default_factory=dict)
    resent: Mapping[tuple[int | None, int | None], float] = field(default_factory=dict)
    """By (source, target), as ``slow``: the share of TCP's segments that is sent again; default 0."""
    crowd_resends: float = 0.0
    """Added to that share for each pair that is active at the same time."""
    breaks_groups: int | None = None
    """A rank with which every group fails, while it is clean as a pair."""
    tells: bool = True
    """Whether its partner in the first exchange says so; otherwise only itself."""
    largest_in_time: int = 10_000
    """Larger groups have no time for all their exchanges."""
    dead_reason: str = DEAD
    """The error of a transfer that does not come through."""
    dead_pings: bool = False
    """Whether the 8 bytes of a ping come through even there."""
    lacks: frozenset[int] = frozenset()
    """Ranks that do not exist: their node has fewer."""
    cpu_share: Mapping[int, float] = field(default_factory=dict)
    """By rank, where it is not 1."""
    places: Mapping[int, str] = field(default_factory=dict)
    """Node -> from where it joined."""
    agent_per_rank: bool = False
    """Whether each rank is a node, and the nodes of one machine joined from one place."""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def evidence(self) -> Evidence:
        ranks = {
            rank: RankRecord(
                rank=rank,
                node=f"n{rank // self.nproc_per_node}",
                hostname=f"n{rank // self.nproc_per_node}",
                node_rank=rank if self.agent_per_rank else rank // self.nproc_per_node,
                local_rank=rank % self.nproc_per_node,
                device="a device",
                kind="",
            )
            for rank in range(self.nodes * self.nproc_per_node)
            if rank not in self.lacks
        }
        own = {seen.node_rank: seen.node for seen in ranks.values()} if self.agent_per_rank else {}
        return Evidence(
            ranks=ranks,
            asked=tuple(ranks),
            measurements=(),
            facts=tuple(
                Fact(check="links", name="page", value={"host": "10.0.0.1", "port": 1 + rank}, rank=rank, stage="page")
                for rank in ranks
            ),
            backend="gloo",
            device_type=self.device_type,
            places_of_nodes=self.places or own,
        )

    def rate(self, source: int, target: int) -> float:
        return GBPS * min((self.slow[key] for key in _keys(source, target) if key in self.slow), default=1.0)

    def resent_share(self, source: int, target: int) -> float:
        return max((self.resent[key] for key in _keys(source, target) if key in self.resent), default=0.0)

    def answer(self, evidence: Evidence, request: dict[str, Any]) -> Evidence:
        self.rounds.append(request)
        # Nodes are measured without contention, devices of several nodes side by side.
        assert len(request["parts"]) == 1 or all(part["fabric"].startswith("devices of") for part in request["parts"])
        stage = f"round {len(self.rounds)}"
        measurements, facts = list[Measurement](), list[Fact]()
        for part in request["parts"]:
            first = min(rank for group in (part["groups"] or part["pairs"]) for rank in group)
            facts.append(Fact(check="links", name="asked", value={"fabric": part["fabric"]}, rank=first, stage=stage))
            assert len({frozenset(pair) for pair in part["pairs"]}) == len(part["pairs"]), "a pair twice in a round"
            pairs = part["pairs"] or [pair for group in part["groups"] for some in round_robin(group) for pair in some]
            resent = dict[int, dict[int, float]]()
            dead = [pair for pair in pairs if not (self.rate(*pair) and self.rate(*pair[::-1]))]
            for a, b in pairs:
                if [a, b] in dead or (a, b) in dead:
                    reason = {"reason": self.dead_reason}
                    if part["pairs"] and self.dead_pings:
                        measurements.append(_measurement("latency_us", 50.0, "us", a, b, stage))
                    if part["pairs"] and self.rate(a, b):
                        measurements.append(_measurement("gbps", self.rate(a, b), "GB/s", a, b, stage))
                    facts.append(Fact(check="links", name="failed", value={"peer": b, **reason}, rank=a, stage=stage))
                    facts.append(Fact(check="links", name="failed", value={"peer": a, **reason}, rank=b, stage=stage))
                    continue
                for source, target in ((a, b), (b, a)):
                    rate, below = self.rate(source, target), part["list_below_gbps"]
                    share = self.resent_share(source, target) + self.crowd_resends * (part["at_once"] - 1)
                    if below is None or rate < below:
                        measurements.append(_measurement("gbps", rate, "GB/s", source, target, stage))
                        measurements.append(_measurement("resent_share", share, "1", source, target, stage))
                    else:
                        resent.setdefault(source, {})[target] = share
                if part["pairs"]:
                    for rank, peer in ((a, b), (b, a)) if self.device_type == "cpu" else ():
                        share = self.cpu_share.get(rank, 1.0)
                        measurements.append(_measurement("cpu_share", share, "1", rank, peer, stage))
                    late = max(self.late_us.get(a, 0.0), self.late_us.get(b, 0.0))
                    measurements.append(_measurement("latency_us", 50.0 + late, "us", a, b, stage))
                    measurements.append(_measurement("latency_us", 50.0 + late, "us", b, a, stage))
            for source, shares in resent.items():
                most = MAX_RESENT + median(shares.values())
                for target in sorted(shares, key=shares.__getitem__)[-4:]:
                    if shares[target] > most:
                        measurements.append(_measurement("resent_share", shares[target], "1", source, target, stage))
            for group in part["groups"]:
                if self.breaks_groups in group:
                    broken = {self.breaks_groups: group[0]} | ({group[0]: self.breaks_groups} if self.tells else {})
                    for rank, peer in broken.items():
                        why = {"peer": peer, "reason": DEAD} if self.tells else {"reason": DEAD}
                        facts.append(Fact(check="links", name="failed", value=why, rank=rank, stage=stage))
                for rank in group:
                    if self.breaks_groups in group and (self.tells or rank == self.breaks_groups):
                        continue
                    if len(group) > self.largest_in_time:
                        lateness = {"fabric": part["fabric"], "exchanges": [1, 2]}
                        facts.append(Fact(check="links", name="late", value=lateness, rank=rank, stage=stage))
                    elif not dead:
                        measurements.append(_measurement("group_gbps", GBPS, "GB/s", rank, None, stage))
        return replace(
            evidence,
            measurements=evidence.measurements + tuple(measurements),
            facts=evidence.facts + tuple(facts),
            rounds={**evidence.rounds, stage: request},
        )

    def trial(self, params: Params | None = None, *, most_rounds: int = 60) -> Ruling:
        params, evidence = params or Params(), self.evidence()
        assert CHECK.next_round is not None
        while len(self.rounds) < most_rounds and (asked := CHECK.next_round(evidence, params)) is not None:
            ranks, request = asked
            assert set(ranks) == {r for part in request["parts"] for g in (part["pairs"] or part["groups"]) for r in g}
            evidence = self.answer(evidence, request)
        return CHECK.judge(evidence, params)


def _keys(source: int, target: int) -> tuple[tuple[int | None, int | None], ...]:
    return (source, target), (source, None), (None, target)


def _measurement(name: str, value: float, unit: str, rank: int, peer: int | None, stage: str) -> Measurement:
    return Measurement(
        check="links", name=name, value=value, unit=unit, better="high", rank=rank, peer=peer, stage=stage
    )


def slow_node(rank: int, left: float) -> Slow:
    """Return slow links for everything that a rank sends and receives."""
    return {(rank, None): left, (None, rank): left}
