"""Culprits of the checks that measure ranks and their devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.evidence.evidence import Evidence, short_names
from seatrial.evidence.findings import Culprit
from seatrial.util.text import and_list

_MOST_NAMED = 8


def device_culprit(evidence: Evidence, rank: int) -> Culprit:
    """Return the device of a rank as the culprit."""
    seen = evidence.ranks[rank]
    return Culprit(kind="device", name=seen.label(), ranks=(rank,), nodes=(seen.node,))


def rank_culprit(evidence: Evidence, ranks: Sequence[int]) -> Culprit:
    """Return one or several ranks as the culprit."""
    seen = [evidence.ranks[rank] for rank in ranks]
    nodes = tuple(dict.fromkeys(entry.node for entry in seen))
    return Culprit(kind="rank", name=", ".join(entry.label() for entry in seen), ranks=tuple(ranks), nodes=nodes)


def ranks_or_links(evidence: Evidence, ranks: Sequence[int], way: str = "lead to") -> Culprit:
    """Return ranks, or the links that ``way`` them, as the culprit where the evidence does not tell which it was.

    No node is at fault by that: the other end of the link may be.
    """
    named = short_names(evidence.ranks)
    names = [named(rank) for rank in ranks[:_MOST_NAMED]]
    more = [f"{len(ranks) - _MOST_NAMED} more"] if len(ranks) > _MOST_NAMED else []
    them = "it" if len(ranks) == 1 else "them"
    name = f"{and_list([*names, *more])} or the links that {way} {them}, not separable"
    return Culprit(kind="fabric", name=name, ranks=tuple(ranks))
