"""Who was kept from its cores while all trained, by the kernel's own counters. Pure.

Who is stopped for a while in every tenth of a second computes as fast as others in between: medians over steps do not
show it, and yet all others wait for it.
"""

from __future__ import annotations

from typing import Literal

from seatrial.checks._beside import beside
from seatrial.checks.base import STARVED
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Limit, Ruling
from seatrial.verdict.statistics import median

__all__ = ["held_up", "judge_held_up"]

Cause = Literal["throttled_s", "waited_s"]
_MORE: dict[Cause, float] = {"throttled_s": 1 - STARVED, "waited_s": 0.3}
"""So much of the CPU time that it could have used, beyond what most others lose, is too much: of a quota what STARVED
says, of other processes the 30 % below which speeds of CPUs are alike (``statistics.judge_fleet``)."""


def held_up(evidence: Evidence, cause: Cause) -> dict[int, tuple[float, float]]:
    """Rank -> what it was kept from, as a share of the CPU time that it could have used, and the most that it may be.

    ``throttled_s``: by its control group's quota; ``waited_s``: by whatever else ran on its cores. Of who wants little,
    the share of the time. What most of the others lose is usual here.
    """
    shares = {
        fact.rank: told[cause] / max(told[cause] + told["cpu_s"], told["wall_s"])
        for fact in evidence.facts
        if (fact.name, fact.stage) == ("contention", "measure") and cause in (told := fact.value)
    }
    limits = {
        rank: median([shares[other] for other in shares if other != rank]) + _MORE[cause]
        for rank in (shares if len(shares) > 1 else ())
    }
    return {rank: (shares[rank], limit) for rank, limit in limits.items() if rank is not None and shares[rank] > limit}


def judge_held_up(evidence: Evidence) -> Ruling:
    """A quota is how a host is set up, and fails; what else runs there may be gone tomorrow, and is warned of."""
    throttled = held_up(evidence, "throttled_s")
    findings = [
        _finding(evidence, rank, "fail", "the CPU quota of its control group", *told)
        for rank, told in sorted(throttled.items())
    ]
    findings += [
        _finding(evidence, rank, "warn", "other processes on its cores", *told)
        for rank, told in sorted(held_up(evidence, "waited_s").items())
        if rank not in throttled
    ]
    return Ruling(findings=tuple(findings))


def _finding(
    evidence: Evidence, rank: int, severity: Literal["fail", "warn"], by: str, share: float, limit: float
) -> Finding:
    seen, fails = evidence.ranks[rank], severity == "fail"
    return Finding(
        severity=severity,
        check="training",
        what=f"rank {rank} was held up by {by}, and all others waited for it",
        culprit=Culprit(kind="rank", name=seen.label(), ranks=(rank,), nodes=(seen.node,)),
        measured=f"{share * 100:.0f} % of the CPU time that it could have used",
        limit=Limit(value=limit * 100, unit="%", origin="fleet, most others and more by what counts"),
        evidence=beside(evidence, rank, None),
        action="raise the CPU limit of its container, pod or job."
        if fails
        else "end what else runs on the node and repeat the trial.",
    )
