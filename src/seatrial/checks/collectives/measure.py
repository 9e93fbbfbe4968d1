"""The measurements of the collectives check: exact values, and the time of each call."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from seatrial.checks.collectives.operations import (
    ELEMENT_BYTES,
    OPERATIONS,
    array_sizes,
    busbw_factor,
    contribution,
    root_of,
)
from seatrial.checks.collectives.params import Params
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.checks.shared.timing import gpu_seconds
from seatrial.evidence.statistics import median
from seatrial.probe.contention import Contention
from seatrial.rank.context import Context

_SERIES_BYTES = 2**26
"""Bytes that a series of timed calls moves at most, but for its least number of calls."""
_FEWEST_REPEATS = 5
_WARM_UPS = 2
_CHUNK = 2**18
"""Elements compared at once: about 10 MB, however large the array is."""
_SHOWN = 4
_UNSUPPORTED = ("not support", "no support", "unsupported", "not implemented", "no backend type", "not available")
"""Parts of the errors with which backends refuse an operation; none is in the error of a broken connection."""


def measure(context: Context, params: Params) -> None:
    """Run and check all operations at all sizes.

    Rank 0 reports the measurements of all sizes, the other ranks only those of the largest, and of all_reduce also the
    smallest: nobody is believed alone about what a limit of the user applies to.
    """
    world_size = context.world_size
    if world_size == 1:
        context.fact("not_checked", "1 rank")
        return
    device_sizes = params.sizes(context.device.type)
    sizes = {operation: array_sizes(operation, device_sizes, world_size) for operation in OPERATIONS}
    medians_s: dict[tuple[str, int], list[float]] = {}
    wrong: dict[str, int] = {}

    # Of the host alone: sampling the GPU would disturb calls that take microseconds.
    contention = Contention(None)

    def report() -> None:
        _report(context, medians_s, wrong)

    done, in_all = 0, params.rounds * sum(len(sizes.get(operation, ())) for operation in OPERATIONS)
    for number in timed_rounds(context, params.minutes, rounds=params.rounds, report=report, together=True):
        reported = {operation for operation, count in wrong.items() if count}
        for operation in OPERATIONS:
            for size in sizes.get(operation, ()):
                done += 1
                context.count = None if params.minutes else (done, in_all)
                result = _run(context, params.repeats, operation, size, number)
                if result is None:
                    del sizes[operation]
                    break
                seconds, wrong_values = result
                medians_s.setdefault((operation, size), []).append(seconds)
                wrong[operation] = wrong.get(operation, 0) + wrong_values.get("count", 0)
                if wrong_values and operation not in reported:
                    context.fact("wrong_values", wrong_values)
    context.fact("contention", contention.so_far())


def _report(context: Context, medians_s: dict[tuple[str, int], list[float]], wrong: dict[str, int]) -> None:
    """Report medians over the rounds so far, and all wrong elements so far."""
    is_first = context.group_rank == 0
    largest, smallest = dict(sorted(medians_s)), dict(sorted(medians_s, reverse=True))
    for (operation, size), seconds in ((key, median(readings)) for key, readings in medians_s.items()):
        if is_first or size == largest[operation] or (operation, size) == ("all_reduce", smallest["all_reduce"]):
            context.measurement("time_us", seconds * 1e6, "us", "low", variant=operation, size_bytes=size or None)
        if is_first and size:
            algbw = size / seconds / 1e9
            busbw = algbw * busbw_factor(operation, context.world_size)
            context.measurement("algbw", algbw, "GB/s", "high", variant=operation, size_bytes=size)
            context.measurement("busbw", busbw, "GB/s", "high", variant=operation, size_bytes=size)
    for operation, count in wrong.items():
        if operation != "barrier":
            context.measurement("wrong_elements", count, "1", "low", variant=operation)


def _run(
    context: Context, max_repeats: int, operation: str, size: int, number: int
) -> tuple[float, dict[str, Any]] | None:
    """Return the median seconds of one operation at one size, and a description of its wrong elements, if any.

    Returns None when the backend does not have the operation.

    Args:
        context: The context of this rank.
        max_repeats: Timed calls, fewer for large sizes.
        operation: One of ``OPERATIONS``.
        size: Bytes of the full array.
        number: The round.
    """
    call, source, target = _prepare(context, operation, size, number)
    context.phase(f"{operation} {size} B values")
    if not _is_supported(context, operation, call):
        return None
    wrong_values = {}
    if target is not None:
        wrong_values = _wrong_values(context, operation, size, number, target)
        source.zero_()  # sums of sums would soon overflow
    context.phase(f"{operation} {size} B")
    return _time(context, max_repeats, size, call), wrong_values


def _is_supported(context: Context, operation: str, call: Callable[[], object]) -> bool:
    """Call once, and return whether the backend has the operation; a fact says so where it does not."""
    try:
        call()
        context.device.synchronize()
    except (RuntimeError, ValueError) as error:
        text = str(error).lower()
        # NCCL has all operations; its errors about the device ("operation not supported") are faults.
        if "nccl error" in text or not any(part in text for part in _UNSUPPORTED):
            raise
        context.fact("unsupported", {"operation": operation, "reason": str(error).splitlines()[0][:200]})
        return False
    return True


def _time(context: Context, max_repeats: int, size: int, call: Callable[[], object]) -> float:
    """Return the median seconds of one call, on this rank."""
    repeats = min(max_repeats, max(_FEWEST_REPEATS, _SERIES_BYTES // max(size, 1)))
    for _ in range(_WARM_UPS):
        call()
    context.device.synchronize()
    return median(_time_calls(context, call, repeats))


def _time_calls(context: Context, call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each call. The loop contains nothing else: at 8 B a call takes microseconds."""
    if context.device.type != "cpu":
        return gpu_seconds(context.device, call, repeats)
    clock = time.perf_counter
    readings = [clock()]
    for _ in range(repeats):
        call()
        readings.append(clock())
    return [after - before for before, after in itertools.pairwise(readings)]


def _prepare(context: Context, operation: str, size: int, number: int) -> tuple[Callable[[], object], Any, Any]:
    """Return the bare call, its input filled with this rank's contribution, and the tensor of its result.

    Args:
        context: The context of this rank.
        operation: One of ``OPERATIONS``; a barrier has neither input nor result.
        size: Bytes of the full array.
        number: The round, which changes the contributions and the root.
    """
    import torch
    import torch.distributed as dist

    world_size, group_rank, group = context.world_size, context.group_rank, context.group
    if operation == "barrier":
        return (lambda: dist.barrier(group=group)), None, None
    count = size // ELEMENT_BYTES
    block = count // world_size
    source = torch.empty(block if operation == "all_gather" else count, device=context.device.torch)
    for index, part in _chunks(source):
        part.copy_(contribution(operation, world_size, group_rank, size, number, index, received=False)[0])
    if operation == "all_reduce":
        return (lambda: dist.all_reduce(source, group=group)), source, source
    if operation == "broadcast":
        root = root_of(world_size, size, number)
        return (lambda: dist.broadcast(source, root, group=group)), source, source
    target = torch.full((block if operation == "reduce_scatter" else count,), -1.0, device=context.device.torch)
    if operation == "all_gather":
        # torch 2.13 renames these two and deprecates the old names.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return (lambda: gather(target, source, group=group)), source, target
    if operation == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return (lambda: scatter(target, source, group=group)), source, target
    if operation == "all_to_all":
        return (lambda: dist.all_to_all_single(target, source, group=group)), source, target
    ahead, behind = (group_rank + 1) % world_size, (group_rank - 1) % world_size
    both = [dist.P2POp(dist.isend, source, ahead, group=group), dist.P2POp(dist.irecv, target, behind, group=group)]

    def send_and_wait_for_others() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return send_and_wait_for_others, source, target


def _chunks(array: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the indexes and elements of each chunk: comparing one takes little memory."""
    import torch

    for part, start in zip(array.split(_CHUNK), itertools.count(0, _CHUNK)):
        yield torch.arange(start, start + part.numel(), device=part.device), part


def _wrong_values(context: Context, operation: str, size: int, number: int, target: Any) -> dict[str, Any]:
    """Compare every element; return the number of wrong ones, the first of them and their contributors, if any."""
    count, places, senders = 0, list[str](), set[int]()
    for index, result in _chunks(target):
        expected, sender = contribution(
            operation, context.world_size, context.group_rank, size, number, index, received=True
        )
        wrong = result != expected
        if not wrong.any():
            continue
        count += int(wrong.sum())
        if sender is not None:
            senders |= {context.ranks[group_rank] for group_rank in (sender + 0 * index)[wrong].unique().tolist()}
        first = (part[wrong][: _SHOWN - len(places)].tolist() for part in (index, result, expected))
        places += [f"[{element}] is {value:.9g}, not {right}" for element, value, right in zip(*first, strict=True)]
    if not count:
        return {}
    value = {"operation": operation, "size_bytes": size, "count": count, "first": places}
    return {**value, "contributors": sorted(senders)}
