"""Bootstrap, a check by itself: do all ranks form the world, and how long does it take.

Stage ``store``: rank 0 opens the store on a port that the system chooses, so that no port can be taken, and shares the
address. Stage ``world``: all ranks connect to it, form the group, and pass a barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from seatrial.checks.check import Check, Rule, Stage, user_rule
from seatrial.checks.shared.on_call import OnCall
from seatrial.checks.shared.store_reach import store_findings
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Ruling
from seatrial.rank.context import Context
from seatrial.util.text import named_ranks

_SHOWN = 4
_LIBRARY_MARGIN_S = 30
"""Seconds by which the timeout of the library exceeds our deadline, so that ours comes first."""
_MEMORIES = ("host memory", "device memory", "pinned host memory")
"""Words of ``rank/groups.py`` for the way to MPI; those of a rank would stand in our sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Deadline and limit of the bootstrap."""

    timeout_s: float = 60.0
    """Deadline of each of the two stages, seconds."""
    max_form_s: float | None = None
    """The user's limit for forming the group, seconds on any rank; None: only measured."""


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules: all ranks must come in time, and the user may limit the time of forming the group."""
    come = Rule(
        measurement="ranks that come",
        text=f"all, within {params.timeout_s:g} s a stage",
        origin="bootstrap.timeout_s",
    )
    return (come, form_rule(params))


def form_rule(params: Params) -> Rule:
    """Return the rule for the time of forming the group."""
    return user_rule("form_s", "at most", params.max_form_s, "s", key="bootstrap.max_form_s")


def measure(context: Context, params: Params) -> None:
    """Open the store or form the world, by stage."""
    from seatrial.rank import groups

    timeout = timedelta(seconds=context.timeout_s + _LIBRARY_MARGIN_S)
    if context.stage == "store":
        context.phase("open the store")
        groups.open_store(context, timeout)
        return
    context.phase("meet at the store")
    started = time.perf_counter()
    groups.form_world(context)
    context.measurement("form_s", time.perf_counter() - started, "s", "low")
    context.phase("first barrier")
    started = time.perf_counter()
    groups.barrier(context)
    context.measurement("first_barrier_s", time.perf_counter() - started, "s", "low")
    context.phase("world formed")
    if transport := groups.transport(context):
        context.fact("transport", transport)


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Compare the time with the limit, where there is one; the conductor has checked that all ranks came."""
    formed = {measurement.rank: measurement for measurement in evidence.measurements if measurement.name == "form_s"}
    absent = tuple(f"form_s of rank {rank}" for rank in evidence.asked if rank not in formed)
    findings = (*store_findings(evidence, "bootstrap"), *_transport_findings(evidence))
    rule = form_rule(params)
    if rule.value is None:
        return Ruling(findings=findings, absent=absent)
    judged = tuple(rule.judge(measurement) for measurement in formed.values())
    late = [entry.measurement for entry in judged if not entry.passed]
    if not late:
        return Ruling(findings=findings, judged=judged, absent=absent)
    hosts = evidence.hosts()
    late_ranks = sorted(rank for entry in late if (rank := entry.rank) is not None and rank in hosts)
    if 2 * len({hosts[rank] for rank in late_ranks}) < len({hosts[rank] for rank in formed if rank in hosts}):
        said = ", ".join(f"rank {rank} reports {formed[rank].value:.4g} s" for rank in late_ranks[:_SHOWN])
        unlike = f"a time to form the world that most hosts report: {said}"
        passed = tuple(entry for entry in judged if entry.passed)
        return Ruling(findings=findings, judged=passed, absent=(*absent, unlike))
    # All ranks wait for the last one in here, so the time shows that forming was slow, not which rank was.
    worst = max(measurement.value for measurement in late)
    finding = Finding(
        severity="fail",
        check="bootstrap",
        what=f"forming the world took {worst:.1f} s",
        culprit=Culprit(kind="none", name="nobody can be named: all wait for the last to come"),
        measured=f"{worst:.1f} s",
        limit=rule.limit(),
        evidence=(f"reported by {named_ranks(late_ranks)}",),
        action="look at name resolution and the route to the address of rank 0, or raise bootstrap.max_form_s.",
    )
    return Ruling(findings=(finding, *findings), judged=judged, absent=absent)


def _transport_findings(evidence: Evidence) -> Iterator[Finding]:
    transports = sorted({fact.value for fact in evidence.facts if fact.name == "transport" and fact.value in _MEMORIES})
    if transports:
        yield Finding(
            severity="info",
            check="bootstrap",
            what=f"MPI takes the tensors from {' and from '.join(transports)}",
            culprit=Culprit(kind="none", name="nobody"),
        )


CHECK = Check(
    name="bootstrap",
    scope="bootstrap",
    params=Params,
    measure=measure,
    judge=judge,
    rules=rules,
    stages=(Stage(name="store", shares=OnCall("seatrial.rank.groups", "is_of_store")), Stage(name="world")),
)
