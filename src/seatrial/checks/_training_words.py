"""What the kernel counted beside a slow rank, for a person, against a rank that was not slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seatrial.verdict.evidence import Evidence

__all__ = ["lines_beside"]

_LEAST = 0.05
"""Below this share nothing stands out."""
_TIMES = 2.0
"""And so many times what the other rank has."""
_LEAST_FAULTS = 100
_SLOWER = 0.9
"""A clock below this share of the other's."""

_Seen = Mapping[str, float]
_CORES = 0.25
_OF_DEMAND = {"throttled_s": "its CPU quota kept", "waited_s": "others on its cores kept"}
_OF_TIME = {
    "steal_s": "the hypervisor took its cores (steal) for",
    "stalled_s": "tasks of its host waited for memory for",
}


def lines_beside(evidence: Evidence, rank: int, other: int | None) -> Iterator[str]:
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
    told = list[str]()
    for name, words in (_OF_DEMAND | _OF_TIME).items():
        own, others = (_share(each, name) for each in (seen, other))
        if name == "waited_s" and told:  # whom a quota stops waits as well
            continue
        if own >= max(_LEAST, _TIMES * others):
            of = "of the CPU time that it could have used" if name in _OF_DEMAND else "of the time"
            told.append(f"{words} {own * 100:.0f} % {of} (rank {rank}: {others * 100:.0f} %)")
    busy, busy_there = (_cores_of_others(each) for each in (seen, other))
    if busy >= busy_there + _CORES:
        told.append(f"other processes used {busy:.1f} of its cores (rank {rank}: {busy_there:.1f})")
    faults, faults_there = seen.get("major_faults", 0.0), other.get("major_faults", 0.0)
    if faults >= max(_LEAST_FAULTS, _TIMES * faults_there):
        told.append(f"{faults:.0f} of its pages had to be read from a disk (rank {rank}: {faults_there:.0f})")
    if seen.get("mhz", 1.0) < _SLOWER * other.get("mhz", 0.0):
        told.append(f"its cores ran at {seen['mhz']:.0f} MHz (rank {rank}: {other['mhz']:.0f})")
    yield from (f"{when} {line}" for line in told)
    if not told:
        yield f"{when} nothing beside it stands out: CPU quota, other processes, steal, memory, clock of the cores"


def _share(seen: _Seen, name: str) -> float:
    """Of the time; of what threads were kept from, of what they could have had."""
    lost = seen.get(name, 0.0)
    return lost / max(seen["wall_s"], lost + seen["cpu_s"] if name in _OF_DEMAND else 0.0)


def _cores_of_others(seen: _Seen) -> float:
    return max(0.0, seen.get("busy_s", 0.0) - seen["cpu_s"]) / seen["wall_s"]
