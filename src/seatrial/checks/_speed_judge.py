"""What checks that measure each rank alone make of a speed: whom to measure again, and what to say of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from seatrial.checks.base import STARVED
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling
from seatrial.verdict.statistics import Outcome, Rates

__all__ = ["Words", "cpu_share", "device_culprit", "judge_speeds", "slowest_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How one speed of a check is spoken of."""

    check: str
    figure: str
    """Name and variant, as ``absent`` tells them: ``tflops bf16``."""
    speed: str
    """``the bf16 speed``."""
    slow_in: str
    """``slow in bf16 matrix products``."""
    alone: str
    """What to do about who is slow alone too."""
    together: str
    """What to do about who was slow only while all worked."""
    who: Callable[[int], str]
    """The rank as a sentence names it."""
    culprit: Callable[[int], Culprit]
    beside: Callable[[int], tuple[str, ...]] = lambda rank: ()
    """What was seen beside a slow rank, a line each."""


def slowest_first(groups: Iterable[Rates]) -> tuple[int, ...]:
    """The ranks that missed a limit, and with them one typical rank of their group to compare with.

    That rank comes first and then the worst, because only so many are measured again, and nobody without the first.
    """
    typical: dict[int, None] = {}
    reached: dict[int, float] = {}
    for rates in groups:
        for rank in rates.suspects():
            outcome = rates.outcome(rank)
            if rank == rates.reference:
                typical[rank] = None
            elif outcome.limit is not None:
                share = outcome.figure.value / outcome.limit.value
                reached[rank] = min(share, reached.get(rank, share))
    slow = (rank for rank in sorted(reached, key=lambda rank: (reached[rank], rank)) if rank not in typical)
    return (*typical, *slow)


def judge_speeds(rates: Rates, words: Words, shares: Mapping[int, float]) -> Iterator[Ruling]:
    """A speed fails when it misses its limit again, alone and with the CPU to itself.

    ``shares``: of each rank that was measured again, the CPU time that it got of what it could use.
    """
    users = next((limit for limit in rates.own if limit.origin.startswith("user")), None)
    for rank in sorted(rates.first):
        yield _judge_speed(rank, rates.outcome(rank), words, shares, users)


def _judge_speed(rank: int, outcome: Outcome, words: Words, shares: Mapping[int, float], users: Limit | None) -> Ruling:
    """``users``: the user's own limit, which is not the tightest one perhaps, and has to be decided all the same."""
    figure, limit = outcome.figure, outcome.limit
    if limit is None:
        return Ruling()
    who = words.who(rank)
    if outcome.state == "unrepeated":
        return Ruling(absent=(f"{words.figure} of {who} measured again, alone; {outcome.evidence[0]}",))
    entry = Judged(figure=figure, limit=limit, passed=outcome.state != "slow")
    if outcome.state == "passed":
        return Ruling(judged=(entry,))
    own_share = shares.get(rank, 1.0)
    share = min([own_share, *(shares.get(other, 1.0) for other in outcome.alone)])
    starved = outcome.state == "slow" and share < STARVED
    lines = outcome.evidence + words.beside(rank)
    absent: tuple[str, ...] = ()
    if starved and users is not None and figure.value < users.value:
        if own_share < STARVED:
            absent = (f"{words.figure} of {who}: its CPU was held by others, cpu_share {own_share:.2f}",)
        else:
            # The user's limit asks nothing of the rank beside it, which is the one that was starved.
            starved, limit = False, users
            entry = Judged(figure=figure, limit=users, passed=False)
    if starved:
        what = f"{words.speed} of {who} could not be judged: other processes held the CPU"
        action = "end what else runs on the node and repeat the trial."
        lines += (f"alone, it got {share * 100:.0f} % of the CPU time that its threads could use",)
    elif outcome.state == "slow":
        what, action = f"{who} is {words.slow_in}, alone too", words.alone
    else:
        what, action = f"{who} was {words.slow_in} while all ranks worked, but not alone", words.together
    finding = Finding(
        severity="fail" if outcome.state == "slow" and not starved else "warn",
        check=words.check,
        what=what,
        culprit=words.culprit(rank),
        measured=f"{figure.value:.3g} {figure.unit}",
        limit=limit,
        evidence=lines,
        action=action,
    )
    unjudged = (what,) if starved else ()
    return Ruling(findings=(finding,), judged=() if starved else (entry,), absent=absent, unjudged=unjudged)


def cpu_share(evidence: Evidence, variant: str) -> dict[int, float]:
    """By rank, from its repeat: the figure ``cpu_share`` of that variant."""
    return {
        figure.rank: figure.value
        for figure in evidence.figures
        if (figure.name, figure.stage, figure.variant) == ("cpu_share", "repeat", variant) and figure.rank is not None
    }


def device_culprit(evidence: Evidence, rank: int) -> Culprit:
    """The device of a rank."""
    seen = evidence.ranks[rank]
    return Culprit(kind="device", name=seen.label(), ranks=(rank,), nodes=(seen.node,))
