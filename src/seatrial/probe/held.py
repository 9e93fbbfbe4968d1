"""For how long others kept a process from its cores: the longest wait of a thread. Pure: readings in, seconds out.

The main thread alone shows too little: of a rank that communicates it sleeps, while threads of a library do the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from seatrial.probe.cgroup import Throttling, most_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The counters of a process at one moment."""

    at_s: float
    cpu_s: float
    """CPU time of all threads."""
    cores: int
    """Cores that any thread may use."""
    waits: Mapping[str, float]
    """Thread -> seconds in which it could run and had no core; empty where the kernel does not count them."""
    quotas: Mapping[str, Throttling]
    """The counters of its control group and of those above it, by folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The first reading with a wait of a thread: what it waited longer it waited since then."""

    waited_s: float
    held_s: float
    """Seconds for which others had kept the process from its cores until then."""
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """For how long others have kept a process from its cores, from its first reading on. It never shrinks."""

    held_s: float
    last: Reading
    marks: Mapping[str, _Mark]


def held_until(now: Reading, before: Held | None) -> Held:
    """Return for how long others have kept the process from its cores until this reading. ``before``: the last one.

    A thread that waits for long is counted once it runs again, and it may have waited since the last time that it was:
    then the waits of other threads meanwhile are part of that time, and not added.
    """
    if before is None:
        return _after(now, 0.0, {})
    held_s = before.held_s
    for thread, waited_s in now.waits.items():
        mark = before.marks.get(thread)
        if mark is None or waited_s < mark.waited_s:  # it began since, perhaps with the number of one that ended
            mark = _Mark(waited_s=0.0, held_s=before.held_s, reading=before.last)
        if mark.held_s + waited_s - mark.waited_s > held_s:
            held_s = max(held_s, mark.held_s + _by_others(waited_s - mark.waited_s, mark.reading, now))
    return _after(now, held_s, before.marks)


def _after(now: Reading, held_s: float, before: Mapping[str, _Mark]) -> Held:
    reading = replace(now, waits={})
    marks = {
        thread: before[thread]
        if thread in before and before[thread].waited_s == waited_s
        else _Mark(waited_s=waited_s, held_s=held_s, reading=reading)
        for thread, waited_s in now.waits.items()
    }
    return Held(held_s=held_s, last=reading, marks=marks)


def _by_others(waited_s: float, then: Reading, now: Reading) -> float:
    """Return for how much of its wait others kept a thread from the cores.

    Neither its own process did, which cannot have used more cores than there are, nor the quota of a control group,
    which is how the host is set up: the kernel counts that as a wait, too.
    """
    elapsed_s = now.at_s - then.at_s
    unused_s = now.cores * elapsed_s - (now.cpu_s - then.cpu_s)
    stopped = most_stopped(then.quotas, now.quotas)
    return min(waited_s, elapsed_s, unused_s) - (stopped.stopped_s if stopped is not None else 0.0)
