"""Who was kept from its cores while all trained, by the kernel's own counters. Pure.

Who is stopped for a while in every tenth of a second computes as fast as others in between: medians over steps do not
show it, and yet all others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from seatrial.checks._beside import beside
from seatrial.checks.base import STARVED, holds
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Limit, Ruling
from seatrial.verdict.statistics import median

__all__ = ["held_up", "is_counted", "judge_held_up"]

Cause = Literal["throttled_s", "waited_s"]
_MORE: dict[Cause, float] = {"throttled_s": 1 - STARVED, "waited_s": 0.3}
"""So much of the CPU time that it could have used, beyond what most others lose, is too much: of a quota what STARVED
says, of other processes the 30 % below which speeds of CPUs are alike (``statistics.judge_fleet``)."""
_SAME = 0.1
"""Ranks read the counter of their control group one after the other."""
_PARTS = ("data_s", "compute_s", "wait_s", "optimizer_s")


def is_counted(value: Any) -> bool:
    """Whether it is what ``probe.contention`` tells."""
    if not holds(value, wall_s=float, cpu_s=float):
        return False
    return value["wall_s"] > 0 and all(isinstance(each, (int, float)) and 0 <= each < 1e15 for each in value.values())


def held_up(evidence: Evidence, cause: Cause, *, in_vain: bool = False) -> dict[int, tuple[float, float]]:
    """Rank -> what it was kept from, as a share of the CPU time that it could have used, and the most that it may be.

    ``throttled_s``: by its control group's quota; ``waited_s``: by whatever else ran on its cores. Of who wants little,
    the share of the time. What most of the others lose is usual here. ``in_vain``: those who held nobody up instead, as
    they waited for others more than these did: who spins while it waits uses up its quota, too.
    """
    told = {
        fact.rank: fact.value
        for fact in evidence.facts
        if (fact.name, fact.stage) == ("contention", "measure") and fact.rank is not None and cause in fact.value
    }
    shares, waits = {rank: _share(evidence, told, rank, cause) for rank in told}, _waits(evidence)
    limits = {rank: _beyond(shares, rank, _MORE[cause]) for rank in (shares if len(shares) > 1 else ())}
    return {
        rank: (shares[rank], limit)
        for rank, limit in limits.items()
        if shares[rank] > limit
        and (rank in waits and len(waits) > 1 and waits[rank] > _beyond(waits, rank, 1 - STARVED)) == in_vain
    }


def _share(evidence: Evidence, told: Mapping[int, Mapping[str, float]], rank: int, cause: Cause) -> float:
    """A quota counts for its whole group: where ranks of one node tell the same of it, they share one."""
    lost, node = told[rank][cause], evidence.ranks[rank].node_rank
    mine = [rank]
    if cause == "throttled_s":
        mine = [
            other
            for other in told
            if evidence.ranks[other].node_rank == node and abs(told[other][cause] - lost) <= _SAME * lost
        ]
    used, wall = (sum(told[other][name] for other in mine) for name in ("cpu_s", "wall_s"))
    return lost / max(lost + used, wall)


def _waits(evidence: Evidence) -> dict[int, float]:
    """Rank -> the share of its typical step in which it waited for others."""
    seconds: dict[int, dict[str, float]] = {}
    for each in evidence.figures:
        if each.name in _PARTS and each.stage == "measure" and each.rank is not None and 0 <= each.value < 1e15:
            seconds.setdefault(each.rank, {})[each.name] = each.value
    return {
        rank: parts["wait_s"] / sum(parts.values())
        for rank, parts in seconds.items()
        if len(parts) == len(_PARTS) and sum(parts.values()) > 0
    }


def _beyond(shares: Mapping[int, float], rank: int, more: float) -> float:
    return median([shares[other] for other in shares if other != rank]) + more


def judge_held_up(evidence: Evidence) -> Ruling:
    """A quota is how a host is set up, and fails; what else runs there may be gone tomorrow, and is warned of."""
    throttled = held_up(evidence, "throttled_s")
    findings = [
        _finding(evidence, rank, "fail", "the CPU quota of its control group", *told)
        for rank, told in sorted(throttled.items())
    ]
    findings += [
        _finding(evidence, rank, "warn", "the CPU quota of its control group", *told, result="while it waited itself")
        for rank, told in sorted(held_up(evidence, "throttled_s", in_vain=True).items())
    ]
    findings += [
        _finding(evidence, rank, "warn", "other processes on its cores", *told)
        for rank, told in sorted(held_up(evidence, "waited_s").items())
        if rank not in throttled
    ]
    return Ruling(findings=tuple(findings))


def _finding(
    evidence: Evidence,
    rank: int,
    severity: Literal["fail", "warn"],
    by: str,
    share: float,
    limit: float,
    *,
    result: str = "and all others waited for it",
) -> Finding:
    seen = evidence.ranks[rank]
    return Finding(
        severity=severity,
        check="training",
        what=f"rank {rank} was held up by {by}, {result}",
        culprit=Culprit(kind="rank", name=seen.label(), ranks=(rank,), nodes=(seen.node,)),
        measured=f"{share * 100:.0f} % of the CPU time that it could have used",
        limit=Limit(value=limit * 100, unit="%", origin="fleet, most others and more by what counts"),
        evidence=beside(evidence, rank, None),
        action="raise the CPU limit of its container, pod or job."
        if by.startswith("the CPU quota")
        else "end what else runs on the node and repeat the trial.",
    )
