"""Culprits of the checks that measure ranks and their devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit


def device_culprit(evidence: Evidence, rank: int) -> Culprit:
    """Return the device of a rank as the culprit."""
    seen = evidence.ranks[rank]
    return Culprit(kind="device", name=seen.label(), ranks=(rank,), nodes=(seen.node,))


def rank_culprit(evidence: Evidence, ranks: Sequence[int]) -> Culprit:
    """Return one or several ranks as the culprit."""
    seen = [evidence.ranks[rank] for rank in ranks]
    nodes = tuple(dict.fromkeys(entry.node for entry in seen))
    return Culprit(kind="rank", name=", ".join(entry.label() for entry in seen), ranks=tuple(ranks), nodes=nodes)
