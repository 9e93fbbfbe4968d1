"""What the kernel counted beside a slow rank, and its GPU said, for a person, against a rank that was not slow."""

from __future__ import annotations

import math
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
_GPU_SLOWER = 0.97
"""GPUs of one model step their clocks by 15 MHz of some 2,000, and keep them within a step or two at equal load."""
_HOTTER_C = 10.0

_Seen = Mapping[str, float]
_CORES = 0.25
_OF_DEMAND = {"throttled_s": "its CPU quota kept", "waited_s": "others on its cores kept"}
_OF_TIME = {
    "steal_s": "the hypervisor took its cores (steal) for",
    "stalled_s": "tasks of its host waited for memory for",
}
_OF_GPU = {
    "gpu_hw_thermal": "too hot (HW thermal slowdown)",
    "gpu_sw_thermal": "too hot (SW thermal slowdown)",
    "gpu_power_brake": "told by its power supply to draw less (HW power brake)",
    "gpu_hw_slowdown": "slowed by its hardware (HW slowdown)",
    "gpu_power_cap": "at its power limit (SW power cap)",
    "gpu_board_limit": "at a limit of its board",
    "gpu_reliability": "held down to stay reliable (voltage)",
    "gpu_set_clocks": "held at a clock that somebody set (application clocks)",
    "gpu_sync_boost": "held at the clock of others of its group (sync boost)",
}
_COMPARED_OF_HOST = "CPU quota, other processes, steal, memory, clock of the cores"
_COMPARED = {
    "gpu_mhz": "clock of its GPU",
    "gpu_power_cap": "what held that down",
    "gpu_celsius": "its temperature",
    "gpu_limit_w": "its power limit",
}


def lines_beside(evidence: Evidence, rank: int, other: int | None) -> Iterator[str]:
    """A line for each thing that stands out against another rank (None: any), while all train and alone."""
    for stage in ("measure", "repeat"):
        told = {
            fact.rank: fact.value
            for fact in evidence.facts
            if (fact.name, fact.stage) == ("contention", stage) and fact.rank is not None
        }
        against = other if other in told.keys() - {rank} else min(told.keys() - {rank}, default=None)
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
    if seen.get("mhz", math.inf) < _SLOWER * other.get("mhz", 0.0):
        told.append(f"its cores ran at {seen['mhz']:.0f} MHz (rank {rank}: {other['mhz']:.0f})")
    told += _lines_of_gpu(seen, other, rank)
    yield from (f"{when} {line}" for line in told)
    if not told:
        compared = [words for name, words in _COMPARED.items() if name in seen.keys() & other.keys()]
        yield f"{when} nothing beside it stands out: {', '.join([_COMPARED_OF_HOST, *compared])}"


def _lines_of_gpu(seen: _Seen, other: _Seen, rank: int) -> Iterator[str]:
    if "gpu_mhz" not in seen.keys() & other.keys():
        return
    if seen["gpu_mhz"] < _GPU_SLOWER * other["gpu_mhz"]:
        yield f"its GPU ran at {seen['gpu_mhz']:.0f} MHz (rank {rank}: {other['gpu_mhz']:.0f})"
    for name, words in _OF_GPU.items():
        own, others = seen.get(name, 0.0), other.get(name, math.inf)
        if own >= max(_LEAST, _TIMES * others):
            yield f"its GPU was {words} {own * 100:.0f} % of the time (rank {rank}: {others * 100:.0f} %)"
    if (hot := seen.get("gpu_celsius", 0.0)) >= (there := other.get("gpu_celsius", hot)) + _HOTTER_C:
        yield f"its GPU reached {hot:.0f} degrees Celsius (rank {rank}: {there:.0f})"
    if (limit := seen.get("gpu_limit_w", math.inf)) < (there := other.get("gpu_limit_w", 0.0)):
        yield f"the power of its GPU is limited to {limit:.0f} W (rank {rank}: {there:.0f} W)"
    if (here := seen.get("gpu_processes", 0.0)) > (there := other.get("gpu_processes", here)):
        yield f"{here:.0f} processes computed on its GPU (rank {rank}: {there:.0f})"


def _share(seen: _Seen, name: str) -> float:
    """Of the time; of what threads were kept from, of what they could have had."""
    lost = seen.get(name, 0.0)
    return lost / max(seen["wall_s"], lost + seen["cpu_s"] if name in _OF_DEMAND else 0.0)


def _cores_of_others(seen: _Seen) -> float:
    return max(0.0, seen.get("busy_s", 0.0) - seen["cpu_s"]) / seen["wall_s"]
