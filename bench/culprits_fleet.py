"""Simulated fleets for ``bench/culprits.py``: members on switches with shared uplinks, noise, and planted faults.

The rate of a transfer (1: healthy) is the least that its sender, its receiver, its link and its share of the uplinks
allow, divided by a noise factor: log-normal with a given MAD, and 30 % longer in 1 % of the transfers. A measurement is
the median over the repeats that the solver requests.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass, field
from functools import cache

from seatrial.checks.links.solver import GroupResult, PairResult, Round, Topology

SPIKES, SPIKE = 0.01, math.log(1.3)
GBPS = 25.0
DEAD = "timeout after 10 s"
_POINTS = 4001


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted culprit: a node (its number), a link (its ends) or the uplink of a switch (its members)."""

    kind: str
    members: tuple[int, ...]
    direction: str = "both"
    factor: float = 0.5
    """The remaining share of the healthy rate; 0: dead."""
    towards: tuple[int, ...] = ()
    """For a node: the members with which it is bad; empty: all."""


@dataclass(slots=True, kw_only=True)
class Fleet:
    topology: Topology
    switch: dict[int, str]
    """Member -> its first switch. The solver does not know the switches."""
    faults: tuple[Fault, ...]
    mad: float
    uplink: float
    """The number of members whose full rate the uplink of a switch carries."""
    hints: bool
    """Whether a failed group lists the exchanges that never ended."""
    rng: random.Random
    bursts: bool = False
    """Spikes last for all repeats of a measurement, not for one transfer."""
    sends: dict[int, float] = field(default_factory=dict)
    receives: dict[int, float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    uplinks: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.towards:
                (member,) = fault.members
                if fault.direction != "receive":
                    self.links |= {(member, other): fault.factor for other in fault.towards}
                if fault.direction != "send":
                    self.links |= {(other, member): fault.factor for other in fault.towards}
            elif fault.kind == "node":
                (member,) = fault.members
                if fault.direction != "receive":
                    self.sends[member] = fault.factor
                if fault.direction != "send":
                    self.receives[member] = fault.factor
            elif fault.kind == "link":
                a, b = fault.members
                if fault.direction != "receive":
                    self.links[a, b] = fault.factor
                if fault.direction != "send":
                    self.links[b, a] = fault.factor
            else:
                self.uplinks[self.switch[fault.members[0]]] = fault.factor

    def factor(self, source: int, target: int) -> float:
        """Return the rate of a transfer without contention and without noise."""
        factor = min(self.sends.get(source, 1.0), self.receives.get(target, 1.0), self.links.get((source, target), 1.0))
        here, there = self.switch[source], self.switch[target]
        if here != there and self.uplinks:
            factor = min(factor, self.uplinks.get(here, 1.0), self.uplinks.get(there, 1.0))
        return factor

    def measure(self, asked: Round) -> tuple[list[PairResult], list[GroupResult]]:
        if asked.groups:
            return [], self._groups(asked)
        results = []
        for turn in range(asked.turns):
            pairs = asked.pairs[turn :: asked.turns]
            for way in (pairs, [(b, a) for a, b in pairs]):
                results += self._transfers(way, asked)
        return results, []

    def _transfers(
        self, transfers: list[tuple[int, int]] | tuple[tuple[int, int], ...], asked: Round
    ) -> list[PairResult]:
        switch = self.switch
        out: dict[str, int] = {}
        into: dict[str, int] = {}
        for a, b in transfers:
            if switch[a] != switch[b]:
                out[switch[a]] = out.get(switch[a], 0) + 1
                into[switch[b]] = into.get(switch[b], 0) + 1
        results = []
        for a, b in transfers:
            factor = self.factor(a, b)
            if switch[a] != switch[b]:
                factor = min(factor, self.uplink / out[switch[a]], self.uplink / into[switch[b]])
            results.append(self._result(a, b, factor * self._noise(asked.repeats), asked.at_once, asked.repeats))
        return results

    def _result(self, a: int, b: int, rate: float, at_once: int, repeats: int) -> PairResult:
        if rate <= 0:
            return PairResult(source=a, target=b, failed=DEAD, at_once=at_once, repeats=repeats)
        return PairResult(source=a, target=b, gbps=rate * GBPS, at_once=at_once, repeats=repeats)

    def _noise(self, repeats: int) -> float:
        if self.bursts:
            spike = SPIKE if self.rng.random() < SPIKES else 0.0
            return math.exp(self.rng.gauss(0.0, _sigma(self.mad)) - spike)
        half = (repeats + 1) // 2
        return math.exp(_table(self.mad).value(self.rng.betavariate(half, half)))

    def _groups(self, asked: Round) -> list[GroupResult]:
        switch = self.switch
        flows: dict[str, float] = {}
        for group in asked.groups:
            inside: dict[str, int] = {}
            for member in group:
                inside[switch[member]] = inside.get(switch[member], 0) + 1
            for name, count in inside.items():
                flows[name] = flows.get(name, 0.0) + count * (len(group) - count) / (len(group) - 1) / asked.turns
        # Chance puts more pairs of one switch into a turn than the mean.
        most = max(flows.values(), default=0.0)
        share = min(1.0, self.uplink / (most + 2 * math.sqrt(most))) if most else 1.0
        return [self._group(group, share, asked) for group in asked.groups]

    def _group(self, members: tuple[int, ...], share: float, asked: Round) -> GroupResult:
        inside, switch, at_once = set(members), self.switch, asked.at_once
        odd = self._odd_exchanges(members, inside)
        dead = [key for key in odd if self.factor(*key) <= 0]
        if dead:
            listed = tuple(self._result(a, b, 0.0, at_once, asked.repeats) for a, b in dead) if self.hints else ()
            return GroupResult(members=members, failed=DEAD, slow=listed, at_once=at_once, repeats=asked.repeats)
        counts: dict[str, int] = {}
        for member in members:
            counts[switch[member]] = counts.get(switch[member], 0) + 1
        near = sum(count * (count - 1) for count in counts.values())
        total = len(members) * (len(members) - 1)
        typical = share if 2 * near < total else 1.0
        floor = asked.listed_below * typical
        slow: dict[tuple[int, int], float] = {}
        for a, b in odd:
            factor = min(self.factor(a, b), share if switch[a] != switch[b] else 1.0)
            slow[a, b] = factor * self._noise(asked.repeats)
        for factor, number, is_near in ((1.0, near, True), (share, total - near, False)):
            for rate in self._tail(floor / factor, number, asked.repeats):
                key = self._any_exchange(members, is_near)
                if key not in odd:
                    slow[key] = rate * factor
        return GroupResult(
            members=members,
            gbps=typical * GBPS,
            slow=tuple(self._result(a, b, r, at_once, asked.repeats) for (a, b), r in slow.items() if r < floor),
            listed_below=asked.listed_below,
            at_once=at_once,
            repeats=asked.repeats,
        )

    def _odd_exchanges(self, members: tuple[int, ...], inside: set[int]) -> set[tuple[int, int]]:
        """Return the exchanges that a fault affects; all others are alike and are drawn by their number."""
        odd = {key for key in self.links if inside.issuperset(key)}
        odd |= {(a, b) for a in self.sends if a in inside for b in members if a != b}
        odd |= {(a, b) for b in self.receives if b in inside for a in members if a != b}
        if self.uplinks:
            switch = self.switch
            behind = [member for member in members if switch[member] in self.uplinks]
            odd |= {key for a in behind for b in members if switch[a] != switch[b] for key in ((a, b), (b, a))}
        return odd

    def _any_exchange(self, members: tuple[int, ...], is_near: bool) -> tuple[int, int]:
        while True:
            a, b = self.rng.sample(members, 2)
            if (self.switch[a] == self.switch[b]) == is_near:
                return a, b

    def _tail(self, limit: float, number: int, repeats: int) -> list[float]:
        """Return the rates below ``limit`` among ``number`` healthy exchanges."""
        if self.bursts:
            return [rate for rate in (self._noise(repeats) for _ in range(number)) if rate < limit]
        table, half = _table(self.mad), (repeats + 1) // 2
        share = _median_below(table.below(math.log(limit)), repeats)
        if share > 0.02:
            return [rate for rate in (self._noise(repeats) for _ in range(number)) if rate < limit]
        found = []
        place = 0.0
        while share > 0:
            place += self.rng.expovariate(share)
            if place > number:
                break
            # The rank of the median among uniforms, below the limit: by bisection.
            wanted, low, high = self.rng.random() * share, 0.0, 1.0
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (middle, high) if _median_below(middle, 2 * half - 1) < wanted else (low, middle)
            found.append(math.exp(table.value(low)))
        return found


def _median_below(share: float, repeats: int) -> float:
    """Return how often the median of ``repeats`` values lies below a bound that holds ``share`` of single values."""
    half = (repeats + 1) // 2
    return sum(math.comb(repeats, k) * share**k * (1 - share) ** (repeats - k) for k in range(half, repeats + 1))


def _sigma(mad: float) -> float:
    return math.log1p(mad) / 0.67449


class _Table:
    """The distribution of the logarithm of a healthy rate."""

    def __init__(self, mad: float) -> None:
        sigma = _sigma(mad)
        self._sigma = sigma
        low, high = -SPIKE - 7 * sigma, 7 * sigma
        self._values = [low + (high - low) * index / (_POINTS - 1) for index in range(_POINTS)]
        self._shares = [self.below(value) for value in self._values]

    def below(self, value: float) -> float:
        def normal(z: float) -> float:
            return 0.5 * math.erfc(-z / math.sqrt(2))

        return (1 - SPIKES) * normal(value / self._sigma) + SPIKES * normal((value + SPIKE) / self._sigma)

    def value(self, share: float) -> float:
        index = min(max(bisect.bisect_left(self._shares, share), 1), _POINTS - 1)
        low, high = self._shares[index - 1], self._shares[index]
        part = (share - low) / (high - low) if high > low else 0.5
        return self._values[index - 1] + part * (self._values[index] - self._values[index - 1])


@cache
def _table(mad: float) -> _Table:
    return _Table(mad)
