"""The memory of every device by itself: does it keep what is written to it, and how fast is it copied.

Right: patterns are written over a stated part of the free memory, all of it, and then read back and compared word by
word. Fast: GB/s, the median after warm-up. A copy inside the device reads and writes every byte, and both count: bytes
moved = 2 x size. (Memory that a CPU's cache reads before it is overwritten does not count.) A copy between host and
device counts its size once; the host's side is pinned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from seatrial.checks import _patterns
from seatrial.checks._memory_judge import COPIES, DATASHEET_SHARE, judge, suspects
from seatrial.checks._patterns import PATTERNS
from seatrial.checks._timed import timed
from seatrial.checks.base import STARVED, TELL_EVERY_S, Check, Held, held_by_user
from seatrial.plan.specs import highest_memory_peak
from seatrial.probe import host
from seatrial.verdict.statistics import fleet_rules, median

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_REPEATS = 5
_REPEAT_S = 0.05
"""A repeat times at least so long each time: who else used the memory for a moment must not look like a fault."""
_OF_HOST = 0.5
"""At most so much of the memory that a host has available is taken, by all ranks on it together."""
_FASTEST_HOST_LINK_GBPS = 450.0
"""NVLink-C2C of Grace Hopper and Grace Blackwell, each way (NVIDIA GH200 datasheet: 900 GB/s both ways)."""
_SLOWEST_PATTERN_GBPS = 0.1
"""A CPU that writes, reads and compares slower than this, all counted, is not planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How much to copy and to test, for how long, and the limits."""

    cpu_copy_bytes: int = 67_108_864
    """Size of a copy inside the memory; larger than the last cache, or the cache is measured."""
    gpu_copy_bytes: int = 1_073_741_824
    host_copy_bytes: int = 268_435_456
    """Size of a copy between host and device, each way."""
    cpu_bytes: int = 67_108_864
    """Memory that each rank tests on a CPU, if half of what its host has available is enough for all ranks there."""
    gpu_share: float = 0.9
    """Of the device's free memory, what is tested."""
    patterns: tuple[str, ...] = PATTERNS
    seconds: float = 0.1
    """Timing per kind of copy and round."""
    rounds: int = 1
    """At least so many rounds of copies and patterns, each with other random words."""
    minutes: float = 0.0
    """Go on with rounds for at least so long."""
    min_copy_gbps: float | None = None
    """The user's limit for copies inside the device; None: the fleet decides."""
    min_host_copy_gbps: float | None = None
    """The user's limit for copies between host and device, each way; None: the fleet decides."""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        if not self.patterns or not set(self.patterns) <= set(PATTERNS):
            raise ValueError(f"patterns is {list(self.patterns)}; it takes one or more of {', '.join(PATTERNS)}")
        for key in ("cpu_copy_bytes", "gpu_copy_bytes", "host_copy_bytes", "cpu_bytes"):
            if getattr(self, key) < 2**20:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least {2**20}, 1 MiB")
        if not 0 < self.gpu_share <= 0.95:
            raise ValueError(f"gpu_share is {self.gpu_share}; it must be above 0 and at most 0.95")
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}; it must be at least 1")
        if not 0 <= self.minutes * 60 < self.timeout_s:
            raise ValueError(f"minutes is {self.minutes}; it must fit into timeout_s, {self.timeout_s:g} s")
        rounds = max(self.rounds, _REPEATS)
        if not (self.seconds >= 0 and max(self.seconds, _REPEAT_S) * len(COPIES["cuda"]) * rounds < self.timeout_s):
            raise ValueError(
                f"seconds is {self.seconds:g}; {rounds} times for {len(COPIES['cuda'])} kinds of copies it must fit "
                f"into timeout_s, {self.timeout_s:g} s"
            )
        slowest_s = self.cpu_bytes * len(self.patterns) / (_SLOWEST_PATTERN_GBPS * 1e9)
        if not slowest_s < self.timeout_s - self.minutes * 60:
            raise ValueError(
                f"cpu_bytes is {self.cpu_bytes}; {len(self.patterns)} patterns at {_SLOWEST_PATTERN_GBPS:g} GB/s take "
                f"{slowest_s:.0f} s, which must fit into timeout_s less minutes, "
                f"{self.timeout_s - self.minutes * 60:g} s"
            )
        for key, peak, what in (
            ("min_copy_gbps", highest_memory_peak(), "the physical peak of the fastest memory known"),
            ("min_host_copy_gbps", _FASTEST_HOST_LINK_GBPS, "the physical peak of the fastest link known"),
        ):
            value = getattr(self, key)
            if value is not None and not 0 < value <= peak:
                raise ValueError(f"{key} is {value:g} GB/s; the limit must be above 0 and at most {peak:g}, {what}")

    def copy_bytes(self, device_type: str, kind: str) -> int:
        """Size of a copy of that kind."""
        if kind != "device":
            return self.host_copy_bytes
        return self.cpu_copy_bytes if device_type == "cpu" else self.gpu_copy_bytes


def limits(params: Params) -> tuple[Held, ...]:
    """What words and speeds are held against."""
    share = f"{params.gpu_share:g} of what is free (GPU), {params.cpu_bytes} B a rank (CPU)"
    rows = [
        Held(what="wrong_words", limit="0", origin="exact"),
        Held(what="tested_bytes", limit=f"{share}, else PASS is partial", origin="memory.gpu_share, memory.cpu_bytes"),
    ]
    for what, value, key in (
        ("copy_gbps, device", params.min_copy_gbps, "memory.min_copy_gbps"),
        ("copy_gbps, host_to_device, device_to_host", params.min_host_copy_gbps, "memory.min_host_copy_gbps"),
    ):
        if value is not None:
            rows.append(held_by_user(what, f"at least {value:g} GB/s", key))
    rows.append(
        Held(
            what="copy_gbps, known device, device",
            limit=f"memory peak x {DATASHEET_SHARE:g}, only warns",
            origin="device specs, datasheet (plan/specs.toml)",
        )
    )
    fleet = "fleet of one device model, again alone"
    rows += [
        Held(what=f"copy_gbps, {num_ranks} ranks", limit=rule, origin=fleet)
        for num_ranks, rule in fleet_rules(copies=True)
    ]
    starved = f"below {STARVED:g} its speed only warns"
    return (*rows, Held(what="cpu_share, slow alone", limit=starved, origin="CPU time that its threads could use"))


def measure(context: Context, params: Params) -> None:
    """Tell GB/s per kind of copy, and wrong words per pattern; in a repeat GB/s only."""
    kinds = COPIES["cpu" if context.device.type == "cpu" else "cuda"]
    if context.stage == "repeat":
        for kind in kinds:
            context.phase(f"copy {kind} alone")
            longer = replace(params, seconds=max(params.seconds, _REPEAT_S))
            tries = [tried for _ in range(_REPEATS) if (tried := _time_copy(context, longer, kind)) is not None]
            if tries:
                # A lasting fault is slow each time; a disturbance from outside is not.
                _tell_speed(context, params, kind, *min(tries))
        return
    timings: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    wrong: dict[str, int] = {}
    tested: list[int] = []
    told_at = time.monotonic()
    until = told_at + params.minutes * 60
    turn = 0
    while turn < params.rounds or time.monotonic() < until:
        for kind in kinds:
            context.phase(f"copy {kind} round {turn}")
            timing = _time_copy(context, params, kind)
            if timing is not None:
                timings[kind].append(timing)
        tested.append(_test_patterns(context, params, turn, wrong))
        turn += 1
        if time.monotonic() - told_at >= TELL_EVERY_S:
            _tell(context, params, timings, wrong, tested)
            told_at = time.monotonic()
    _tell(context, params, timings, wrong, tested)


def _tell(
    context: Context,
    params: Params,
    timings: dict[str, list[tuple[float, float]]],
    wrong: dict[str, int],
    tested: list[int],
) -> None:
    """Medians over the rounds so far, and all wrong words so far. What is told last counts."""
    for kind, readings in timings.items():
        if readings:
            seconds, share = (median(values) for values in zip(*readings, strict=True))
            _tell_speed(context, params, kind, seconds, share)
    for pattern, count in wrong.items():
        context.figure("wrong_words", count, "1", "low", variant=pattern)
    context.figure("tested_bytes", min(tested), "B")


def _tell_speed(context: Context, params: Params, kind: str, seconds: float, share: float) -> None:
    size_bytes = params.copy_bytes(context.device.type, kind)
    moved_bytes = 2 * size_bytes if kind == "device" else size_bytes
    context.figure("copy_gbps", moved_bytes / seconds / 1e9, "GB/s", "high", variant=kind, size_bytes=size_bytes)
    if context.device.type == "cpu":
        context.figure("cpu_share", share, "1", variant=kind)


def _time_copy(context: Context, params: Params, kind: str) -> tuple[float, float] | None:
    """Median seconds of one copy, and the CPU time used as a share of what this process's threads could use.

    None where there is no room for it; that is told.
    """
    import torch

    device = context.device
    count = params.copy_bytes(device.type, kind) // _patterns.WORD_BYTES
    room_bytes, needed_bytes = _room_bytes(context), 2 * count * _patterns.WORD_BYTES
    if kind != "device":
        room_bytes = min(room_bytes, _host_room_bytes(context))
    if room_bytes < needed_bytes:
        context.fact("no_room", {"copy": kind, "needed_bytes": needed_bytes, "room_bytes": room_bytes})
        return None
    pinned = {"dtype": torch.int64, "pin_memory": True}
    here = {"dtype": torch.int64, "device": device.torch}
    try:
        with device.near():
            source = torch.arange(count, **(pinned if kind == "host_to_device" else here))
            target = torch.zeros(count, **(pinned if kind == "device_to_host" else here))
    except (RuntimeError, MemoryError) as error:
        reason = _patterns.refusal(error)
        if reason is None:
            raise
        _tell_refused(context, f"copies ({kind})", needed_bytes, 0, reason)
        return None

    return timed(device, lambda: target.copy_(source, non_blocking=True), params.seconds)


def _test_patterns(context: Context, params: Params, turn: int, wrong: dict[str, int]) -> int:
    """Write, read back and compare each pattern. Adds to ``wrong``; returns how many bytes were tested."""
    device_type = context.device.type
    free_bytes = _free_bytes(context)
    wanted_bytes = params.cpu_bytes if device_type == "cpu" else int(free_bytes * params.gpu_share)
    size_bytes = min(wanted_bytes, _room_bytes(context) - _patterns.scratch_bytes(device_type))
    context.phase(f"take memory round {turn}")
    taken = _patterns.take(context.device.torch, max(0, size_bytes))
    try:
        if turn == 0 or taken.refused_bytes:
            _tell_taken(context, taken, wanted_bytes, free_bytes)
        for pattern in params.patterns if taken.blocks else ():
            seed = turn * 65_537 + context.rank
            _patterns.write(taken.blocks, pattern, seed, context.phase)
            found = _patterns.read_back(taken.blocks, pattern, seed, context.phase)
            if found is not None and not wrong.get(pattern):
                told = {"pattern": pattern, "round": turn, "words": found.words, "tested_bytes": taken.size_bytes}
                told |= {"first_byte": found.first_byte, "last_byte": found.last_byte}
                told |= {"expected": f"{found.expected:#018x}", "found": f"{found.found:#018x}"}
                context.fact("wrong_words", told)
            wrong[pattern] = wrong.get(pattern, 0) + (found.words if found is not None else 0)
        return taken.size_bytes
    finally:
        del taken
        _give_back(device_type)


def _tell_taken(context: Context, taken: _patterns.Taken, wanted_bytes: int, free_bytes: int) -> None:
    told: dict[str, Any] = {"wanted_bytes": wanted_bytes, "tested_bytes": taken.size_bytes, "free_bytes": free_bytes}
    context.fact("tested", {**told, "device_bytes": context.device.memory_bytes, "gpu": context.device.type != "cpu"})
    if taken.refused_bytes:
        _tell_refused(context, "patterns", taken.refused_bytes, taken.size_bytes, taken.refusal)


def _tell_refused(context: Context, what: str, refused_bytes: int, taken_bytes: int, reason: str) -> None:
    # Asked again: what others have taken meanwhile is no fault. Pinned memory is the host's.
    free_bytes = _free_bytes(context) if "host" not in what else host.memory_available() or 0
    told = {"what": what, "refused_bytes": refused_bytes, "taken_bytes": taken_bytes, "free_bytes": free_bytes}
    context.fact("refused", {**told, "reason": reason})


def _free_bytes(context: Context) -> int:
    """What the driver, or the host, says is free now."""
    if context.device.type == "cpu":
        # A host that does not say how much is free has little to spare, as far as we know.
        return host.memory_available() or 0
    import torch

    # What earlier steps have freed and torch still holds counts as used otherwise.
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(context.device.index)[0])


def _room_bytes(context: Context) -> int:
    """What this rank may take on its device."""
    return _host_room_bytes(context) if context.device.type == "cpu" else _free_bytes(context)


def _host_room_bytes(context: Context) -> int:
    """What this rank may take on its host, which it shares with other ranks."""
    return int((host.memory_available() or 0) * _OF_HOST / context.local_world_size)


def _give_back(device_type: str) -> None:
    if device_type != "cpu":
        import torch

        torch.cuda.empty_cache()


CHECK = Check(
    name="memory",
    scope="alone",
    params=Params,
    measure=measure,
    judge=judge,
    suspects=suspects,
    limits=limits,
)
