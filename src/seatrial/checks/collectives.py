"""The collective operations over sizes: are the values right, and how fast.

Right: every rank contributes other small integers at every element, so that each result is exact in float32 whatever
the order of summation, and a wrong element of a data movement tells whose contribution it was. Fast: the median
after warm-up. busbw = algbw x factor, comparable between operations (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seatrial.checks._collectives_judge import judge
from seatrial.checks._operations import ELEMENT_BYTES, OPERATIONS, array_sizes, busbw_factor, contribution, root_of
from seatrial.checks._timed import gpu_seconds
from seatrial.checks.base import TELL_EVERY_S, Check, Held, held_by_user
from seatrial.verdict.statistics import median

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params", "busbw_factor"]

_SERIES_BYTES = 2**26
"""Large sizes are repeated less often: about so many bytes a series, and this many times at least."""
_FEWEST = 5
_WARM_UPS = 2
_CHUNK = 2**18
"""Elements compared at once: about 10 MB, however large the array is."""
_LACKING = ("not support", "no support", "unsupported", "not implemented", "no backend type", "not available")
"""How backends say that they do not have an operation; a broken connection says something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Which sizes, how often, and the limits."""

    cpu_sizes: tuple[int, ...] = (8, 65_536, 1_048_576, 16_777_216)
    """Bytes of the full array, ascending; limits speak of the first (latency) and the last one (bandwidth)."""
    gpu_sizes: tuple[int, ...] = (8, 1_048_576, 67_108_864, 268_435_456)
    repeats: int = 20
    """Timed calls per operation and size; fewer of large ones, the same number on all ranks."""
    rounds: int = 1
    """Everything so many times at least, each with its values checked."""
    minutes: float = 0.0
    """Go on with rounds for at least so long, by rank 0's clock."""
    min_busbw_gbps: float | None = None
    """The user's limit for all_reduce at the largest size, GB/s; None: only measured."""
    max_latency_us: float | None = None
    """The user's limit for all_reduce at the smallest size; None: only measured."""
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        for key in ("cpu_sizes", "gpu_sizes"):
            sizes = getattr(self, key)
            whole = all(size >= ELEMENT_BYTES and size % ELEMENT_BYTES == 0 for size in sizes)
            if not sizes or not whole or list(sizes) != sorted(set(sizes)):
                raise ValueError(f"{key} is {list(sizes)}; it takes ascending multiples of {ELEMENT_BYTES} bytes")
        for key in ("repeats", "rounds"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0 <= self.minutes * 60 < self.timeout_s:
            raise ValueError(f"minutes is {self.minutes}; it must fit into timeout_s, {self.timeout_s:g} s")
        for key in ("min_busbw_gbps", "max_latency_us"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} is {value}; a limit must be above 0")

    def sizes(self, device_type: str) -> tuple[int, ...]:
        """The sizes for this type of device."""
        return self.cpu_sizes if device_type == "cpu" else self.gpu_sizes


def limits(params: Params) -> tuple[Held, ...]:
    """Values are exact; bandwidth and latency are the user's to limit."""
    busbw = None if params.min_busbw_gbps is None else f"at least {params.min_busbw_gbps:g} GB/s"
    latency = None if params.max_latency_us is None else f"at most {params.max_latency_us:g} us"
    return (
        Held(what="wrong_elements", limit="0", origin="exact"),
        held_by_user("busbw, all_reduce, largest size", busbw, "collectives.min_busbw_gbps"),
        held_by_user("time_us, all_reduce, smallest size", latency, "collectives.max_latency_us"),
    )


def measure(context: Context, params: Params) -> None:
    """Run and check all operations at all sizes; rank 0 tells all figures, the others only their largest."""
    n = context.world_size
    if n == 1:
        context.fact("not_checked", "1 rank")
        return
    sizes = {operation: array_sizes(operation, params.sizes(context.device.type), n) for operation in OPERATIONS}
    medians_s: dict[tuple[str, int], list[float]] = {}
    wrong: dict[str, int] = {}
    told_at = time.monotonic()
    until = told_at + params.minutes * 60
    turn = 0
    while turn < params.rounds or _wait_for_others_to_agree(context, turn, until):
        known = {operation for operation, count in wrong.items() if count}
        for operation in OPERATIONS:
            for size in sizes.get(operation, ()):
                ran = _run(context, params.repeats, operation, size, turn, tell=operation not in known)
                if ran is None:
                    del sizes[operation]
                    break
                medians_s.setdefault((operation, size), []).append(ran[0])
                wrong[operation] = wrong.get(operation, 0) + ran[1]
        turn += 1
        if time.monotonic() - told_at >= TELL_EVERY_S:
            _tell(context, medians_s, wrong)
            told_at = time.monotonic()
    _tell(context, medians_s, wrong)


def _tell(context: Context, medians_s: dict[tuple[str, int], list[float]], wrong: dict[str, int]) -> None:
    """Medians over the rounds so far, and all wrong elements so far. What is told last counts."""
    n, first = context.world_size, context.group_rank == 0
    largest = dict(sorted(medians_s))
    for (operation, size), seconds in ((key, median(readings)) for key, readings in medians_s.items()):
        if first or size == largest[operation]:
            context.figure("time_us", seconds * 1e6, "us", "low", variant=operation, size_bytes=size or None)
        if first and size:
            algbw = size / seconds / 1e9
            busbw = algbw * busbw_factor(operation, n)
            context.figure("algbw", algbw, "GB/s", "high", variant=operation, size_bytes=size)
            context.figure("busbw", busbw, "GB/s", "high", variant=operation, size_bytes=size)
    for operation, count in wrong.items():
        if operation != "barrier":
            context.figure("wrong_elements", count, "1", "low", variant=operation)


def _wait_for_others_to_agree(context: Context, turn: int, until: float) -> bool:
    """Rank 0's clock decides, and says so by the store: all ranks then do the same number of rounds."""
    assert context.store is not None  # the world was formed on it
    key = f"collectives/{context.stage}/{turn}"
    if context.group_rank == 0:
        context.store.set(key, "1" if time.monotonic() < until else "0")
    return bytes(context.store.get(key)) == b"1"


def _run(
    context: Context, wanted: int, operation: str, size: int, turn: int, *, tell: bool
) -> tuple[float, int] | None:
    """Median seconds of one operation at one size, and its wrong elements; None when the backend does not have it."""
    call, source, target = _prepare(context, operation, size, turn)
    context.phase(f"{operation} {size} B values")
    try:
        call()
        context.device.synchronize()
    except (RuntimeError, ValueError) as error:
        said = str(error).lower()
        # NCCL has them all; what it says of its device ("operation not supported") is told with its own error.
        if "nccl error" in said or not any(text in said for text in _LACKING):
            raise
        context.fact("unsupported", {"operation": operation, "reason": str(error).splitlines()[0][:200]})
        return None
    wrong = 0
    if target is not None:
        wrong = _count_wrong(context, operation, size, turn, target, tell=tell)
        source.zero_()  # sums of sums would soon overflow
    repeats = min(wanted, max(_FEWEST, _SERIES_BYTES // max(size, 1)))
    context.phase(f"{operation} {size} B")
    for _ in range(_WARM_UPS):
        call()
    context.device.synchronize()
    return median(_time_calls(context, call, repeats)), wrong


def _time_calls(context: Context, call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call, rank-local. Nothing else is in the loop: at 8 B a call takes microseconds."""
    if context.device.type != "cpu":
        return gpu_seconds(context.device, call, repeats)
    clock = time.perf_counter
    readings = [clock()]
    for _ in range(repeats):
        call()
        readings.append(clock())
    return [after - before for before, after in itertools.pairwise(readings)]


def _prepare(context: Context, operation: str, size: int, turn: int) -> tuple[Callable[[], object], Any, Any]:
    """The bare call, its input filled with this rank's contribution, and where the result will be."""
    import torch
    import torch.distributed as dist

    n, me, group = context.world_size, context.group_rank, context.group
    if operation == "barrier":
        return (lambda: dist.barrier(group=group)), None, None
    count = size // ELEMENT_BYTES
    block = count // n
    source = torch.empty(block if operation == "all_gather" else count, device=context.device.torch)
    for index, part in _chunks(source):
        part.copy_(contribution(operation, n, me, size, turn, index, received=False)[0])
    if operation == "all_reduce":
        return (lambda: dist.all_reduce(source, group=group)), source, source
    if operation == "broadcast":
        root = root_of(n, size, turn)
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
    ahead, behind = (me + 1) % n, (me - 1) % n
    both = [dist.P2POp(dist.isend, source, ahead, group=group), dist.P2POp(dist.irecv, target, behind, group=group)]

    def send_and_wait_for_others() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return send_and_wait_for_others, source, target


def _chunks(array: Any) -> Iterator[tuple[Any, Any]]:
    """Places and elements, so many at a time that comparing them takes little memory."""
    import torch

    for part, start in zip(array.split(_CHUNK), itertools.count(0, _CHUNK)):
        yield torch.arange(start, start + part.numel(), device=part.device), part


def _count_wrong(context: Context, operation: str, size: int, turn: int, target: Any, *, tell: bool) -> int:
    """Compare every element; ``tell`` where the first wrong ones are and who contributed them."""
    count, places, senders = 0, list[str](), set[int]()
    for index, got in _chunks(target):
        expected, sender = contribution(
            operation, context.world_size, context.group_rank, size, turn, index, received=True
        )
        wrong = got != expected
        if not wrong.any():
            continue
        count += int(wrong.sum())
        if sender is not None:
            senders |= {context.ranks[each] for each in (sender + 0 * index)[wrong].unique().tolist()}
        first = (part[wrong][: 4 - len(places)].tolist() for part in (index, got, expected))
        places += [f"[{place}] is {value:.9g}, not {right}" for place, value, right in zip(*first, strict=True)]
    if count and tell:
        where = {"operation": operation, "size_bytes": size, "count": count, "first": places}
        context.fact("wrong_values", {**where, "contributors": sorted(senders)})
    return count


CHECK = Check(name="collectives", scope="world", params=Params, measure=measure, judge=judge, limits=limits)
