"""What the kernel counted beside a slow rank, for a person, against a rank that was not slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seatrial.verdict.evidence import Evidence

__all__ = ["beside"]

_LEAST = 0.05
"""Of the time: below it stands out nowhere."""
_TIMES = 2.0
"""And so many times what the other rank has."""
_LEAST_FAULTS = 100
_SLOWER = 0.9
"""A clock below this share of the other's."""

_Seen = Mapping[str, float]
_SHARES: tuple[tuple[str, Callable[[_Seen], float]], ...] = (
    ("its CPU quota stopped it for", lambda seen: seen["throttled_s"] / seen["threads"]),
    ("its threads waited for a core for", lambda seen: seen["waited_s"] / seen["threads"]),
    ("the hypervisor took its cores (steal) for", lambda seen: seen["steal_s"]),
    ("tasks of its host waited for memory for", lambda seen: seen["stalled_s"]),
)


def beside(evidence: Evidence, rank: int, other: int | None) -> Iterator[str]:
    """A line for each thing that stands out against another rank (None: any), while all train and alone."""
    for stage in ("measure", "repeat"):
        told = {
            fact.rank: fact.value
            for fact in evidence.facts
            if (fact.name, fact.stage) == ("contention", stage) and fact.rank is not None
        }
        against = other if other is not None else min(told.keys() - {rank}, default=None)
        if rank in told and against in told:
            yield from _lines(told[rank], told[against], against, "in the group" if stage == "measure" else "alone")


def _lines(seen: _Seen, other: _Seen, rank: int, when: str) -> Iterator[str]:
    """``rank`` is that of ``other``. One line says so where nothing stands out."""
    told = []
    for words, share in _SHARES:
        own, others = _of_time(share, seen), _of_time(share, other)
        if own is not None and others is not None and own >= max(_LEAST, _TIMES * others):
            told.append(f"{words} {own * 100:.0f} % of the time (rank {rank}: {others * 100:.0f} %)")
    busy, busy_there = (_of_time(lambda each: each["busy_s"] - each["cpu_s"], each) for each in (seen, other))
    if busy is not None and busy_there is not None and busy >= max(_LEAST, busy_there):
        told.append(f"other processes used {busy:.1f} of its cores (rank {rank}: {max(busy_there, 0.0):.1f})")
    faults, faults_there = seen.get("major_faults", 0.0), other.get("major_faults", 0.0)
    if faults >= max(_LEAST_FAULTS, _TIMES * faults_there):
        told.append(f"{faults:.0f} of its pages had to be read from a disk (rank {rank}: {faults_there:.0f})")
    if seen.get("mhz", 1.0) < _SLOWER * other.get("mhz", 0.0):
        told.append(f"its cores ran at {seen['mhz']:.0f} MHz (rank {rank}: {other['mhz']:.0f})")
    yield from (f"{when} {line}" for line in told)
    if not told:
        yield f"{when} nothing beside it stands out: CPU quota, other processes, steal, memory, clock of the cores"


def _of_time(part: Callable[[_Seen], float], seen: _Seen) -> float | None:
    try:
        return part(seen) / seen["wall_s"]
    except (KeyError, ZeroDivisionError):
        return None
