"""The judge of ranks that were kept from their cores while all trained, by the counters of the kernel. Pure.

A rank that a quota stops for a while in every tenth of a second computes as fast as others in between: medians over
steps do not show it, and yet all others wait for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate
from typing import Literal

from seatrial.checks.shared.culprits import rank_culprit
from seatrial.checks.shared.host_activity import ActivityLines, activity_lines, counters_by_rank
from seatrial.checks.training.rules import OTHERS_SHARE, QUOTA_SHARE
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Finding, Limit, Ruling
from seatrial.evidence.statistics import VOTING_HOSTS, host_median, median

Cause = Literal["throttled_s", "waited_s"]
_LIMITS: dict[Cause, float] = {"throttled_s": QUOTA_SHARE, "waited_s": OTHERS_SHARE}
"""Share of the CPU time that a rank may lose beyond the loss of most others, by cause."""
_SAME = 0.1
"""Ranks read the counter of their control group one after the other."""
_OF_RANKS = 0.8
"""Share of the CPU time used below a quota: where ranks used less, others, such as other users, used up the quota."""
_PARTS = ("data_s", "compute_s", "wait_s", "optimizer_s")


def held_up(
    evidence: Evidence, cause: Cause, *, in_vain: bool = False, by_others: bool = False
) -> dict[int, tuple[float, float]]:
    """Return by rank the CPU time that it was kept from, and the limit, as shares of what it could have used.

    Only ranks beyond the limit are in it. The loss of most other ranks counts as usual. For a rank that wants little
    CPU time, the share is that of the time.

    Args:
        evidence: What the ranks reported.
        cause: ``throttled_s``, the quota of its control group, or ``waited_s``, other processes on its cores.
        in_vain: Return instead the ranks that delayed no other rank, as they waited for others more than these did: a
            rank that spins while it waits uses up its quota, too.
        by_others: Return instead the ranks whose quota other processes used up.
    """
    counters = {rank: own for rank, own in counters_by_rank(evidence, "measure").items() if cause in own}
    # By name: each rank of a machine may have a separate agent, which counts as a node.
    ranks_of = defaultdict[str, list[int]](list)
    for rank in counters:
        ranks_of[evidence.ranks[rank].node].append(rank)
    below = _below_quotas(counters, ranks_of.values()) if cause == "throttled_s" else {}
    shares = {
        rank: _share(own[cause], below.get(rank, (own["cpu_s"], own["wall_s"]))) for rank, own in counters.items()
    }
    waits = _waits(evidence)
    limits = {rank: usual + _LIMITS[cause] for rank, usual in _usual(evidence, shares).items()}
    patient = {rank for rank, usual in _usual(evidence, waits).items() if waits[rank] > usual + QUOTA_SHARE}
    return {
        rank: (shares[rank], limit)
        for rank, limit in limits.items()
        if shares[rank] > limit
        and (rank in patient) == in_vain
        # Any process below a quota can use it up.
        and (rank in below and below[rank][0] < _OF_RANKS * counters[rank].get("below_quota_s", math.inf)) == by_others
    }


def _share(lost: float, of_group: tuple[float, float]) -> float:
    """Return the lost share. A quota counts for its whole group: ranks of one node with the same counter share one."""
    used, wall = of_group
    return lost / max(lost + used, wall)


def _below_quotas(
    counters: Mapping[int, Mapping[str, float]], nodes: Iterable[Sequence[int]]
) -> dict[int, tuple[float, float]]:
    """Return by rank the CPU time and the time of the ranks of its node whose control group was stopped for as long.

    Any number of ranks may be on one node, so the sums are differences, and exact. ``nodes``: the ranks of each.
    """
    found = dict[int, tuple[float, float]]()
    for ranks in nodes:
        ordered = sorted(ranks, key=lambda rank: counters[rank]["throttled_s"])
        times = [counters[rank]["throttled_s"] for rank in ordered]
        cpu_s, wall_s = (
            [Fraction(0), *accumulate(Fraction(counters[rank][name]) for rank in ordered)]
            for name in ("cpu_s", "wall_s")
        )
        for rank in ordered:
            lost = counters[rank]["throttled_s"]
            first = bisect_left(times, True, key=partial(_is_near, lost=lost))
            after = bisect_left(times, True, key=partial(_is_far_above, lost=lost))
            found[rank] = float(cpu_s[after] - cpu_s[first]), float(wall_s[after] - wall_s[first])
    return found


def _is_near(other: float, *, lost: float) -> bool:
    return lost - other <= _SAME * lost


def _is_far_above(other: float, *, lost: float) -> bool:
    return other - lost > _SAME * lost


def _waits(evidence: Evidence) -> dict[int, float]:
    """Return by rank the share of its typical step in which it waited for others."""
    seconds: dict[int, dict[str, float]] = {}
    for entry in evidence.measurements:
        if entry.name in _PARTS and entry.stage == "measure" and entry.rank is not None and 0 <= entry.value < 1e15:
            seconds.setdefault(entry.rank, {})[entry.name] = entry.value
    return {
        rank: parts["wait_s"] / sum(parts.values())
        for rank, parts in seconds.items()
        if len(parts) == len(_PARTS) and sum(parts.values()) > 0
    }


def _usual(evidence: Evidence, shares: Mapping[int, float]) -> dict[int, float]:
    """Return by rank the share of most others; empty without others."""
    hosts = evidence.hosts()
    if len({hosts[rank] for rank in shares}) >= VOTING_HOSTS:
        # Each host has one vote, that of the rank too: two others alone could contradict one another.
        return dict.fromkeys(shares, host_median(shares, hosts, low=True))
    if len(shares) < 2:
        return {}
    ordered, num_others = sorted(shares.values()), len(shares) - 1
    usual = dict[float, float]()
    for at, share in enumerate(ordered):
        middle = ((num_others - 1) // 2, num_others // 2)
        usual[share] = median([ordered[place + (place >= at)] for place in middle])
    return {rank: usual[share] for rank, share in shares.items()}


def judge_held_up(evidence: Evidence) -> Ruling:
    """Fail a quota that ranks use up, which is how a host is set up; warn of other processes, which may be gone
    tomorrow."""
    throttled, activity = held_up(evidence, "throttled_s"), activity_lines(evidence)
    findings = [
        _finding(evidence, activity, rank, "fail", "the CPU quota of its control group", *shares)
        for rank, shares in sorted(throttled.items())
    ]
    findings += [
        _finding(
            evidence,
            activity,
            rank,
            "warn",
            "the CPU quota of its control group",
            *shares,
            result="while it waited itself",
        )
        for rank, shares in sorted(held_up(evidence, "throttled_s", in_vain=True).items())
    ]
    findings += [
        _finding(
            evidence, activity, rank, "warn", "other processes that used up the CPU quota of its control group", *shares
        )
        for rank, shares in sorted(held_up(evidence, "throttled_s", by_others=True).items())
    ]
    findings += [
        _finding(evidence, activity, rank, "warn", "other processes on its cores", *shares)
        for rank, shares in sorted(held_up(evidence, "waited_s").items())
        if rank not in throttled
    ]
    return Ruling(findings=tuple(findings))


def _finding(
    evidence: Evidence,
    activity: ActivityLines,
    rank: int,
    severity: Literal["fail", "warn"],
    by: str,
    share: float,
    limit: float,
    *,
    result: str = "and all others waited for it",
) -> Finding:
    return Finding(
        severity=severity,
        check="training",
        what=f"rank {rank} was held up by {by}, {result}",
        culprit=rank_culprit(evidence, (rank,)),
        measured=f"{share * 100:.0f} % of the CPU time that it could have used",
        limit=Limit(value=limit * 100, unit="%", origin="fleet, most others and more by what counts"),
        evidence=activity(rank, None),
        action="raise the CPU limit of its container, pod or job."
        if by.startswith("the CPU quota")
        else "end what else runs on the node and repeat the trial.",
    )
