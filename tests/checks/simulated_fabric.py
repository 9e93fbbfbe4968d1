"""A simulated fabric without noise or time: a transfer is as fast as the slowest of sender, receiver and link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seatrial.checks.links.solver import (
    Diagnosis,
    GroupResult,
    LinkLimits,
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
    """Member -> its share of the healthy rate; 0: dead."""
    receives: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By (source, target)."""
    between: tuple[frozenset[int], float] = (frozenset(), 1.0)
    """The members behind one uplink, and the share of the healthy rate across it."""
    switch: Mapping[int, str] = field(default_factory=dict)
    """Member -> its first switch. The solver does not know the switches."""
    uplink: float | None = None
    """The number of transfers that the uplink of a switch carries at the full rate at once; None: any number."""
    hints: bool = True
    """Whether a failed group lists the exchanges that never ended."""
    fails_over: int = 10_000
    """The size above which every group fails."""
    rounds: list[Round] = field(default_factory=list)

    def factor(self, source: int, target: int) -> float:
        """Return the share of the healthy rate that a transfer reaches by itself."""
        behind, left = self.between
        across = left if (source in behind) != (target in behind) else 1.0
        link = self.links.get((source, target), 1.0)
        return min(self.sends.get(source, 1.0), self.receives.get(target, 1.0), link, across)

    def measure(self, asked: Round) -> Observations:
        """Return the results of one round."""
        self.rounds.append(asked)
        pairs: list[PairResult] = []
        for turn in range(asked.turns):
            now = asked.pairs[turn :: asked.turns]
            pairs += self._transfers(now, asked.at_once) + self._transfers([(b, a) for a, b in now], asked.at_once)
        groups = tuple(self._group(members, asked) for members in asked.groups)
        return Observations(pairs=tuple(pairs), groups=groups)

    def _transfers(self, now: list[tuple[int, int]] | tuple[tuple[int, int], ...], at_once: int) -> list[PairResult]:
        across = [self.switch[a] for a, b in now if self.uplink and self.switch[a] != self.switch[b]]
        found = []
        for a, b in now:
            factor = self.factor(a, b)
            if self.uplink and self.switch[a] != self.switch[b]:
                factor = min(factor, self.uplink / across.count(self.switch[a]))
            found.append(_result(a, b, factor, at_once))
        return found

    def _group(self, members: tuple[int, ...], asked: Round) -> GroupResult:
        factors = {(a, b): self.factor(a, b) for a in members for b in members if a != b}
        dead = [key for key, factor in factors.items() if factor <= 0]
        if dead or len(members) > self.fails_over:
            listed = tuple(_result(a, b, 0, asked.at_once) for a, b in dead) if self.hints else ()
            return GroupResult(members=members, failed="timeout after 10 s", slow=listed, at_once=asked.at_once)
        slow = tuple(_result(a, b, f, asked.at_once) for (a, b), f in factors.items() if f < asked.listed_below)
        return GroupResult(members=members, gbps=HEALTHY_GBPS, slow=slow, at_once=asked.at_once)

    def trial(self, limits: LinkLimits | None = None, *, most_rounds: int = 200) -> Diagnosis:
        """Measure until the solver requests nothing more, or for ``most_rounds`` rounds, and return its diagnosis."""
        limits = limits or LinkLimits()
        seen = Observations()
        while len(self.rounds) < most_rounds and (asked := next_round(seen, self.topology, limits)) is not None:
            new = self.measure(asked)
            seen = seen.after(new.pairs, new.groups)
        return solve(seen, self.topology, limits)


def _result(source: int, target: int, factor: float, at_once: int) -> PairResult:
    if factor <= 0:
        return PairResult(source=source, target=target, failed="timeout after 10 s", at_once=at_once)
    return PairResult(source=source, target=target, gbps=factor * HEALTHY_GBPS, at_once=at_once)
