"""The judge of computing times: stragglers among the ranks of one device model. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from seatrial.checks.shared.culprits import rank_culprit
from seatrial.checks.shared.host_activity import ActivityLines, activity_lines
from seatrial.checks.shared.speed import CPU_SHARE, TOO_FAR_APART, by_group, hosts_of, incomparable, only_host
from seatrial.checks.training.judge_held_up import held_up
from seatrial.checks.training.readings import by_rank
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Finding, Judged, Limit, Ruling
from seatrial.evidence.fleets import judge_fleets
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.statistics import (
    NUM_REFERENCES,
    FleetRuling,
    believable_drifts,
    fleet_effect,
    judge_fleet,
    reference_ranks,
)
from seatrial.util.text import and_list


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeFleet:
    """The computing times that can be compared: those of one device model."""

    first: Mapping[int, Measurement]
    """By rank, measured while all ranks trained."""
    again: Mapping[int, Measurement]
    """By rank, from the stage ``repeat``: alone, with all other ranks idle."""
    ruling: FleetRuling
    """The ruling about them, which may judge some of the ranks only."""
    references: tuple[int, ...]
    """The ranks with which an outlier may be compared when alone, the most typical first."""
    undoubted: tuple[int, ...]
    """The same for a rank that would be slow if others were believed: without those that would be slow, too."""
    effect: float
    """The share of a speed below which two speeds count as equal."""

    @property
    def reference(self) -> int:
        """The most typical rank."""
        return self.references[0]

    @property
    def limit(self) -> Limit:
        """The limit in the group, seconds; infinite where there is none."""
        limit_s = math.inf if self.ruling.limit is None else self.ruling.limit
        return Limit(value=limit_s, unit="s", origin=f"fleet, {self.ruling.method}")

    def doubted(self) -> dict[int, float]:
        """Return the ranks that would be slow if others were believed, each with the time that was its limit then."""
        return {rank: contest.limit for rank, contest in self.ruling.contested.items()} | {**self.ruling.apart}

    def slow_alone(self, starved: Mapping[int, float]) -> set[int]:
        """Return the doubted ranks that miss their limit alone, too, moved as the references did."""
        doubted = self.doubted()
        drifts = self._drifts(self.undoubted, starved) if doubted else None
        return {
            rank
            for rank, limit_s in doubted.items()
            if drifts is None or rank not in self.again or not self.again[rank].value <= limit_s / drifts[1]
        }

    def limits_alone(self, starved: Mapping[int, float]) -> tuple[Limit, Limit] | None:
        """Return the times above which a rank is slow alone, and below which it is fast alone.

        Alone on a quiet machine every rank is faster: the limit moves as the references did. None where none of them
        measured again. ``starved``: by rank, the share of CPU time of those that lacked it.
        """
        drifts = self._drifts(self.references, starved)
        if drifts is None:
            return None
        low, high = drifts
        loose_s = self.limit.value / low if low > 0 else math.inf
        return replace(self.limit, value=loose_s), replace(self.limit, value=self.limit.value / high)

    def _drifts(self, references: Sequence[int], starved: Mapping[int, float]) -> tuple[float, float] | None:
        return believable_drifts(
            {rank: 1 / self.first[rank].value for rank in references},
            {rank: 1 / measurement.value for rank, measurement in self.again.items() if measurement.value > 0},
            starved=starved,
            typical=1 / self.ruling.reference,
            effect=self.effect,
            fleet=self.ruling,
        )

    def comparison(self, named: Callable[[int], str]) -> Iterator[str]:
        """Yield a line for each rank to compare with that measured again; ``named`` names it."""
        for rank in [rank for rank in self.references if rank in self.again][:NUM_REFERENCES]:
            yield (
                f"for comparison, {named(rank)}: {self.first[rank].value * 1e3:.3g} ms with all ranks, "
                f"{self.again[rank].value * 1e3:.3g} ms alone"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disturbances:
    """Disturbances of ranks, of all fleets."""

    shares: Mapping[int, Measurement]
    """By rank, the CPU time that it got alone, as a share of what it could use."""
    throttled: Collection[int]
    """The ranks that their quota held up."""
    activity: ActivityLines
    """Lines about other activity on the host of a slow rank."""


def compute_fleets(evidence: Evidence) -> Iterable[ComputeFleet]:
    """Yield the fleets of each device model that has enough ranks to be compared."""
    again, hosts = by_rank(evidence, "compute_s", stage="repeat"), evidence.hosts()
    device_type, nodes = evidence.device_type, evidence.node_numbers()
    judge = partial(judge_fleet, better="low", device_type=device_type, share_cores=device_type == "cpu")
    devices = defaultdict[str, dict[int, Measurement]](dict)
    for rank, entry in by_rank(evidence, "compute_s").items():
        devices[evidence.ranks[rank].device][rank] = entry
    all_hosts = {hosts[rank] for same_device in devices.values() for rank in same_device}
    for _, same_device in sorted(devices.items()):
        values = {rank: measurement.value for rank, measurement in same_device.items()}
        for ruling in judge_fleets(values, judge, **hosts_of(values, hosts, all_hosts)):
            if ruling.limit is not None or ruling.apart or ruling.is_only_host:
                yield ComputeFleet(
                    first=same_device,
                    again={rank: again[rank] for rank in same_device if rank in again},
                    ruling=ruling,
                    references=reference_ranks(values, ruling, hosts, nodes),
                    undoubted=reference_ranks(values, ruling, hosts, nodes, without=ruling.contested),
                    effect=fleet_effect(device_type),
                )


def slow_suspects(evidence: Evidence) -> list[int]:
    """Return the stragglers, the slowest first, after typical ranks of each of their device models.

    The typical ranks come first because only a limited number of ranks measures again, and no repeat can be judged
    without them. Ranks that would be slow if others were believed come last, with typical ranks before them: they are
    not named. On a GPU these are not asked, since slow ranks only warn.
    """
    fleets = [*compute_fleets(evidence)]
    compared = [fleet for fleet in fleets if fleet.ruling.outliers]
    aside = [] if evidence.device_type == "cuda" else [fleet for fleet in fleets if fleet.doubted()]
    slow = [
        (-fleet.first[rank].value / fleet.limit.value, rank) for fleet in compared for rank in fleet.ruling.outliers
    ]
    doubted = [
        (-fleet.first[rank].value / limit_s, rank) for fleet in aside for rank, limit_s in fleet.doubted().items()
    ]
    return [
        *(rank for fleet in compared for rank in fleet.references[:NUM_REFERENCES]),
        *(rank for _, rank in sorted(slow)),
        *(rank for fleet in aside for rank in fleet.undoubted[:NUM_REFERENCES]),
        *(rank for _, rank in sorted(doubted)),
    ]


def _judge_doubted(fleet: ComputeFleet, starved: Mapping[int, float]) -> Ruling:
    """Lack the comparison of a rank that is slow, with all ranks and alone, unless one other host is believed.

    Where many lie far apart, alone, too, or two hosts do, none is believed against the others: a PASS is then partial.
    """
    slow = fleet.slow_alone(starved)
    apart = [f"rank {rank}" for rank in sorted(fleet.ruling.apart) if rank in slow]
    contested = [(rank, fleet.ruling.contested[rank]) for rank in sorted(fleet.ruling.contested) if rank in slow]
    why = by_group("device model") if fleet.ruling.depends_on_group else f"the values {TOO_FAR_APART}"
    unjudged = [f"compute_s of {and_list(apart)} and the others: {why}"] if apart else []
    if fleet.ruling.is_only_host:
        unjudged.append(only_host("compute_s", [f"rank {rank}" for rank in fleet.ruling.ranks], "device model"))
    return Ruling(
        unjudged=tuple(unjudged),
        absent=tuple(
            f"compute_s of rank {rank} compared without host {contest.host}: {fleet.first[rank].value * 1e3:.3g} ms"
            f" would then be above the limit {contest.limit * 1e3:.3g} ms"
            for rank, contest in contested
        ),
    )


def judge_compute(evidence: Evidence) -> Iterator[Ruling]:
    """Fail a rank that computes slowly in the group and again alone; yield a ruling for each fleet.

    A slow rank makes the others wait, so only computing is compared. On a GPU a slow rank only causes a warning: the
    time of a small model depends more on the host that launches it.
    """
    disturbances = _Disturbances(
        shares=by_rank(evidence, "cpu_share", stage="repeat"),
        throttled=held_up(evidence, "throttled_s").keys(),
        activity=activity_lines(evidence),
    )
    named = short_names(evidence.ranks)
    for fleet in compute_fleets(evidence):
        yield _judge_compute_fleet(evidence, fleet, disturbances, named)


def _judge_compute_fleet(
    evidence: Evidence, fleet: ComputeFleet, disturbances: _Disturbances, named: Callable[[int], str]
) -> Ruling:
    shares, is_gpu = disturbances.shares, evidence.device_type == "cuda"
    starved = {
        rank: shares[rank].value for rank in fleet.first if rank in shares and not CPU_SHARE.passes(shares[rank].value)
    }
    doubted = Ruling() if is_gpu else _judge_doubted(fleet, starved)
    findings, absent, unjudged = [], [*doubted.absent], [*doubted.unjudged]
    limits_alone = fleet.limits_alone(starved)
    comparison, are_compared = tuple(fleet.comparison(named)), not fleet.again.keys().isdisjoint(fleet.references)
    outliers = {*fleet.ruling.outliers}
    judged = [
        Judged(measurement=fleet.first[rank], limit=fleet.limit, passed=True)
        for rank in fleet.ruling.ranks
        if rank not in outliers and fleet.ruling.limit is not None
    ]
    for rank in fleet.ruling.outliers:
        if rank in disturbances.throttled:
            continue
        if rank not in fleet.again or not are_compared:
            if is_gpu:
                findings.append(_not_compared(evidence, fleet, rank, "did not measure again, alone"))
            else:
                absent.append(f"compute_s of rank {rank} measured again, alone; it was slow with all ranks")
            continue
        alone_s = fleet.again[rank].value
        loose, strict = limits_alone or (None, None)
        is_slow, is_fast = loose is not None and alone_s > loose.value, strict is not None and alone_s <= strict.value
        if not is_slow and not is_fast and rank not in starved:
            lines = [*comparison, f"alone: {alone_s * 1e3:.3g} ms"]
            if is_gpu:
                findings.append(_not_compared(evidence, fleet, rank, "those it is compared with were disturbed alone"))
            else:
                absent.append(incomparable("compute_s", f"rank {rank}", lines))
            continue
        limit = (loose if is_slow else strict) or fleet.limit
        is_starved = not is_fast and rank in starved
        is_blamed = is_slow and not is_starved and not is_gpu
        lines = [*comparison, *disturbances.activity(rank, fleet.reference)]
        if is_blamed or is_fast:
            judged.append(Judged(measurement=fleet.again[rank], limit=limit, passed=not is_slow))
        if is_starved:
            what = f"how fast rank {rank} computes could not be judged: other processes held the CPU"
            unjudged.append(what)
            action = "end what else runs on the node and repeat the trial."
            lines.append(f"alone, it got {shares[rank].value * 100:.0f} % of the CPU time that its threads could use")
        elif is_slow and not is_blamed:
            what = f"rank {rank} computes a small model slowly, with all ranks and alone"
            action = "see what compute says of its device, and look at the CPU of its host, which launches the work."
        elif is_slow:
            what = f"rank {rank} computes slowly, with all ranks and alone"
            action = "look at its clocks, power limit, temperature and throttle reasons."
        else:
            what = f"rank {rank} was slow with all ranks, and as fast as its peers alone"
            action = "look at what the ranks of a node share: power, cooling, memory bandwidth, CPU time."
        finding = Finding(
            severity="fail" if is_blamed else "warn",
            check="training",
            what=what,
            culprit=rank_culprit(evidence, (rank,)),
            measured=(
                f"forward and backward {fleet.first[rank].value * 1e3:.3g} ms with all ranks,"
                f" limit {fleet.limit.value * 1e3:.3g} ms;"
                f" {fleet.again[rank].value * 1e3:.3g} ms alone"
            ),
            limit=_in_ms(limit),
            evidence=tuple(lines),
            action=action,
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent), unjudged=tuple(unjudged))


def _not_compared(evidence: Evidence, fleet: ComputeFleet, rank: int, why: str) -> Finding:
    return Finding(
        severity="warn",
        check="training",
        what=f"rank {rank} was slow with all ranks, and {why}",
        culprit=rank_culprit(evidence, (rank,)),
        measured=f"{fleet.first[rank].value * 1e3:.3g} ms for forward and backward",
        limit=_in_ms(fleet.limit),
        action="see what compute says of its device.",
    )


def _in_ms(limit: Limit) -> Limit:
    """Return a limit in seconds in the unit of the sentence."""
    return replace(limit, value=limit.value * 1e3, unit="ms")
