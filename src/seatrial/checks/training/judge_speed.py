"""The judge of computing times: stragglers among the ranks of one device model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seatrial.checks.shared.culprits import rank_culprit
from seatrial.checks.shared.host_activity import activity_lines
from seatrial.checks.shared.speed import CPU_SHARE
from seatrial.checks.training.judge_held_up import held_up
from seatrial.checks.training.readings import by_rank
from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Finding, Judged, Limit, Ruling
from seatrial.evidence.measurement import Measurement
from seatrial.evidence.statistics import judge_fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeFleet:
    """The computing times that can be compared: those of one device model."""

    first: Mapping[int, Measurement]
    """By rank, measured while all ranks trained."""
    again: Mapping[int, Measurement]
    """By rank, from the stage ``repeat``: alone, with all other ranks idle."""
    limit: Limit
    """The limit in the group, seconds."""
    outliers: tuple[int, ...]
    """The ranks that missed it, ascending."""
    reference: int
    """The rank nearest to the value that the outliers are compared with."""


def compute_fleets(evidence: Evidence) -> Iterable[ComputeFleet]:
    """Yield the fleet of each device model that has enough ranks to be compared."""
    first, again = by_rank(evidence, "compute_s"), by_rank(evidence, "compute_s", stage="repeat")
    for device in sorted({evidence.ranks[rank].device for rank in first}):
        same_device = {rank: entry for rank, entry in first.items() if evidence.ranks[rank].device == device}
        values = {rank: measurement.value for rank, measurement in same_device.items()}
        ruling = judge_fleet(values, better="low", device_type=evidence.device_type)
        if ruling.limit is not None:
            limit = Limit(value=ruling.limit, unit="s", origin=f"fleet, {ruling.method}")
            reference = min(sorted(values), key=lambda rank: abs(values[rank] - ruling.reference))
            yield ComputeFleet(
                first=same_device, again=again, limit=limit, outliers=ruling.outliers, reference=reference
            )


def slow_suspects(evidence: Evidence) -> list[int]:
    """Return the stragglers, the slowest first, after one typical rank of each of their device models.

    The typical ranks come first because only a limited number of ranks measures again, and no repeat can be judged
    without one.
    """
    fleets = [fleet for fleet in compute_fleets(evidence) if fleet.outliers]
    slow = [(-fleet.first[rank].value / fleet.limit.value, rank) for fleet in fleets for rank in fleet.outliers]
    return [*(fleet.reference for fleet in fleets), *(rank for _, rank in sorted(slow))]


def judge_compute_fleet(evidence: Evidence, fleet: ComputeFleet) -> Ruling:
    """Fail a rank that computes slowly in the group and again alone.

    A slow rank makes the others wait, so only computing is compared. On a GPU a slow rank only causes a warning: the
    time of a small model depends more on the host that launches it.
    """
    findings, absent, unjudged = [], [], []
    shares, is_gpu = by_rank(evidence, "cpu_share", stage="repeat"), evidence.device_type == "cuda"
    judged = [
        Judged(measurement=measurement, limit=fleet.limit, passed=True)
        for rank, measurement in sorted(fleet.first.items())
        if rank not in fleet.outliers
    ]
    throttled = held_up(evidence, "throttled_s")
    for rank in fleet.outliers:
        if rank in throttled:
            continue
        if rank not in fleet.again or fleet.reference not in fleet.again:
            if is_gpu:
                findings.append(_not_repeated(evidence, fleet, rank))
            else:
                absent.append(f"compute_s of rank {rank} measured again, alone; it was slow in the group")
            continue
        before, after = fleet.first[fleet.reference], fleet.again[fleet.reference]
        # Alone on a quiet machine every rank is faster: the limit moves as the reference rank did.
        limit = Limit(value=fleet.limit.value * after.value / before.value, unit="s", origin=fleet.limit.origin)
        is_slow = fleet.again[rank].value > limit.value
        share = min((shares[other].value for other in (rank, fleet.reference) if other in shares), default=1.0)
        is_starved = is_slow and not CPU_SHARE.passes(share)
        is_blamed = is_slow and not is_starved and not is_gpu
        reference = short_names(evidence.ranks)(fleet.reference)
        lines = [
            f"in the group: {fleet.first[rank].value * 1e3:.3g} ms, limit {fleet.limit.value * 1e3:.3g} ms",
            f"for comparison, {reference}: {before.value * 1e3:.3g} ms in the group, {after.value * 1e3:.3g} ms alone",
        ]
        lines += activity_lines(evidence, rank, fleet.reference)
        if is_blamed or not is_slow:
            judged.append(Judged(measurement=fleet.again[rank], limit=limit, passed=not is_slow))
        if is_starved:
            what = f"how fast rank {rank} computes could not be judged: other processes held the CPU"
            unjudged.append(what)
            action = "end what else runs on the node and repeat the trial."
            lines.append(f"alone, it got {share * 100:.0f} % of the CPU time that its threads could use")
        elif is_slow and not is_blamed:
            what = f"rank {rank} computes a small model slowly, in the group and alone"
            action = "see what compute says of its device, and look at the CPU of its host, which launches the work."
        elif is_slow:
            what = f"rank {rank} computes slowly, in the group and alone"
            action = "look at its clocks, power limit, temperature and throttle reasons."
        else:
            what = f"rank {rank} was slow in the group, as fast as its peers when alone"
            action = "look at what the ranks of a node share: power, cooling, memory bandwidth, CPU time."
        finding = Finding(
            severity="fail" if is_blamed else "warn",
            check="training",
            what=what,
            culprit=rank_culprit(evidence, (rank,)),
            measured=(
                f"forward and backward {fleet.first[rank].value * 1e3:.3g} ms in the group,"
                f" {fleet.again[rank].value * 1e3:.3g} ms alone"
            ),
            limit=limit,
            evidence=tuple(lines),
            action=action,
        )
        findings.append(finding)
    return Ruling(findings=tuple(findings), judged=tuple(judged), absent=tuple(absent), unjudged=tuple(unjudged))


def _not_repeated(evidence: Evidence, fleet: ComputeFleet, rank: int) -> Finding:
    return Finding(
        severity="warn",
        check="training",
        what=f"rank {rank} was slow in the group, and did not measure again, alone",
        culprit=rank_culprit(evidence, (rank,)),
        measured=f"{fleet.first[rank].value * 1e3:.3g} ms for forward and backward",
        limit=fleet.limit,
        action="see what compute says of its device.",
    )
