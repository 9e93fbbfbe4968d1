"""Stragglers and outliers of a fleet: ratios for a few ranks, median and MAD for many, votes on bits.

A fleet is judged on one side only: a rank is never blamed for being better than the others. Values are times or rates,
so a value that is not a positive finite number is an outlier by itself and is compared with nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Measurement

_FEW = 3
"""Up to this many values a median is useless: of two values each is always exactly one MAD away."""
_MAD_TO_SIGMA = 1.4826
"""In a normal distribution sigma = 1.4826 MAD."""
_SIGMAS = 6
"""On average 0.00003 of 32,768 normal values are beyond 6 sigma on one side, and 0.009 beyond 5."""
_RATIO = {"cuda": 1.2, "cpu": 2.0}
_EFFECT = {"cuda": 0.05, "cpu": 0.30}
_COPIES_EFFECT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRuling:
    """The outliers of a fleet, and how they were found."""

    reference: float
    """The value that all were compared with: the best of a few, the median of many; NaN without measurements."""
    limit: float | None
    """The value that a rank had to reach; None without another rank to compare with."""
    method: str
    """In words, for the finding: ``ratio 2.0 to the best of 2``."""
    outliers: tuple[int, ...]
    """Ranks, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOutcome:
    """The result of judging the rate of one rank."""

    state: Literal["unjudged", "passed", "unrepeated", "recovered", "slow"]
    """``unjudged``: no limit. ``unrepeated``: missed a limit and was not measured again. ``recovered``: slow only
    while all ranks worked. ``slow``: slow again when alone."""
    measurement: Measurement
    """The measurement that decided: the repeat where there is one."""
    first: Measurement | None = None
    """The measurement while all ranks worked, where the repeat decided."""
    limit: Limit | None = None
    """The tightest limit that applied."""
    alone: tuple[int, ...] = ()
    """The ranks whose repeats were compared."""
    evidence: tuple[str, ...] = ()
    """Lines for the finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRates:
    """The rates of devices that may be compared."""

    first: Mapping[int, Measurement]
    """By rank, measured while all ranks worked."""
    again: Mapping[int, Measurement]
    """By rank, from the stage ``repeat``: each rank alone, with all others idle."""
    limits: tuple[Limit, ...]
    """The limits besides that of the fleet: from the user, from the device model."""
    fleet: FleetRuling
    reference: int | None
    """The rank that is measured again together with each outlier; None without a measured rank."""
    least_scale: float
    """The least share of its rate in the group that the reference rank reaches alone, where nobody disturbs it. With
    less it would acquit others: it was disturbed, or it lies."""

    def suspects(self) -> tuple[int, ...]:
        """Return the ranks that missed a limit, and the reference where the fleet set the limit."""
        slow = {rank for rank in self.first if self.outcome(rank).state not in ("unjudged", "passed")}
        if self.reference is not None and slow & set(self.fleet.outliers):
            slow.add(self.reference)
        return tuple(sorted(slow))

    def outcome(self, rank: int, named: Callable[[int], str] = "rank {}".format) -> RateOutcome:
        """Compare a rank with the tightest limit, and if it misses that, compare its repeat.

        In the repeat the limit of the fleet scales as the reference rank did: alone on a quiet machine every rank is
        faster, and later the whole machine may be hotter.

        ``named``: names the reference rank.
        """
        first = self.first[rank]
        limit = self._tightest(1.0)
        if limit is None:
            return RateOutcome(state="unjudged", measurement=first)
        if first.value >= limit.value:
            return RateOutcome(state="passed", measurement=first, limit=limit)
        origin = limit.origin
        lines = [f"while all ranks worked: {_rate(first)}, limit there {limit.value:.3g} ({origin})"]
        reference = self.reference if rank in self.fleet.outliers else None
        alone = (rank,) if reference is None else (rank, reference)
        if any(other not in self.again for other in alone):
            return RateOutcome(state="unrepeated", measurement=first, limit=limit, evidence=tuple(lines))
        again = self.again[rank]
        scale = None
        if reference is not None:
            before, after = self.first[reference], self.again[reference]
            scale = after.value / before.value
            if scale < self.least_scale:
                slower = f"{named(reference)}, alone: {_rate(after)}, less than in the group, so it is no comparison"
                return RateOutcome(state="unrepeated", measurement=first, limit=limit, evidence=(slower, *lines))
            lines.append(f"for comparison, {named(reference)}: {before.value:.3g} in the group, {_rate(after)} alone")
        # A rank that is no outlier of the fleet missed one of the other limits, so there is one.
        limit = self._tightest(scale) or limit
        another = "" if limit.origin == origin else f" ({limit.origin})"
        lines.append(f"again, alone: {_rate(again)}, limit there {limit.value:.3g}{another}")
        state: Literal["recovered", "slow"] = "recovered" if again.value >= limit.value else "slow"
        return RateOutcome(state=state, measurement=again, first=first, limit=limit, alone=alone, evidence=tuple(lines))

    def _tightest(self, scale: float | None) -> Limit | None:
        limits = list(self.limits)
        if scale is not None and self.fleet.limit is not None:
            unit = next(iter(self.first.values())).unit
            limits.append(Limit(value=self.fleet.limit * scale, unit=unit, origin=f"fleet, {self.fleet.method}"))
        return max(limits, key=lambda limit: limit.value, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A vote on bits."""

    majority: Hashable | None
    """The value of more than half of the ranks; None where no value has a majority."""
    odd: tuple[int, ...]
    """The ranks with another value, ascending; empty without a majority: then they are not separable."""


def judge_fleet(
    values: Mapping[int, float], *, better: Literal["high", "low"], device_type: str, copies: bool = False
) -> FleetRuling:
    """Compare every rank with its fleet.

    An outlier of up to three values is beyond a ratio to the best (GPU 1.2, CPU 2.0). From four values on it is beyond
    6 x 1.4826 x MAD from the median and beyond an effect floor (GPU 5 %, ``copies`` between devices or hosts 10 %, CPU
    30 %): equal devices have a MAD near 0, where any noise would make an outlier. An outlier is a suspect, to be
    measured again.

    Args:
        values: rate or time by rank.
        better: ``high`` for rates, ``low`` for times.
        device_type: ``cpu`` or ``cuda``.
        copies: the values are bandwidths of copies, which vary more.
    """
    kind = "cpu" if device_type == "cpu" else "cuda"
    measured = sorted(value for value in values.values() if _is_measured(value))
    unmeasured = {rank for rank, value in values.items() if not _is_measured(value)}
    high = better == "high"
    if len(measured) < 2:
        reference = measured[0] if measured else math.nan
        limit, method = None, "no other rank to compare with"
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
    """Return the rules of ``judge_fleet`` in words, as (number of values, limit); with ``gpu`` those of GPUs too."""
    kinds = (("GPU", "cuda"), ("CPU", "cpu")) if gpu else (("CPU", "cpu"),)
    effects = {**_EFFECT, "cuda": _COPIES_EFFECT} if copies else _EFFECT
    ratios = ", ".join(f"{_RATIO[kind]} ({shown})" for shown, kind in kinds)
    floors = ", ".join(f"{effects[kind] * 100:.0f} % ({shown})" for shown, kind in kinds)
    spread = f"{_SIGMAS} x {_MAD_TO_SIGMA} MAD and {floors} from the median"
    return (f"2 to {_FEW}", f"ratio {ratios} to the best"), (f"{_FEW + 1} or more", spread)


def compare_rates(
    measurements: Iterable[Measurement], *, limits: tuple[Limit, ...], device_type: str, copies: bool = False
) -> FleetRates:
    """Gather the rates of devices that may be compared: one measurement name, one variant, one device model.

    ``limits`` apply besides that of the fleet; ``device_type`` and ``copies`` are those of ``judge_fleet``. Rates that
    are not positive numbers are left out.
    """
    stages: dict[str, dict[int, Measurement]] = {"measure": {}, "repeat": {}}
    for measurement in measurements:
        if measurement.rank is not None and measurement.stage in stages and _is_measured(measurement.value):
            stages[measurement.stage][measurement.rank] = measurement
    values = {rank: measurement.value for rank, measurement in stages["measure"].items()}
    fleet = judge_fleet(values, better="high", device_type=device_type, copies=copies)
    # The typical rank, not the best: the best of many was lucky, and would look slower when repeated.
    reference = min(values, key=lambda rank: (abs(values[rank] - fleet.reference), rank), default=None)
    return FleetRates(
        first=stages["measure"],
        again=stages["repeat"],
        limits=limits,
        fleet=fleet,
        reference=reference,
        least_scale=1 / _RATIO["cpu" if device_type == "cpu" else "cuda"],
    )


def median(values: Sequence[float]) -> float:
    """Return the median. Raises ValueError without values."""
    if not values:
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    low, high = ordered[middle - 1], ordered[middle]
    mean = (low + high) / 2
    # The sum of two large values may overflow; the halves of tiny ones may vanish.
    return mean if math.isfinite(mean) else low / 2 + high / 2


def minority(values: Mapping[int, Hashable]) -> Vote:
    """Vote on bits: each rank has one vote, rank 0 included, and more than half decide."""
    counts = Counter(values.values())
    for value, count in counts.most_common(1):
        if 2 * count > len(values):
            odd = tuple(sorted(rank for rank, other in values.items() if other != value))
            return Vote(majority=value, odd=odd)
    return Vote(majority=None, odd=())


def _is_measured(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _rate(measurement: Measurement) -> str:
    return f"{measurement.value:.3g} {measurement.unit}"
