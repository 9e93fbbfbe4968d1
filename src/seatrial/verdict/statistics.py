"""Who stands out in a fleet: ratios for a few, median and MAD for many, votes on bits.

A fleet is judged one way only: nobody is blamed for being better than the others. Values are times or rates, so a
value that is not a positive finite number is no measurement; it stands out by itself and is compared with nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Limit

__all__ = [
    "FleetRuling",
    "Outcome",
    "Rates",
    "Vote",
    "compare_rates",
    "fleet_rules",
    "judge_fleet",
    "median",
    "minority",
]

_FEW = 3
"""Up to here a median says nothing: of two values each is always exactly one MAD away."""
_MAD_TO_SIGMA = 1.4826
"""A normal distribution has sigma = 1.4826 MAD."""
_SIGMAS = 6
"""Of 32,768 normal values 0.00003 lie beyond 6 sigma on one side, and 0.009 beyond 5."""
_RATIO = {"cuda": 1.2, "cpu": 2.0}
_EFFECT = {"cuda": 0.05, "cpu": 0.30}
_COPIES_EFFECT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRuling:
    """Who stands out, and by what."""

    reference: float
    """What the others were held against: the best of a few, the median of many; NaN when nothing was measured."""
    limit: float | None
    """The value that a rank had to reach; None when there is nobody to compare with."""
    method: str
    """In words, for the finding: ``ratio 2.0 to the best of 2``."""
    outliers: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one rank's rate."""

    state: Literal["unjudged", "passed", "unrepeated", "recovered", "slow"]
    """``unjudged``: no limit. ``unrepeated``: missed a limit, and nobody measured again. ``recovered``: only while
    all worked. ``slow``: again when alone."""
    figure: Figure
    """The one that decided: the repeat where there is one."""
    limit: Limit | None = None
    """The tightest of those that it was held against."""
    alone: tuple[int, ...] = ()
    """Whose repeat it rests on."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of devices that may be compared."""

    first: Mapping[int, Figure]
    """By rank, measured while all ranks worked."""
    again: Mapping[int, Figure]
    """From the stage ``repeat``: each rank alone, with everybody else idle."""
    own: tuple[Limit, ...]
    fleet: FleetRuling
    reference: int | None
    """The rank that outliers of the fleet are measured against; None without a measured rank."""

    def suspects(self) -> tuple[int, ...]:
        """The ranks that missed a limit, and the reference where the fleet set the limit."""
        slow = {rank for rank in self.first if self.outcome(rank).state not in ("unjudged", "passed")}
        if self.reference is not None and slow & set(self.fleet.outliers):
            slow.add(self.reference)
        return tuple(sorted(slow))

    def outcome(self, rank: int) -> Outcome:
        """Hold a rank against the tightest limit, and if it misses that, its repeat.

        In the repeat the fleet's limit moves as the reference rank did: alone on a quiet machine everybody is faster,
        and later the whole machine may be hotter.
        """
        first = self.first[rank]
        limit = self._tightest(1.0)
        if limit is None:
            return Outcome(state="unjudged", figure=first)
        if first.value >= limit.value:
            return Outcome(state="passed", figure=first, limit=limit)
        lines = [f"while all ranks worked: {_rate(first)}, limit {limit.value:.3g} ({limit.origin})"]
        beside = self.reference if rank in self.fleet.outliers else None
        alone = (rank,) if beside is None else (rank, beside)
        if any(other not in self.again for other in alone):
            return Outcome(state="unrepeated", figure=first, limit=limit, evidence=tuple(lines))
        again = self.again[rank]
        scale = None
        if beside is not None:
            scale = self.again[beside].value / self.first[beside].value
            lines.append(f"rank {beside} beside it: {_rate(self.first[beside])}, alone {_rate(self.again[beside])}")
        # Who is no outlier of the fleet missed one of the other limits, so there is one.
        limit = self._tightest(scale) or limit
        lines.append(f"again, alone: {_rate(again)}, limit {limit.value:.3g} ({limit.origin})")
        state: Literal["recovered", "slow"] = "recovered" if again.value >= limit.value else "slow"
        return Outcome(state=state, figure=again, limit=limit, alone=alone, evidence=tuple(lines))

    def _tightest(self, scale: float | None) -> Limit | None:
        limits = list(self.own)
        if scale is not None and self.fleet.limit is not None:
            unit = next(iter(self.first.values())).unit
            limits.append(Limit(value=self.fleet.limit * scale, unit=unit, origin=f"fleet, {self.fleet.method}"))
        return max(limits, key=lambda limit: limit.value, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote on bits."""

    majority: Hashable | None
    """What more than half of the ranks hold; None when no value has that many."""
    odd: tuple[int, ...]
    """The ranks that hold something else, ascending; empty without a majority: then they are not separable."""


def judge_fleet(
    values: Mapping[int, float], *, better: Literal["high", "low"], device_type: str, copies: bool = False
) -> FleetRuling:
    """Hold every rank against its fleet.

    Up to three values: beyond a ratio to the best (GPU 1.2, CPU 2.0). From four on: beyond 6 x 1.4826 x MAD from the
    median and beyond an effect floor (GPU 5 %, ``copies`` between devices or hosts 10 %, CPU 30 %): equal devices
    have a MAD near 0, where any noise would stand out. An outlier is a suspicion, to be measured again.
    """
    kind = "cpu" if device_type == "cpu" else "cuda"
    measured = sorted(value for value in values.values() if _is_measured(value))
    unmeasured = {rank for rank, value in values.items() if not _is_measured(value)}
    high = better == "high"
    if len(measured) < 2:
        reference = measured[0] if measured else math.nan
        limit, method = None, "nobody to compare with"
    elif len(measured) <= _FEW:
        reference = measured[-1] if high else measured[0]
        limit = reference / _RATIO[kind] if high else reference * _RATIO[kind]
        method = f"ratio {_RATIO[kind]} to the best of {len(measured)}"
    else:
        reference = median(measured)
        effect = _COPIES_EFFECT if copies and kind == "cuda" else _EFFECT[kind]
        mad = median([abs(value - reference) for value in measured])
        distance = max(_SIGMAS * _MAD_TO_SIGMA * mad, effect * reference)
        limit = reference - distance if high else reference + distance
        method = f"median {_SIGMAS} MAD and {effect * 100:.0f} % of {len(measured)}"
        if limit <= 0:
            limit, method = None, f"the {len(measured)} values lie too far apart to compare"
    slow: set[int] = set()
    if limit is not None:
        slow = {
            rank
            for rank, value in values.items()
            if rank not in unmeasured and (value < limit if high else value > limit)
        }
    return FleetRuling(reference=reference, limit=limit, method=method, outliers=tuple(sorted(slow | unmeasured)))


def fleet_rules(*, copies: bool = False, gpu: bool = True) -> tuple[tuple[str, str], ...]:
    """How ``judge_fleet`` decides, in words: for how many values, and beyond what; ``gpu``: for GPUs too."""
    kinds = (("GPU", "cuda"), ("CPU", "cpu")) if gpu else (("CPU", "cpu"),)
    effects = {**_EFFECT, "cuda": _COPIES_EFFECT} if copies else _EFFECT
    ratios = ", ".join(f"{_RATIO[kind]} ({shown})" for shown, kind in kinds)
    floors = ", ".join(f"{effects[kind] * 100:.0f} % ({shown})" for shown, kind in kinds)
    spread = f"{_SIGMAS} x {_MAD_TO_SIGMA} MAD and {floors} from the median"
    return (f"2 to {_FEW}", f"ratio {ratios} to the best"), (f"{_FEW + 1} or more", spread)


def compare_rates(
    figures: Iterable[Figure], *, own: tuple[Limit, ...], device_type: str, copies: bool = False
) -> Rates:
    """Gather the rates of devices that may be compared: one figure name, one variant, one device model.

    ``own``: the limits besides the fleet's. ``copies``: as ``judge_fleet`` has it. A rate that is no positive number
    was not measured, and is left out.
    """
    stages: dict[str, dict[int, Figure]] = {"measure": {}, "repeat": {}}
    for figure in figures:
        if figure.rank is not None and figure.stage in stages and _is_measured(figure.value):
            stages[figure.stage][figure.rank] = figure
    values = {rank: figure.value for rank, figure in stages["measure"].items()}
    fleet = judge_fleet(values, better="high", device_type=device_type, copies=copies)
    # The typical rank, not the best: the best of many was lucky, and would look slower when repeated.
    reference = min(values, key=lambda rank: (abs(values[rank] - fleet.reference), rank), default=None)
    return Rates(first=stages["measure"], again=stages["repeat"], own=own, fleet=fleet, reference=reference)


def median(values: Sequence[float]) -> float:
    """The median. Raises ValueError without values."""
    if not values:
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    low, high = ordered[middle - 1], ordered[middle]
    middling = (low + high) / 2
    # The sum of two large values may overflow; the halves of tiny ones may vanish.
    return middling if math.isfinite(middling) else low / 2 + high / 2


def minority(values: Mapping[int, Hashable]) -> Vote:
    """Vote on bits: every rank is a voter like any other, rank 0 included. More than half decide."""
    counts = Counter(values.values())
    for value, count in counts.most_common(1):
        if 2 * count > len(values):
            odd = tuple(sorted(rank for rank, held in values.items() if held != value))
            return Vote(majority=value, odd=odd)
    return Vote(majority=None, odd=())


def _is_measured(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _rate(figure: Figure) -> str:
    return f"{figure.value:.3g} {figure.unit}"
