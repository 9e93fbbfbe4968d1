"""Culprits by what members say of themselves and of one another: whose bits differ, for whom the others waited.

No check asks this yet, so it does not travel.
"""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.verdict.culprits.records import Digest, Named, Phase, Topology
from seatrial.verdict.statistics import minority

__all__ = ["judge_digests", "judge_phases"]


def judge_digests(digests: Sequence[Digest], topology: Topology) -> tuple[tuple[Named, ...], tuple[str, ...]]:
    """Vote on bits among equals. Without a majority, who does not repeat itself is named.

    Returns the culprits, and what could not be told.
    """
    named: dict[int, list[str]] = {}
    remains = []
    for what, comparable in sorted({(each.what, each.comparable) for each in digests}):
        own: dict[int, dict[int, str]] = {}
        for each in digests:
            if (each.what, each.comparable) == (what, comparable):
                own.setdefault(each.member, {})[each.attempt] = each.value
        fickle = {member for member, values in own.items() if len(set(values.values())) > 1}
        for member in fickle:
            named.setdefault(member, []).append(f"{what}: it does not repeat its own bits")
        steady = {member: values[min(values)] for member, values in own.items() if member not in fickle}
        vote = minority(steady)
        for member in vote.odd:
            count = len(steady) - len(vote.odd)
            named.setdefault(member, []).append(f"{what}: it differs from {count} of {len(steady)} that agree")
        if vote.majority is None and len(set(steady.values())) > 1:
            names = ", ".join(map(str, sorted(steady)))
            remains.append(f"{what} differs and no value has a majority among {names}: not separable")
        elif len(steady) == 1 and not fickle and len(topology.members) > 1:
            remains.append(f"{what} of {next(iter(steady))} was compared with nobody")
    culprits = tuple(
        Named(kind=topology.kind, members=(member,), why="its bits are wrong", details=tuple(details))
        for member, details in sorted(named.items())
    )
    return culprits, tuple(remains)


def judge_phases(phases: Sequence[Phase], topology: Topology) -> tuple[tuple[Named, ...], tuple[str, ...]]:
    """Follow who waits for whom to where it ends: a member that waits for nobody, or two that wait for each other.

    Who only waits is never named. Returns the culprits, and what could not be told.
    """
    at = {each.member: each for each in phases}
    waiting = {member: tuple(other for other in seen.waits_for if other != member) for member, seen in at.items()}
    if not any(waiting.values()):
        return (), ()
    awaited = {other for others in waiting.values() for other in others}
    least = min(seen.passed for seen in at.values())
    # Ahead of all others and in nobody's way is not who they wait for, even if it waits for nobody now.
    absent = sorted(member for member in awaited if member in at and not waiting[member] and at[member].passed == least)
    if absent:
        culprits = tuple(
            Named(
                kind=topology.kind,
                members=(member,),
                why="the others wait for it, and it waits for nobody",
                details=(f"it passed {at[member].passed} phases, others up to {max(s.passed for s in at.values())}",),
            )
            for member in absent
        )
        return culprits, ()
    silent = sorted(awaited - set(at))
    if silent:
        return (), (f"the others wait for {', '.join(map(str, silent))}, of which no phase is known",)
    # Only who has passed the fewest phases holds the others up: those further on wait for them in the end.
    mutual = sorted(
        (member, other)
        for member, others in waiting.items()
        for other in others
        if member < other and waiting[other] == (member,) and others == (other,) and at[member].passed == least
    )
    if mutual:
        culprits = tuple(
            Named(
                kind="link",
                members=pair,
                confidence="likely",
                why="its two ends wait for each other and for nobody else",
                inseparable=pair,
            )
            for pair in mutual
        )
        return culprits, ()
    return (), ("all that wait are inside of the same operation: the fabric between them, nobody can be named",)
