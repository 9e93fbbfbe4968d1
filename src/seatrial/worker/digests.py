"""Do all ranks hold the same parameters at the end, and who does not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["difference"]

_SHOWN = 8


def difference(digests: Sequence[str]) -> str:
    """Empty when all are equal; else one sentence that names the odd ranks by majority, or says that it cannot."""
    counts = Counter(digests)
    if len(counts) < 2:
        return ""
    (most, votes), *_ = counts.most_common(1)
    if len(digests) == 2:
        return "rank 0 and rank 1 hold different parameters; of two, not separable which one is wrong."
    if 2 * votes <= len(digests):
        return f"the {len(digests)} ranks hold {len(counts)} different sets of parameters, and no set has a majority."
    odd = [rank for rank, digest in enumerate(digests) if digest != most]
    names = ", ".join(str(rank) for rank in odd[:_SHOWN]) + (" and others" if len(odd) > _SHOWN else "")
    one = len(odd) == 1
    return (
        f"{'rank' if one else 'ranks'} {names} hold{'s' if one else ''} other parameters than the {votes} others;"
        f" replicas must stay equal, so look at {'its device' if one else 'their devices'} first."
    )
