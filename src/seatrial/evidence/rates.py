"""The rates of devices that may be compared: each against the tightest limit, and what a repeat alone makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from seatrial.evidence.findings import Limit
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.statistics import NUM_REFERENCES, Contest, FleetRuling, believable_drifts
from seatrial.util.text import format_number


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOutcome:
    """The result of judging the rate of one rank."""

    state: Literal["unjudged", "passed", "unrepeated", "incomparable", "recovered", "slow"]
    """``unjudged``: no limit. ``unrepeated``: missed a limit and was not measured again. ``incomparable``: was, but the
    ranks to compare with were disturbed or contradict one another. ``recovered``: slow only while all ranks worked.
    ``slow``: slow again when alone."""
    measurement: Measurement
    """The measurement that decided: the repeat where there is one."""
    first: Measurement | None = None
    """The measurement while all ranks worked, where the repeat decided."""
    first_limit: Limit | None = None
    """The tightest limit of ``first``."""
    limit: Limit | None = None
    """The tightest limit of ``measurement``."""
    evidence: tuple[str, ...] = ()
    """Lines for the finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """How the limit of a fleet moves where each rank works alone."""

    limits: tuple[Limit | None, Limit | None] | None
    """The speeds below which a rank is slow, and from which on it is fast; None where too few ranks say it."""
    lines: tuple[str, ...]
    """The ranks that say it, for the findings."""


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
    references: tuple[int, ...]
    """The ranks with which an outlier may be compared when alone (``reference_ranks``), the most typical first."""
    undoubted: tuple[int, ...]
    """The same for a rank that would be slow if others were believed: without those that would be slow, too."""
    effect: float
    """The share of a speed below which two speeds count as equal."""
    ceiling: Limit | None = None
    """The speed that no device reaches."""
    impossible: tuple[Measurement, ...] = ()
    """The measurements above ``ceiling``: they are damage, and compared with nothing."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that this comparison judges, ascending; ``first`` may have more, to compare them with."""
        return self.fleet.ranks

    @property
    def apart(self) -> Mapping[int, float]:
        """Return the ranks that are not comparable with the others, unless the user set a limit."""
        return {} if any(limit.origin.startswith("user") for limit in self.limits) else self.fleet.apart

    @property
    def reference(self) -> int | None:
        """The most typical rank; None without a measured rank."""
        return next(iter(self.references), None)

    @property
    def contested(self) -> Mapping[int, Contest]:
        """Return the ranks that one other host keeps from being outliers, unless the user set a limit."""
        is_limited = any(limit.origin.startswith("user") for limit in self.limits)
        return {} if is_limited else self.fleet.contested

    def slow(self) -> tuple[int, ...]:
        """Return the ranks that missed a limit, ascending."""
        return tuple(rank for rank, outcome in self.outcomes() if outcome.state not in ("unjudged", "passed"))

    def doubted(self) -> dict[int, float]:
        """Return the ranks that would be slow if others were believed, each with the limit that it missed then."""
        return {rank: contest.limit for rank, contest in self.contested.items()} | {**self.apart}

    def suspects(self) -> tuple[int, ...]:
        """Return all these ranks, and where the fleet set their limit, the references; ascending."""
        slow, doubted = {*self.slow()}, self.doubted()
        references = {*self.references[:NUM_REFERENCES]} if slow & {*self.fleet.outliers} else set[int]()
        references |= {*self.undoubted[:NUM_REFERENCES]} if doubted else set()
        return tuple(sorted(slow | {*doubted} | references))

    def slow_alone(self, limits: Mapping[int, float], starved: Mapping[int, float]) -> dict[int, float]:
        """Return the ranks that missed these limits of the fleet and miss them alone too, moved as the references did.

        What ranks share, such as a memory bus or a file server, makes each of them faster alone, a slow one too.

        Args:
            limits: By rank, the limit that it missed.
            starved: As for ``outcomes``.
        """
        drifts = self._drifts(self.undoubted, starved)
        return {
            rank: limit
            for rank, limit in limits.items()
            if drifts is None or rank not in self.again or not self.again[rank].value >= limit * drifts[1]
        }

    def _drifts(self, references: Sequence[int], starved: Mapping[int, float]) -> tuple[float, float] | None:
        compared = [rank for rank in references if rank in self.again]
        return believable_drifts(
            {rank: self.first[rank].value for rank in compared},
            {rank: self.again[rank].value for rank in compared},
            starved=starved,
            typical=self.fleet.reference,
            effect=self.effect,
            fleet=self.fleet,
        )

    def outcomes(
        self, starved: Mapping[int, float] | None = None, named: Callable[[int], str] = "rank {}".format
    ) -> Iterator[tuple[int, RateOutcome]]:
        """Yield each rank compared with the tightest limit, and if it misses that, its repeat.

        In the repeat the limit of the fleet moves as the speeds of the references did: alone on a quiet machine every
        rank is faster.

        Args:
            starved: By rank, the share of CPU time of those that lacked it in their repeat: they prove nobody slow.
            named: Names a reference.
        """
        starved = starved or {}
        moved = _Moved(limits=None, lines=())
        if not {*self.fleet.outliers}.isdisjoint(self.again):
            # All outliers are compared with the same ranks, of which there are thousands.
            drifts = self._drifts(self.references, starved)
            moved = _Moved(
                limits=None if drifts is None else (self._tightest(drifts[0]), self._tightest(drifts[1])),
                lines=tuple(self._comparison(starved, named)),
            )
        limit, outliers = self._tightest(1.0), {*self.fleet.outliers}
        for rank in self.ranks:
            yield rank, self._outcome(rank, limit, moved if rank in outliers else None)

    def _comparison(self, starved: Mapping[int, float], named: Callable[[int], str]) -> Iterator[str]:
        for other in islice((other for other in self.references if other in self.again), NUM_REFERENCES):
            lack = ", without the CPU time it could use" if other in starved else ""
            before = f"{_rate(self.first[other])} with all ranks"
            yield f"for comparison, {named(other)}: {before}, {_rate(self.again[other])} alone{lack}"

    def _outcome(self, rank: int, limit: Limit | None, moved: _Moved | None) -> RateOutcome:
        """Compare a rank with the tightest limit. ``moved``: of an outlier of the fleet, how its limit moves alone."""
        first = self.first[rank]
        if limit is None:
            return RateOutcome(state="unjudged", measurement=first)
        if first.value >= limit.value:
            return RateOutcome(state="passed", measurement=first, limit=limit)
        first_limit = limit
        lines = [f"with all ranks: {_rate(first)}, limit {_limit(limit)}"]
        missed = RateOutcome(state="unrepeated", measurement=first, limit=limit, evidence=tuple(lines))
        if rank not in self.again:
            return missed
        again, own = self.again[rank], self._tightest(None)
        loose = strict = own
        if moved is not None:
            lines += moved.lines
            if moved.limits is not None:
                loose, strict = moved.limits
            elif own is None or again.value >= own.value:
                return missed
        # A rank that is no outlier of the fleet missed one of the other limits, so there is one.
        assert loose is not None and strict is not None
        state: Literal["incomparable", "recovered", "slow"] = "incomparable"
        limit = strict if math.isfinite(strict.value) else loose
        if again.value < loose.value:
            state, limit = "slow", loose
        elif again.value >= strict.value:
            state = "recovered"
        if limit.origin != first_limit.origin:
            lines[0] += f" ({first_limit.origin})"
        lines.insert(1, f"alone: {_rate(again)}, limit {_limit(limit)}")
        return RateOutcome(
            state=state,
            measurement=again,
            first=first,
            first_limit=first_limit,
            limit=limit,
            evidence=tuple(lines),
        )

    def _tightest(self, drift: float | None) -> Limit | None:
        limits = list(self.limits)
        if drift is not None and self.fleet.limit is not None:
            unit = next(iter(self.first.values())).unit
            limits.append(Limit(value=self.fleet.limit * drift, unit=unit, origin=f"fleet, {self.fleet.method}"))
        return max(limits, key=lambda limit: limit.value, default=None)


def _limit(limit: Limit) -> str:
    return f"{format_number(limit.value)} {limit.unit}"


def _rate(measurement: Measurement) -> str:
    return f"{measurement.value:.3g} {measurement.unit}"
