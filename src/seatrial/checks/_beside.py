"""What was seen beside a slow rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.probe import own_code

if TYPE_CHECKING:
    from seatrial.verdict.evidence import Evidence

__all__ = ["beside"]


def beside(evidence: Evidence, rank: int, other: int | None) -> tuple[str, ...]:
    """A line each, against another rank (None: any that was measured with it); none where the file that travels is
    alone, in which there is no room for them."""
    if not own_code.is_whole():
        return ()
    from seatrial.checks import _beside_words

    return tuple(_beside_words.lines_beside(evidence, rank, other))
