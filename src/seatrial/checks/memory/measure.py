"""The measurements of the memory check: patterns written and read back, and the speed of copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import seatrial.checks.memory.patterns as patterns
from seatrial.checks.memory.params import COPIES, REPEAT_S, REPEATS, Params
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.checks.shared.timing import timed
from seatrial.evidence.statistics import median
from seatrial.probe import host
from seatrial.rank.context import Context

_SHARE_OF_HOST = 0.5
"""Largest share of the memory available on a host that all ranks on it take together."""


def measure(context: Context, params: Params) -> None:
    """Report GB/s per kind of copy, and wrong words per pattern; in a repeat GB/s only."""
    kinds = COPIES["cpu" if context.device.type == "cpu" else "cuda"]
    if context.stage == "repeat":
        longer = replace(params, seconds=max(params.seconds, REPEAT_S))
        for kind in kinds:
            context.phase(f"copy {kind} alone")
            timings_alone = [
                timing for _ in range(REPEATS) if (timing := _time_copy(context, longer, kind)) is not None
            ]
            if timings_alone:
                # A lasting fault is slow each time; a disturbance from outside is not.
                _report_speed(context, params, kind, *min(timings_alone))
        return
    timings: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    wrong: dict[str, int] = {}
    tested: list[int] = []

    def report() -> None:
        """Report medians over the rounds so far, and all wrong words so far."""
        for kind, readings in timings.items():
            if readings:
                seconds, share = (median(values) for values in zip(*readings, strict=True))
                _report_speed(context, params, kind, seconds, share)
        for pattern, count in wrong.items():
            context.measurement("wrong_words", count, "1", "low", variant=pattern)
        context.measurement("tested_bytes", min(tested), "B")

    for number in timed_rounds(context, params.minutes, rounds=params.rounds, report=report):
        for kind in kinds:
            context.phase(f"copy {kind} round {number}")
            timing = _time_copy(context, params, kind)
            if timing is not None:
                timings[kind].append(timing)
        tested.append(_test_patterns(context, params, number, wrong))


def _report_speed(context: Context, params: Params, kind: str, seconds: float, share: float) -> None:
    size_bytes = params.copy_bytes(context.device.type, kind)
    moved_bytes = 2 * size_bytes if kind == "device" else size_bytes
    context.measurement("copy_gbps", moved_bytes / seconds / 1e9, "GB/s", "high", variant=kind, size_bytes=size_bytes)
    if context.device.type == "cpu":
        context.measurement("cpu_share", share, "1", variant=kind)


def _time_copy(context: Context, params: Params, kind: str) -> tuple[float, float] | None:
    """Return the median seconds of one copy, and the CPU time used as a share of what our threads could use.

    Returns None, and reports a fact, where there is no room for it.
    """
    import torch

    device = context.device
    count = params.copy_bytes(device.type, kind) // patterns.WORD_BYTES
    room_bytes, needed_bytes = _room_bytes(context), 2 * count * patterns.WORD_BYTES
    if kind != "device":
        room_bytes = min(room_bytes, _host_room_bytes(context))
    if room_bytes < needed_bytes:
        context.fact("no_room", {"copy": kind, "needed_bytes": needed_bytes, "room_bytes": room_bytes})
        return None
    pinned = {"dtype": torch.int64, "pin_memory": True}
    on_device = {"dtype": torch.int64, "device": device.torch}
    try:
        with device.on_its_numa_node():
            source = torch.arange(count, **(pinned if kind == "host_to_device" else on_device))
            target = torch.zeros(count, **(pinned if kind == "device_to_host" else on_device))
    except (RuntimeError, MemoryError) as error:
        reason = patterns.refusal(error)
        if reason is None:
            raise
        _report_refused(context, f"copies ({kind})", needed_bytes, 0, reason)
        return None

    return timed(device, lambda: target.copy_(source, non_blocking=True), params.seconds)


def _test_patterns(context: Context, params: Params, number: int, wrong: dict[str, int]) -> int:
    """Write, read back and compare each pattern. Adds to ``wrong``; returns the number of bytes tested."""
    device_type = context.device.type
    free_bytes = _free_bytes(context)
    wanted_bytes = params.cpu_bytes if device_type == "cpu" else int(free_bytes * params.gpu_share)
    size_bytes = min(wanted_bytes, _room_bytes(context) - patterns.scratch_bytes(device_type))
    context.phase(f"take memory round {number}")
    taken = patterns.take(context.device.torch, max(0, size_bytes))
    try:
        if number == 0 or taken.refused_bytes:
            _report_taken(context, taken, wanted_bytes, free_bytes)
        for pattern in params.patterns if taken.blocks else ():
            seed = number * 65_537 + context.rank
            patterns.write(taken.blocks, pattern, seed, context.phase)
            fault = patterns.read_back(taken.blocks, pattern, seed, context.phase)
            if fault is not None and not wrong.get(pattern):
                value: dict[str, Any] = {"pattern": pattern, "round": number, "words": fault.words}
                value |= {"tested_bytes": taken.size_bytes}
                value |= {"first_byte": fault.first_byte, "last_byte": fault.last_byte}
                value |= {"expected": f"{fault.expected:#018x}", "found": f"{fault.found:#018x}"}
                context.fact("wrong_words", value)
            wrong[pattern] = wrong.get(pattern, 0) + (fault.words if fault is not None else 0)
        return taken.size_bytes
    finally:
        del taken
        _release_cached(device_type)


def _report_taken(context: Context, taken: patterns.Taken, wanted_bytes: int, free_bytes: int) -> None:
    value: dict[str, Any] = {"wanted_bytes": wanted_bytes, "tested_bytes": taken.size_bytes, "free_bytes": free_bytes}
    context.fact("tested", {**value, "device_bytes": context.device.memory_bytes, "gpu": context.device.type != "cpu"})
    if taken.refused_bytes:
        _report_refused(context, "patterns", taken.refused_bytes, taken.size_bytes, taken.refusal)


def _report_refused(context: Context, what: str, refused_bytes: int, taken_bytes: int, reason: str) -> None:
    # Read again: memory that others have taken meanwhile is no fault. Pinned memory is the host's.
    free_bytes = _free_bytes(context) if "host" not in what else host.memory_available() or 0
    value = {"what": what, "refused_bytes": refused_bytes, "taken_bytes": taken_bytes, "free_bytes": free_bytes}
    context.fact("refused", {**value, "reason": reason})


def _free_bytes(context: Context) -> int:
    """Return the bytes that the driver, or the host, reports as free now."""
    if context.device.type == "cpu":
        # A host that does not report its free memory has little to spare, as far as we know.
        return host.memory_available() or 0
    import torch

    # Memory that earlier steps freed and torch still caches would count as used.
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(context.device.index)[0])


def _room_bytes(context: Context) -> int:
    """Return the bytes that this rank may take on its device."""
    return _host_room_bytes(context) if context.device.type == "cpu" else _free_bytes(context)


def _host_room_bytes(context: Context) -> int:
    """Return the bytes that this rank may take on its host, which it shares with other ranks."""
    return int((host.memory_available() or 0) * _SHARE_OF_HOST / context.local_world_size)


def _release_cached(device_type: str) -> None:
    if device_type != "cpu":
        import torch

        torch.cuda.empty_cache()
