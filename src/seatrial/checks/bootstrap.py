"""Forming the world is a check of its own: did everybody come, and how long did it take.

Two stages. ``store``: rank 0 opens the store on a port that the system chooses, so that no port can be taken, and
shares the address. ``world``: all ranks meet there and form the group, then meet once in a barrier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from seatrial.checks.base import Check, Held, Stage, held_by_user
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_NOBODY = Culprit(kind="none", name="nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Limits of the bootstrap."""

    timeout_s: float = 60.0
    """Seconds for each of the two stages."""
    max_form_s: float | None = None
    """Forming the group may take that long on any rank; None: only measured."""


def measure(context: Context, params: Params) -> None:
    """Open the store or form the world, by stage."""
    from seatrial.worker import groups

    # Our own deadline comes first; the library's is the safety net.
    timeout = timedelta(seconds=context.timeout_s + 30)
    if context.stage == "store":
        context.phase("open the store")
        groups.open_store(context, timeout)
        return
    context.phase("meet at the store")
    started = time.perf_counter()
    groups.form_world(context, timeout)
    context.figure("form_s", time.perf_counter() - started, "s", "low")
    context.phase("first barrier")
    started = time.perf_counter()
    groups.barrier(context)
    context.figure("first_barrier_s", time.perf_counter() - started, "s", "low")
    context.phase("world formed")
    if transport := groups.transport(context):
        context.fact("transport", transport)


def judge(evidence: Evidence, params: Params) -> Ruling:
    """All came (the conductor saw to that); the time is held against a limit where there is one."""
    formed = {figure.rank: figure for figure in evidence.figures if figure.name == "form_s"}
    absent = tuple(f"form_s of rank {rank}" for rank in evidence.asked if rank not in formed)
    transports = sorted({str(fact.value) for fact in evidence.facts if fact.name == "transport"})
    what = f"MPI takes the tensors from {' and from '.join(transports)}"
    told = [Finding(severity="info", check="bootstrap", what=what, culprit=_NOBODY)] if transports else []
    if params.max_form_s is None:
        return Ruling(findings=tuple(told), absent=absent)
    limit = Limit(value=params.max_form_s, unit="s", origin="user bootstrap.max_form_s")
    judged = tuple(Judged(figure=figure, limit=limit, passed=figure.value <= limit.value) for figure in formed.values())
    late = [entry.figure for entry in judged if not entry.passed]
    if not late:
        return Ruling(findings=tuple(told), judged=judged, absent=absent)
    # All ranks wait for the last one in here, so the time says that it was slow, not who was.
    worst = max(figure.value for figure in late)
    finding = Finding(
        severity="fail",
        check="bootstrap",
        what=f"forming the world took {worst:.1f} s",
        culprit=Culprit(kind="none", name="nobody can be named: all wait for the last to come"),
        measured=f"{worst:.1f} s",
        limit=limit,
        action="look at name resolution and the route to the address of rank 0, or raise bootstrap.max_form_s.",
    )
    return Ruling(findings=(finding, *told), judged=judged, absent=absent)


def limits(params: Params) -> tuple[Held, ...]:
    """Everybody in time, and how long forming the world may take where the user says so."""
    slowest = None if params.max_form_s is None else f"at most {params.max_form_s:g} s"
    return (
        Held(what="ranks that come", limit=f"all, within {params.timeout_s:g} s a stage", origin="bootstrap.timeout_s"),
        held_by_user("form_s", slowest, "bootstrap.max_form_s"),
    )


CHECK = Check(
    name="bootstrap",
    scope="bootstrap",
    params=Params,
    measure=measure,
    judge=judge,
    limits=limits,
    stages=(Stage(name="store", first_only=True), Stage(name="world")),
)
