"""A simulated cluster that answers the rounds of the links check as ranks do: without wires, noise and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from seatrial.checks.links import CHECK, MOST_RESENT, Params
from seatrial.verdict.circle import circle
from seatrial.verdict.evidence import Evidence, RankSeen
from seatrial.verdict.figures import Fact, Figure
from seatrial.verdict.findings import Ruling

__all__ = ["DEAD", "SimulatedCluster", "Slow", "slow_node"]

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
    """(source, target) -> what is left of the rate; None is anybody; 0: nothing comes through."""
    late_us: Mapping[int, float] = field(default_factory=dict)
    resent: Mapping[tuple[int | None, int | None], float] = field(default_factory=dict)
    """As ``slow``: the share of TCP's segments that is sent again; where it is not told it is 0."""
    crowd_resends: float = 0.0
    """So much more for each pair that is at work at the same time."""
    largest_in_time: int = 10_000
    """Larger groups have no time for all their exchanges."""
    lacks: frozenset[int] = frozenset()
    """Ranks that are not there: their node has fewer."""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def evidence(self) -> Evidence:
        ranks = {
            rank: RankSeen(
                rank=rank,
                node=f"n{rank // self.nproc_per_node}",
                node_rank=rank // self.nproc_per_node,
                local_rank=rank % self.nproc_per_node,
                device="a device",
                kind="",
            )
            for rank in range(self.nodes * self.nproc_per_node)
            if rank not in self.lacks
        }
        return Evidence(
            ranks=ranks, asked=tuple(ranks), figures=(), facts=(), backend="gloo", device_type=self.device_type
        )

    def rate(self, source: int, target: int) -> float:
        return GBPS * min((self.slow[key] for key in _keys(source, target) if key in self.slow), default=1.0)

    def resent_share(self, source: int, target: int) -> float:
        return max((self.resent[key] for key in _keys(source, target) if key in self.resent), default=0.0)

    def answer(self, evidence: Evidence, told: dict[str, Any]) -> Evidence:
        self.rounds.append(told)
        # Nodes are measured while nobody else is at work, devices of several nodes side by side.
        assert len(told["parts"]) == 1 or all(part["fabric"].startswith("devices of") for part in told["parts"])
        stage = f"round {len(self.rounds)}"
        figures, facts = list[Figure](), list[Fact]()
        for part in told["parts"]:
            asked = {key: part[key] for key in ("fabric", "at_once", "repeats", "groups", "tell_below_gbps")}
            first = min(rank for group in (part["groups"] or part["pairs"]) for rank in group)
            facts.append(Fact(check="links", name="asked", value=asked, rank=first, stage=stage))
            pairs = part["pairs"] or [pair for group in part["groups"] for some in circle(group) for pair in some]
            resent = dict[int, dict[int, float]]()
            dead = [pair for pair in pairs if not (self.rate(*pair) and self.rate(*pair[::-1]))]
            for a, b in pairs:
                if [a, b] in dead or (a, b) in dead:
                    reason = {"reason": DEAD}
                    if part["pairs"] and self.rate(a, b):
                        figures.append(_figure("gbps", self.rate(a, b), "GB/s", a, b, stage))
                    facts.append(Fact(check="links", name="failed", value={"peer": b, **reason}, rank=a, stage=stage))
                    facts.append(Fact(check="links", name="failed", value={"peer": a, **reason}, rank=b, stage=stage))
                    continue
                for source, target in ((a, b), (b, a)):
                    rate, below = self.rate(source, target), part["tell_below_gbps"]
                    share = self.resent_share(source, target) + self.crowd_resends * (part["at_once"] - 1)
                    if below is None or rate < below:
                        figures.append(_figure("gbps", rate, "GB/s", source, target, stage))
                        figures.append(_figure("resent_share", share, "1", source, target, stage))
                    else:
                        resent.setdefault(source, {})[target] = share
                if part["pairs"]:
                    late = max(self.late_us.get(a, 0.0), self.late_us.get(b, 0.0))
                    figures.append(_figure("latency_us", 50.0 + late, "us", a, b, stage))
            for source, shares in resent.items():
                most = MOST_RESENT + median(shares.values())
                for target in sorted(shares, key=shares.__getitem__)[-4:]:
                    if shares[target] > most:
                        figures.append(_figure("resent_share", shares[target], "1", source, target, stage))
            for group in part["groups"]:
                for rank in group:
                    if len(group) > self.largest_in_time:
                        told_late = {"fabric": part["fabric"], "exchanges": [1, 2]}
                        facts.append(Fact(check="links", name="late", value=told_late, rank=rank, stage=stage))
                    elif not dead:
                        figures.append(_figure("group_gbps", GBPS, "GB/s", rank, None, stage))
        return replace(evidence, figures=evidence.figures + tuple(figures), facts=evidence.facts + tuple(facts))

    def trial(self, params: Params | None = None, *, most_rounds: int = 60) -> Ruling:
        params, evidence = params or Params(), self.evidence()
        assert CHECK.next_round is not None
        while len(self.rounds) < most_rounds and (asked := CHECK.next_round(evidence, params)) is not None:
            ranks, told = asked
            assert set(ranks) == {r for part in told["parts"] for g in (part["pairs"] or part["groups"]) for r in g}
            evidence = self.answer(evidence, told)
        return CHECK.judge(evidence, params)


def _keys(source: int, target: int) -> tuple[tuple[int | None, int | None], ...]:
    return (source, target), (source, None), (None, target)


def _figure(name: str, value: float, unit: str, rank: int, peer: int | None, stage: str) -> Figure:
    return Figure(check="links", name=name, value=value, unit=unit, better="high", rank=rank, peer=peer, stage=stage)


def slow_node(rank: int, left: float) -> Slow:
    """What it sends and what it receives."""
    return {(rank, None): left, (None, rank): left}
