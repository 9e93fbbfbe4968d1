"""Every device by itself: is it right, and is it fast.

Right: products and convolutions of small integers whose exact answer is known for every dtype, order of summation and
device, so that any wrong bit is the device's. Fast: GEMM TFLOP/s, 2MNK / t, the median after warm-up, on random data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seatrial.checks._compute_judge import ATTAINABLE_FROM, CONVOLUTION, DATASHEET_SHARE, judge, suspects
from seatrial.checks._convolution import count_wrong_convolution
from seatrial.checks._timed import timed
from seatrial.checks.base import STARVED, TELL_EVERY_S, Check, Held, held_by_user
from seatrial.plan.specs import highest_peak, specs
from seatrial.probe.contention import Contention
from seatrial.verdict.statistics import fleet_rules, median

if TYPE_CHECKING:
    from seatrial.worker.context import Context

__all__ = ["CHECK", "Params"]

_EXACT = {"fp32": 2**24, "fp16": 2**11, "bf16": 2**8}
"""Integers up to here are exact in the dtype."""
_WIDE = 2**24
_LARGEST = 8
"""Operands of the exact test lie in [-8, 8]."""
_EXACT_ROWS, _EXACT_INNER = 4096, 512
"""At most so large is the exact test: 4096 x 4096 outputs keep all units of a large GPU busy, and the host's own answer
still takes about a second of one core."""
_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What to multiply, for how long, and the limits."""

    cpu_size: int = 1024
    """Rows and columns of the timed matrices."""
    gpu_size: int = 8192
    cpu_dtypes: tuple[str, ...] = ("fp32", "bf16")
    """The first one is the one that ``min_tflops`` speaks of."""
    gpu_dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")
    seconds: float = 0.2
    """Timing per dtype and round."""
    rounds: int = 2
    """At least so many rounds, each with other data."""
    minutes: float = 0.0
    """Go on with rounds for at least so long."""
    fraction: float = 0.85
    """Of what was measured elsewhere on a healthy device of this model."""
    min_tflops: float | None = None
    """The user's own limit; None: the device model and the fleet decide."""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for a value that cannot be meant."""
        for key, dtypes in (("cpu_dtypes", self.cpu_dtypes), ("gpu_dtypes", self.gpu_dtypes)):
            if not dtypes or not set(dtypes) <= set(_EXACT):
                raise ValueError(f"{key} is {list(dtypes)}; it takes one or more of {', '.join(_EXACT)}")
        for key in ("cpu_size", "gpu_size", "rounds"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}; it must be above 0 and at most 1")
        if not 0 <= self.minutes * 60 < self.timeout_s:
            raise ValueError(f"minutes is {self.minutes}; it must fit into timeout_s, {self.timeout_s:g} s")
        num_dtypes, rounds = max(len(self.cpu_dtypes), len(self.gpu_dtypes)), max(self.rounds, _REPEATS)
        if not 0 <= self.seconds * num_dtypes * rounds < self.timeout_s:
            raise ValueError(
                f"seconds is {self.seconds:g}; {rounds} times for {num_dtypes} dtypes it must fit into timeout_s, "
                f"{self.timeout_s:g} s"
            )
        if self.min_tflops is not None:
            peak = max(highest_peak(self.cpu_dtypes[0]), highest_peak(self.gpu_dtypes[0]))
            if not 0 < self.min_tflops <= peak:
                raise ValueError(
                    f"min_tflops is {self.min_tflops:g} TFLOP/s; the limit must be above 0 and at most {peak:g}, "
                    "the physical peak of the fastest device known"
                )

    def dtypes(self, device_type: str) -> tuple[str, ...]:
        """What is multiplied on this type of device."""
        return self.cpu_dtypes if device_type == "cpu" else self.gpu_dtypes

    def size(self, device_type: str) -> int:
        """Rows and columns on this type of device."""
        return self.cpu_size if device_type == "cpu" else self.gpu_size


def limits(params: Params) -> tuple[Held, ...]:
    """What values and speeds are held against."""
    rows = [Held(what="wrong_elements", limit="0", origin="exact")]
    if params.min_tflops is not None:
        what = f"tflops, {params.cpu_dtypes[0]} (CPU), {params.gpu_dtypes[0]} (GPU)"
        rows.append(held_by_user(what, f"at least {params.min_tflops:g} TFLOP/s", "compute.min_tflops"))
    rows += _limits_of_models(params)
    fleet = "fleet of one device model, again alone"
    rows += [Held(what=f"tflops, {num_ranks} ranks", limit=rule, origin=fleet) for num_ranks, rule in fleet_rules()]
    share = f"below {STARVED:g} its speed only warns"
    return (*rows, Held(what="cpu_share, slow alone", limit=share, origin="CPU time that its threads could use"))


def _limits_of_models(params: Params) -> Iterator[Held]:
    if params.gpu_size < ATTAINABLE_FROM:
        return
    measured = {dtype for spec in specs() for dtype in spec.attainable_tflops}
    told = {dtype for spec in specs() if not spec.attainable_tflops for dtype in spec.peak_tflops}
    for device, dtypes_known, limit, kind in (
        ("known device", measured, f"attainable x {params.fraction:g}", "measured"),
        ("other known device", told, f"peak x {DATASHEET_SHARE:g}, only warns", "datasheet"),
    ):
        dtypes = [dtype for dtype in params.gpu_dtypes if dtype in dtypes_known]
        if dtypes:
            what = f"tflops, {device}, {' '.join(dtypes)}"
            yield Held(what=what, limit=limit, origin=f"device specs, {kind} (plan/specs.toml)")


def measure(context: Context, params: Params) -> None:
    """Tell TFLOP/s and the number of wrong elements per dtype; in a repeat TFLOP/s only."""
    device_type = context.device.type
    size, dtypes = params.size(device_type), params.dtypes(device_type)
    rows = {dtype: _timed_rows(size, device_type, dtype) for dtype in dtypes}
    contention = Contention(context.device.gauges())
    if context.stage == "repeat":
        for dtype in dtypes:
            context.phase(f"gemm {dtype} alone")
            with contention:
                tries = [_time_gemm(context, rows[dtype], params, dtype, 1_000_000 + turn) for turn in range(_REPEATS)]
            # A lasting fault is slow each time; a disturbance from outside is not.
            seconds, share = min(tries)
            _tell_speed(context, dtype, rows[dtype], seconds, share)
        context.fact("contention", contention.so_far())
        return
    timings: dict[str, list[tuple[float, float]]] = {dtype: [] for dtype in dtypes}
    wrong = dict.fromkeys((*dtypes, CONVOLUTION), 0)
    told_at = time.monotonic()
    until = told_at + params.minutes * 60
    turn = 0
    while turn < params.rounds or time.monotonic() < until:
        answers: dict[int, tuple[Any, Any, Any]] = {}
        for dtype in dtypes:
            context.phase(f"gemm {dtype} round {turn}")
            with contention:
                timings[dtype].append(_time_gemm(context, rows[dtype], params, dtype, turn))
            wrong[dtype] += _count_wrong(context, min(size, _EXACT_ROWS), dtype, turn, answers, tell=wrong[dtype] == 0)
        context.phase(f"convolution round {turn}")
        wrong[CONVOLUTION] += _count_wrong_convolution(context, turn, tell=wrong[CONVOLUTION] == 0)
        turn += 1
        if time.monotonic() - told_at >= TELL_EVERY_S:
            _tell(context, rows, timings, wrong, contention)
            told_at = time.monotonic()
    _tell(context, rows, timings, wrong, contention)


def _tell(
    context: Context,
    rows: dict[str, int],
    timings: dict[str, list[tuple[float, float]]],
    wrong: dict[str, int],
    contention: Contention,
) -> None:
    """Medians over the rounds so far, and all wrong elements so far. What is told last counts."""
    for dtype, readings in timings.items():
        seconds, share = (median(values) for values in zip(*readings, strict=True))
        _tell_speed(context, dtype, rows[dtype], seconds, share)
    for variant, count in wrong.items():
        context.figure("wrong_elements", count, "1", "low", variant=variant)
    context.fact("contention", contention.so_far())


def _tell_speed(context: Context, dtype: str, size: int, seconds: float, share: float) -> None:
    context.figure("tflops", 2 * size**3 / seconds / 1e12, "TFLOP/s", "high", variant=dtype)
    if context.device.type == "cpu":
        context.figure("cpu_share", share, "1", variant=dtype)


def _timed_rows(size: int, device_type: str, dtype: str) -> int:
    """A quarter of ``size`` for 16 bits on a CPU that has no instructions for them: 1024 rows take seconds there."""
    emulated = device_type == "cpu" and dtype != "fp32" and not _has_instructions(dtype)
    return -(-size // 4) if emulated else size


def _has_instructions(dtype: str) -> bool:
    import torch

    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported", None)  # absent: torch without oneDNN
    return bool(supported and supported())


def _time_gemm(context: Context, size: int, params: Params, dtype: str, turn: int) -> tuple[float, float]:
    """Median seconds of one GEMM, and the CPU time used as a share of what this process's threads could use."""
    import torch

    device = context.device
    generator = torch.Generator(device=device.torch).manual_seed(_seed(context, dtype, turn))
    shape = (size, size)
    left, right = (
        torch.randn(shape, generator=generator, device=device.torch).to(_torch_dtype(dtype)) for _ in range(2)
    )
    product = torch.empty(shape, dtype=left.dtype, device=device.torch)
    return timed(device, lambda: torch.mm(left, right, out=product), params.seconds)


def _count_wrong(
    context: Context, rows: int, dtype: str, turn: int, answers: dict[int, tuple[Any, Any, Any]], *, tell: bool
) -> int:
    """Elements of one product that differ from the host's answer; ``tell`` where the first ones are.

    The answer is made in float64, in which sums so far below 2**53 are exact, too: a product of int64 has no library
    behind it and took 8 s for 2048 rows, where this takes 0.14.
    """
    import torch

    wide = dtype != "fp32" and context.device.type != "cpu" and _has_wide_output(context.device.torch)
    bound = _WIDE if wide else _EXACT[dtype]
    if bound not in answers:
        left, right = _operands(rows, bound, _seed(context, "fp32", turn))
        answers[bound] = left, right, left.double() @ right.double()
    left, right, answer = answers[bound]
    a, b = (operand.to(device=context.device.torch, dtype=_torch_dtype(dtype)) for operand in (left, right))
    product = torch.mm(a, b, out_dtype=torch.float32) if wide else torch.mm(a, b)
    got = product.cpu().double()
    different = got != answer
    count = int(different.sum())
    if count and tell:
        places = different.nonzero()[:4].tolist()
        first = [f"{place} is {got[tuple(place)]:.9g}, not {answer[tuple(place)]:.9g}" for place in places]
        context.fact("wrong_values", {"dtype": dtype, "round": turn, "count": count, "first": first})
    return count


def _count_wrong_convolution(context: Context, turn: int, *, tell: bool) -> int:
    count, places = count_wrong_convolution(context.device, _seed(context, "fp32", turn))
    if count and tell:
        context.fact("wrong_values", {"dtype": CONVOLUTION, "round": turn, "count": count, "first": places})
    return count


def _operands(rows: int, bound: int, seed: int) -> tuple[Any, Any]:
    """Integers in [-8, 8] for which every partial sum, in any order, is an integer within ``bound``, thus exact.

    With |b| <= 8 it is enough that the absolute values of each row of a sum up to ``bound`` / 8: a row keeps values
    at random places until then, and is 0 elsewhere. Every other seed has rows and columns exchanged.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    inner = min(rows, _EXACT_INNER)
    left = torch.randint(-_LARGEST, _LARGEST + 1, (rows, inner), generator=generator)
    right = torch.randint(-_LARGEST, _LARGEST + 1, (inner, rows), generator=generator)
    order = torch.rand((rows, inner), generator=generator).argsort(dim=1)
    kept = left.gather(1, order).abs().cumsum(dim=1) <= bound // _LARGEST
    left *= torch.zeros_like(kept).scatter_(1, order, kept)
    return (left, right) if seed % 2 == 0 else (right.T.contiguous(), left.T.contiguous())


def _has_wide_output(device: Any) -> bool:
    """Can this torch multiply 16-bit operands into a float32 result on this device. Then no partial sum is rounded."""
    import torch

    ones = torch.ones((16, 16), dtype=torch.bfloat16, device=device)
    try:
        torch.mm(ones, ones, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return False
    return True


def _torch_dtype(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]


def _seed(context: Context, dtype: str, turn: int) -> int:
    return (turn * 65_537 + context.rank) * len(_EXACT) + list(_EXACT).index(dtype)


CHECK = Check(
    name="compute",
    scope="alone",
    params=Params,
    measure=measure,
    judge=judge,
    suspects=suspects,
    limits=limits,
)
