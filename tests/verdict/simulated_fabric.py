"""A simulated fabric without noise, chance or time: a transfer reaches the least of its sender, receiver and link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seatrial.verdict.culprits import (
    Diagnosis,
    GroupResult,
    Limits,
    Observations,
    PairResult,
    Round,
    Topology,
    next_round,
    solve,
)

HEALTHY_GBPS = 20.0


@dataclass(kw_only=True)
class SimulatedFabric:
    topology: Topology
    sends: Mapping[int, float] = field(default_factory=dict)
    """Member -> what is left of its healthy rate; 0: dead."""
    receives: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By (source, target)."""
    between: tuple[frozenset[int], float] = (frozenset(), 1.0)
    """Members behind one uplink, and what is left of its rate."""
    uplink: float | None = None
    """How many transfers at their full rate the uplink of a switch carries at once; None: any number."""
    hints: bool = True
    """Whether a group that failed says which exchanges never ended."""
    fails_over: int = 10_000
    """Groups larger than this fail, whoever is in them."""
    rounds: list[Round] = field(default_factory=list)

    def factor(self, source: int, target: int) -> float:
        behind, left = self.between
        across = left if (source in behind) != (target in behind) else 1.0
        link = self.links.get((source, target), 1.0)
        return min(self.sends.get(source, 1.0), self.receives.get(target, 1.0), link, across)

    def measure(self, asked: Round) -> Observations:
        self.rounds.append(asked)
        pairs: list[PairResult] = []
        for turn in range(asked.turns):
            now = asked.pairs[turn :: asked.turns]
            pairs += self._transfers(now, asked.at_once) + self._transfers([(b, a) for a, b in now], asked.at_once)
        groups = tuple(self._group(members, asked) for members in asked.groups)
        return Observations(pairs=tuple(pairs), groups=groups)

    def _transfers(self, now: list[tuple[int, int]] | tuple[tuple[int, int], ...], at_once: int) -> list[PairResult]:
        switch = self.topology.switch
        across = [switch[a] for a, b in now if self.uplink and switch[a] != switch[b]]
        found = []
        for a, b in now:
            factor = self.factor(a, b)
            if self.uplink and switch[a] != switch[b]:
                factor = min(factor, self.uplink / across.count(switch[a]))
            found.append(_result(a, b, factor, at_once))
        return found

    def _group(self, members: tuple[int, ...], asked: Round) -> GroupResult:
        factors = {(a, b): self.factor(a, b) for a in members for b in members if a != b}
        dead = [key for key, factor in factors.items() if factor <= 0]
        if dead or len(members) > self.fails_over:
            told = tuple(_result(a, b, 0, asked.at_once) for a, b in dead) if self.hints else ()
            return GroupResult(members=members, failed="timeout after 10 s", slow=told, at_once=asked.at_once)
        slow = tuple(_result(a, b, f, asked.at_once) for (a, b), f in factors.items() if f < asked.told_below)
        return GroupResult(members=members, gbps=HEALTHY_GBPS, slow=slow, at_once=asked.at_once)

    def trial(self, limits: Limits | None = None, *, most_rounds: int = 200) -> Diagnosis:
        """Ask and measure until the solver has nothing more to ask, or that many rounds were measured."""
        limits = limits or Limits()
        seen = Observations()
        while len(self.rounds) < most_rounds and (asked := next_round(seen, self.topology, limits)) is not None:
            new = self.measure(asked)
            seen = seen.after(new.pairs, new.groups)
        return solve(seen, self.topology, limits)


def _result(source: int, target: int, factor: float, at_once: int) -> PairResult:
    if factor <= 0:
        return PairResult(source=source, target=target, failed="timeout after 10 s", at_once=at_once)
    return PairResult(source=source, target=target, gbps=factor * HEALTHY_GBPS, at_once=at_once)
