"""How many processes this machine can serve, by its cores and its memory."""

from __future__ import annotations

from seatrial.errors import RequestError
from seatrial.probe.cpu import usable_cores
from seatrial.probe.host import memory_available

_MOST_PER_CORE = 16
"""More ranks of one core answer so late that they seem dead."""
_BYTES_PER_PROCESS = 400_000_000
"""Memory of one rank with torch on the CPU, without the data of its checks."""


def refuse_too_many(processes: int, words: str, *, of_torch: bool) -> None:
    """Raise RequestError for more CPU processes than this machine can serve: they would look dead, and be blamed.

    Args:
        processes: number of ranks.
        words: the options as typed, which asked for them.
        of_torch: whether each of them imports torch; nobody knows how much memory a user's script needs.
    """
    cores, free_bytes = usable_cores(), memory_available() if of_torch else None
    most = cores * _MOST_PER_CORE
    because = f"{cores} cores"
    if free_bytes is not None and free_bytes // _BYTES_PER_PROCESS < most:
        most = max(1, free_bytes // _BYTES_PER_PROCESS)
        because = f"{free_bytes / 1e9:.1f} GB of free memory"
    if processes > most:
        raise RequestError(
            f"{words}: {processes} processes on {because}; give at most {most}, or --oversubscribe to start them all"
            " the same."
        )
