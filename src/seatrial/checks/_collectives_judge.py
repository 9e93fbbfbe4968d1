"""What the collectives check makes of its figures. Pure: no torch, no group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seatrial.checks._operations import OPERATIONS, array_sizes
from seatrial.checks.base import holds, in_words, last_told, sound
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Fact
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling

if TYPE_CHECKING:
    from seatrial.checks.collectives import Params

__all__ = ["judge"]

_EXACTLY = Limit(value=0, unit="1", origin="exact")
_LINES = 8
_NOBODY = Culprit(kind="none", name="nobody")
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "unsupported": lambda value: holds(value, operation=str, reason=str),
    "wrong_values": lambda value: holds(value, operation=str, count=int, contributors=list),
}


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Any wrong element fails; bandwidth and latency are held against the user's limits, or only measured."""
    if len(evidence.ranks) == 1:
        what = "not checked: there is 1 rank"
        return Ruling(findings=(Finding(severity="info", check="collectives", what=what, culprit=_NOBODY),))
    evidence = sound(evidence, _FORMS)
    evidence = replace(evidence, figures=last_told(evidence.figures))
    lacking = _lacking(evidence)
    values = [
        Judged(figure=figure, limit=_EXACTLY, passed=figure.value == 0)
        for figure in evidence.figures
        if figure.name == "wrong_elements"
    ]
    facts = [fact for fact in evidence.facts if fact.name == "wrong_values" and fact.rank is not None]
    wrong = _wrong(values, facts)
    limits = list(_judge_limits(evidence, params))
    slow = [_slow(evidence, entry) for entry in limits if not entry.passed]
    return Ruling(
        findings=(
            *(_trace(evidence, wrong, facts) if wrong else ()),
            *slow,
            *(_not_checked(evidence, *each) for each in lacking.items()),
        ),
        judged=(*values, *limits),
        absent=tuple(_absent(evidence, params, lacking)),
    )


def _lacking(evidence: Evidence) -> dict[str, list[str]]:
    """The operations that the backend does not have, with its words: all who finished said so, and somebody did."""
    told: dict[str, dict[int | None, str]] = {}
    for fact in evidence.facts:
        if fact.name == "unsupported":
            told.setdefault(fact.value["operation"], {})[fact.rank] = fact.value["reason"]
    return {
        name: list(dict.fromkeys(told[name].values()))
        for name in OPERATIONS
        if name in told and told[name].keys() >= set(evidence.asked)
    }


def _not_checked(evidence: Evidence, operation: str, reasons: list[str]) -> Finding:
    return Finding(
        severity="warn",
        check="collectives",
        what=f"{operation} was not checked: backend {evidence.backend} does not have it",
        culprit=_NOBODY,
        evidence=tuple(reasons[:_LINES]),
        action="use another backend or another version of torch if what will be trained needs it.",
    )


def _absent(evidence: Evidence, params: Params, lacking: Collection[str]) -> Iterator[str]:
    if not evidence.asked or len(lacking) == len(OPERATIONS):
        yield "any operation, from any rank"
        return
    told = {(figure.rank, figure.name, figure.variant, figure.size_bytes) for figure in evidence.figures}
    for operation, rank in itertools.product(OPERATIONS, evidence.asked):
        if operation in lacking:
            continue
        sizes = array_sizes(operation, params.sizes(evidence.device_type), len(evidence.ranks))
        first = rank == min(evidence.ranks)
        needed = [("time_us", size or None) for size in (sizes if first else sizes[-1:])]
        if operation != "barrier":
            needed += [("wrong_elements", None), *(("busbw", size) for size in sizes if first)]
        for name, size in needed:
            if (rank, name, operation, size) not in told:
                yield f"{name} {operation} of rank {rank}" + (f" at {size} B" if size else "")


def _judge_limits(evidence: Evidence, params: Params) -> Iterator[Judged]:
    """At the stated sizes, by what the first rank told."""
    sizes = params.sizes(evidence.device_type)
    for figure in evidence.figures:
        if figure.variant != "all_reduce" or figure.rank != min(evidence.ranks):
            continue
        if figure.name == "busbw" and figure.size_bytes == sizes[-1] and params.min_busbw_gbps is not None:
            limit = Limit(value=params.min_busbw_gbps, unit="GB/s", origin="user collectives.min_busbw_gbps")
            yield Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)
        if figure.name == "time_us" and figure.size_bytes == sizes[0] and params.max_latency_us is not None:
            limit = Limit(value=params.max_latency_us, unit="us", origin="user collectives.max_latency_us")
            yield Judged(figure=figure, limit=limit, passed=figure.value <= limit.value)


def _slow(evidence: Evidence, entry: Judged) -> Finding:
    figure = entry.figure
    return Finding(
        severity="fail",
        check="collectives",
        what=f"all_reduce of {figure.size_bytes} B over {len(evidence.ranks)} ranks misses its {figure.name} limit",
        culprit=Culprit(kind="fabric", name="the group: all wait for the slowest rank or link"),
        measured=f"{figure.value:.3g} {figure.unit}",
        limit=entry.limit,
        action="look at the links, at the transport that was used, and at ranks that are slow alone.",
    )


def _wrong(values: Iterable[Judged], facts: Iterable[Fact]) -> dict[tuple[int, str], float]:
    """Wrong elements by (rank, operation). The facts are told at once, the figures perhaps never."""
    seen: dict[tuple[int, str], float] = {}
    for fact in facts:
        if fact.rank is not None:
            key = fact.rank, fact.value["operation"]
            seen[key] = seen.get(key, 0) + fact.value["count"]
    for entry in values:
        if not entry.passed and entry.figure.rank is not None:
            key = entry.figure.rank, entry.figure.variant
            seen[key] = max(seen.get(key, 0), entry.figure.value)
    return dict(sorted(seen.items()))


def _trace(evidence: Evidence, wrong: Mapping[tuple[int, str], float], facts: list[Fact]) -> list[Finding]:
    """Who is common to the wrong elements.

    A rank that sees its own contribution wrong is named for certain: its own block comes to it over no link.
    """
    pairs = {
        (giver, fact.rank)
        for fact in facts
        for giver in evidence.ranks
        if giver in fact.value["contributors"] and fact.rank is not None
    }
    certain = {giver for giver, taker in pairs if giver == taker}
    ranks = [evidence.ranks[rank] for rank in sorted(certain)]
    culprits = [Culprit(kind="rank", name=seen.label(), ranks=(seen.rank,), nodes=(seen.node,)) for seen in ranks]
    rest = {(giver, taker) for giver, taker in pairs if giver not in certain}
    if rest or not certain:
        culprits.append(_not_separable(rest))
    lines = [f"rank {rank}: {count:.0f} wrong elements in {name}" for (rank, name), count in wrong.items()][:_LINES]
    lines += [f"rank {fact.rank}: {in_words(fact.value)}" for fact in facts[:_LINES]]
    ranks_seeing = {rank for rank, _ in wrong}
    least = "" if ranks_seeing <= set(evidence.asked) else "at least "
    return [
        Finding(
            severity="fail",
            check="collectives",
            what=f"wrong values in {', '.join(sorted({name for _, name in wrong}))}",
            culprit=culprit,
            measured=f"{least}{sum(wrong.values()):.0f} wrong elements on {len(ranks_seeing)} ranks",
            limit=_EXACTLY,
            evidence=tuple(lines),
            action="take the device or link out of service; what was trained over it cannot be trusted.",
        )
        for culprit in culprits
    ]


def _not_separable(pairs: set[tuple[int, int]]) -> Culprit:
    """By the ``(giver, taker)`` of wrong elements; none: only sums were wrong."""
    givers, takers = {giver for giver, _ in pairs}, {taker for _, taker in pairs}
    both = tuple(sorted(givers | takers))
    if len(both) == 2:
        return Culprit(kind="link", name=f"link rank {both[0]}–rank {both[1]}, endpoints not separable", ranks=both)
    for common, way in ((givers, "leave it"), (takers, "lead to it")):
        if len(common) == 1:
            name = f"not separable: rank {min(common)} or the links that {way}"
            return Culprit(kind="fabric", name=name, ranks=tuple(common))
    return Culprit(kind="fabric", name="not separable")
