"""Comparison of the ranks' parameter digests at the end of a training. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_MOST_RANKS_NAMED = 8


def difference(digests: Sequence[str]) -> str:
    """Return one sentence that names the ranks with other parameters by majority, or says why it cannot; empty if all
    are equal.

    ``digests``: one digest per rank, by rank.
    """
    counts = Counter(digests)
    if len(counts) < 2:
        return ""
    (most, votes), *_ = counts.most_common(1)
    if len(digests) == 2:
        return "rank 0 and rank 1 have different parameters; with two ranks, the wrong one is not separable."
    if 2 * votes <= len(digests):
        return f"the {len(digests)} ranks have {len(counts)} different sets of parameters, and no set has a majority."
    odd = [rank for rank, digest in enumerate(digests) if digest != most]
    names = ", ".join(str(rank) for rank in odd[:_MOST_RANKS_NAMED]) + (
        " and others" if len(odd) > _MOST_RANKS_NAMED else ""
    )
    one = len(odd) == 1
    return (
        f"{'rank' if one else 'ranks'} {names} {'has' if one else 'have'} other parameters than the {votes} others;"
        f" replicas must stay equal, so check {'its device' if one else 'their devices'} first."
    )
