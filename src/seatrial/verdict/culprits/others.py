"""The culprit that needs no rate and no other: who failed alone."""

from __future__ import annotations

from collections.abc import Iterable

from seatrial.verdict.culprits.records import Alone, Named, Topology

__all__ = ["judge_alone"]


def judge_alone(results: Iterable[Alone], topology: Topology) -> tuple[Named, ...]:
    """What fails alone is the culprit: no other took part."""
    failed: dict[int, list[str]] = {}
    for each in results:
        if not each.passed:
            failed.setdefault(each.member, []).append(each.detail)
    return tuple(
        Named(kind=topology.kind, members=(member,), why="it failed by itself, with no other", details=tuple(details))
        for member, details in sorted(failed.items())
    )
