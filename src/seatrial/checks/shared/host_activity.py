"""Other activity on the host of a slow rank: what the kernel counted, and what the GPU reported.

A finding has these lines for a person; each compares the slow rank with a rank that was not slow. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from seatrial.checks.shared.facts import has_fields
from seatrial.devices.state import THROTTLE
from seatrial.evidence.evidence import Evidence, short_names

_LEAST_SHARE = 0.05
"""A smaller share explains nothing."""
_BOTH = 0.2
"""A share that explains a speed although the other rank lost as much: what ``speed.MIN_CPU_SHARE`` leaves."""
_TIMES = 2.0
"""A value explains something when it is at least this many times the value of the other rank."""
_LEAST_FAULTS = 100
_SLOWER = 0.9
"""Clocks of cores differ below this share of the other rank's."""
_GPU_SLOWER = 0.97
"""GPUs of one model step their clocks by 15 MHz of some 2,000, and keep them within a step or two at equal load."""
_HOTTER_C = 10.0
_CORES = 0.25

Counters = Mapping[str, float]
"""The value of the fact ``contention`` of one rank."""
_SHARES_OF_DEMAND = {"throttled_s": "its CPU quota kept", "waited_s": "others on its cores kept"}
_SHARES_OF_TIME = {
    "steal_s": "the hypervisor took its cores (steal) for",
    "stalled_s": "tasks of its host waited for memory for",
}
_GPU_REASONS = {
    name: THROTTLE[name.removeprefix("gpu_")]
    for name in (
        "gpu_hw_thermal",
        "gpu_sw_thermal",
        "gpu_power_brake",
        "gpu_hw_slowdown",
        "gpu_power_cap",
        "gpu_application_clocks",
        "gpu_sync_boost",
        "gpu_display_clock",
    )
}
_COMPARED_ON_HOST = "CPU quota, other processes, steal, memory, clock of the cores"
_COMPARED_ON_GPU = {
    "gpu_mhz": "clock of its GPU",
    "gpu_power_cap": "reasons for a lower clock",
    "gpu_celsius": "its temperature",
    "gpu_limit_w": "its power limit",
}


def is_contention(value: Any) -> bool:
    """Return whether a value has the form of the counters of ``probe.contention``."""
    if not has_fields(value, wall_s=float, cpu_s=float):
        return False
    return value["wall_s"] > 0 and all(
        isinstance(number, (int, float)) and 0 <= number < 1e15 for number in value.values()
    )


def counters_by_rank(evidence: Evidence, stage: str) -> dict[int, Counters]:
    """Return by rank the counters that it read in a stage; without those of another form, which excuse nobody."""
    return {
        fact.rank: fact.value
        for fact in evidence.facts
        if (fact.name, fact.stage) == ("contention", stage)
        and fact.rank is not None
        and fact.rank in evidence.ranks
        and is_contention(fact.value)
    }


def load_of_others(evidence: Evidence) -> str:
    """Return the rank that others kept most from its cores while all ranks worked, as a sentence; empty for none.

    Ranks that only contend with one another do not count: that is how the trial was started.
    """
    counters = counters_by_rank(evidence, "measure")
    found: list[tuple[float, str]] = []
    # By name: each rank of a machine may have a separate agent, which counts as a node.
    cpu_s = defaultdict[str, float](float)
    for rank, own in counters.items():
        cpu_s[evidence.ranks[rank].node] += own["cpu_s"]
    for rank, own in counters.items():
        of_others_s = own.get("busy_s", 0.0) - cpu_s[evidence.ranks[rank].node]
        cores, share = of_others_s / own["wall_s"], _share(own, "waited_s")
        if share >= _BOTH and cores >= _CORES:
            found.append(
                (
                    share,
                    f"rank {rank} waited {share * 100:.0f} % of the CPU time that it could have used, while"
                    f" other processes used {cores:.1f} of its cores",
                )
            )
    return max(found, default=(0.0, ""))[1]


class ActivityLines(Protocol):
    """Lines about the activity on the host of a slow rank that explains it, compared with another one (None: any).

    Where nothing explains it, one line says so. Without the counters of both ranks there is no line.
    """

    def __call__(self, rank: int, other: int | None) -> tuple[str, ...]: ...


def activity_lines(evidence: Evidence) -> ActivityLines:
    """Return what puts the activity on the host of a rank into lines: any number of ranks may be slow."""
    named, stages = short_names(evidence.ranks), list[tuple[Mapping[int, Counters], list[int], str]]()
    for stage, when in (("measure", "during the group run"), ("repeat", "alone")):
        counters = counters_by_rank(evidence, stage)
        stages.append((counters, sorted(counters)[:2], when))

    def lines(rank: int, other: int | None) -> tuple[str, ...]:
        found = list[str]()
        for counters, lowest, when in stages:
            default = next((each for each in lowest if each != rank), None)
            against = other if other in counters and other != rank else default
            if rank in counters and against is not None:
                found += _lines(counters[rank], counters[against], named(against), when)
        return tuple(found)

    return lines


def _lines(slow: Counters, other: Counters, other_name: str, when: str) -> Iterator[str]:
    lines = list[str]()
    for name, words in (_SHARES_OF_DEMAND | _SHARES_OF_TIME).items():
        share, other_share = _share(slow, name), _share(other, name)
        if name == "waited_s" and lines:  # a rank that a quota stops waits as well
            continue
        if share >= max(_LEAST_SHARE, _TIMES * other_share):
            base = "of the CPU time that it could have used" if name in _SHARES_OF_DEMAND else "of the time"
            lines.append(f"{words} {share * 100:.0f} % {base} ({other_name}: {other_share * 100:.0f} %)")
    cores, other_cores = _cores_of_others(slow), _cores_of_others(other)
    if cores >= other_cores + _CORES:
        lines.append(f"other processes used {cores:.1f} of its cores ({other_name}: {other_cores:.1f})")
    faults, other_faults = slow.get("major_faults", 0.0), other.get("major_faults", 0.0)
    if faults >= max(_LEAST_FAULTS, _TIMES * other_faults):
        lines.append(f"{faults:.0f} of its pages had to be read from a disk ({other_name}: {other_faults:.0f})")
    if slow.get("mhz", math.inf) < _SLOWER * other.get("mhz", 0.0):
        lines.append(f"its cores ran at {slow['mhz']:.0f} MHz ({other_name}: {other['mhz']:.0f})")
    lines += _gpu_lines(slow, other, other_name)
    yield from (f"{when} {line}" for line in lines)
    alike = [] if lines else list(_alike(slow, other, other_name))
    yield from (f"{when} {line}" for line in alike)
    if not lines and not alike:
        compared = [words for name, words in _COMPARED_ON_GPU.items() if name in slow.keys() & other.keys()]
        names = ", ".join([_COMPARED_ON_HOST, *compared])
        yield f"{when} no other activity on the host explains it (compared: {names})"


def _alike(slow: Counters, other: Counters, other_name: str) -> Iterator[str]:
    """Yield what kept either rank from its cores without setting them apart: it explains their speed all the same."""
    for name, words in _SHARES_OF_DEMAND.items():
        share, other_share = _share(slow, name), _share(other, name)
        if max(share, other_share) >= _BOTH:
            yield (
                f"{words} {share * 100:.0f} % of the CPU time that it could have used,"
                f" and {other_share * 100:.0f} % from {other_name}"
            )


def _gpu_lines(slow: Counters, other: Counters, other_name: str) -> Iterator[str]:
    if "gpu_mhz" not in slow.keys() & other.keys():
        return
    if slow["gpu_mhz"] < _GPU_SLOWER * other["gpu_mhz"]:
        yield f"its GPU ran at {slow['gpu_mhz']:.0f} MHz ({other_name}: {other['gpu_mhz']:.0f})"
    for name, words in _GPU_REASONS.items():
        share, other_share = slow.get(name, 0.0), other.get(name, math.inf)
        if share >= max(_LEAST_SHARE, _TIMES * other_share):
            yield f"its GPU was {words} {share * 100:.0f} % of the time ({other_name}: {other_share * 100:.0f} %)"
    if (celsius := slow.get("gpu_celsius", 0.0)) >= (cooler := other.get("gpu_celsius", celsius)) + _HOTTER_C:
        yield f"its GPU reached {celsius:.0f} degrees Celsius ({other_name}: {cooler:.0f})"
    if (limit := slow.get("gpu_limit_w", math.inf)) < (higher := other.get("gpu_limit_w", 0.0)):
        yield f"the power of its GPU is limited to {limit:.0f} W ({other_name}: {higher:.0f} W)"
    if (processes := slow.get("gpu_processes", 0.0)) > (fewer := other.get("gpu_processes", processes)):
        yield f"{processes:.0f} processes computed on its GPU ({other_name}: {fewer:.0f})"


def _share(counters: Counters, name: str) -> float:
    """Return a counter as a share of the time, or of the CPU time that the threads could have used."""
    seconds = counters.get(name, 0.0)
    demand_s = seconds + counters["cpu_s"] if name in _SHARES_OF_DEMAND else 0.0
    return seconds / max(counters["wall_s"], demand_s)


def _cores_of_others(counters: Counters) -> float:
    return max(0.0, counters.get("busy_s", 0.0) - counters["cpu_s"]) / counters["wall_s"]
