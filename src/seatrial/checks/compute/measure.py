"""The measurements of the compute check: exact results, and GEMM speed."""

from __future__ import annotations

from typing import Any

from seatrial.checks.compute.params import CONVOLUTION, EXACT_UP_TO, REPEATS, Params
from seatrial.checks.shared.convolution import count_wrong_convolution
from seatrial.checks.shared.rounds import timed_rounds
from seatrial.checks.shared.timing import timed
from seatrial.evidence.statistics import median
from seatrial.probe.contention import Contention
from seatrial.rank.context import Context

_FIRST_REPEAT = 1_000_000
"""Round number of the first repeat: repeats use other data than any round."""
_LARGEST_OPERAND = 8
"""Operands of the exact test lie in [-8, 8]."""
_EXACT_ROWS, _EXACT_INNER = 4096, 512
"""Largest sizes of the exact test: 4096 x 4096 outputs keep all units of a large GPU busy, and the host still needs
only about a second of one core for its own answer."""
_SHOWN = 4


def measure(context: Context, params: Params) -> None:
    """Report TFLOP/s and the number of wrong elements per dtype; in a repeat TFLOP/s only."""
    device_type = context.device.type
    size, dtypes = _rows(params, device_type), params.dtypes(device_type)
    rows = {dtype: _timed_rows(size, device_type, dtype) for dtype in dtypes}
    contention = Contention(context.device.gauges())
    if context.stage == "repeat":
        for dtype in dtypes:
            context.phase(f"gemm {dtype} alone")
            with contention:
                timings_alone = [
                    _time_gemm(context, rows[dtype], params, dtype, _FIRST_REPEAT + number) for number in range(REPEATS)
                ]
            # A lasting fault is slow each time; a disturbance from outside is not.
            seconds, share = min(timings_alone)
            _report_speed(context, dtype, rows[dtype], seconds, share)
        context.fact("contention", contention.so_far())
        return
    timings: dict[str, list[tuple[float, float]]] = {dtype: [] for dtype in dtypes}
    wrong = dict.fromkeys((*dtypes, CONVOLUTION), 0)

    def report() -> None:
        """Report medians over the rounds so far, and all wrong elements so far."""
        for dtype, readings in timings.items():
            seconds, share = (median(values) for values in zip(*readings, strict=True))
            _report_speed(context, dtype, rows[dtype], seconds, share)
        for variant, count in wrong.items():
            context.measurement("wrong_elements", count, "1", "low", variant=variant)
        context.fact("contention", contention.so_far())

    for number in timed_rounds(context, params.minutes, rounds=params.rounds, report=report):
        answers: dict[int, tuple[Any, Any, Any]] = {}
        for dtype in dtypes:
            context.phase(f"gemm {dtype} round {number}")
            with contention:
                timings[dtype].append(_time_gemm(context, rows[dtype], params, dtype, number))
            count, places = _wrong_in_product(context, min(size, _EXACT_ROWS), dtype, number, answers)
            _add_wrong(context, wrong, dtype, number, count, places)
        context.phase(f"convolution round {number}")
        count, places = count_wrong_convolution(context.device, _seed(context, "fp32", number))
        _add_wrong(context, wrong, CONVOLUTION, number, count, places)


def _add_wrong(
    context: Context, wrong: dict[str, int], variant: str, number: int, count: int, places: list[str]
) -> None:
    """Add the wrong elements of a round to ``wrong``, and report the places of the first ones of each variant.

    Args:
        context: The context of this rank.
        wrong: Wrong elements so far, by variant.
        variant: A dtype, or ``convolution``.
        number: The round.
        count: Wrong elements in this round.
        places: The first of them in words.
    """
    if count and not wrong[variant]:
        context.fact("wrong_values", {"dtype": variant, "round": number, "count": count, "first": places})
    wrong[variant] += count


def _report_speed(context: Context, dtype: str, size: int, seconds: float, share: float) -> None:
    context.measurement("tflops", 2 * size**3 / seconds / 1e12, "TFLOP/s", "high", variant=dtype)
    if context.device.type == "cpu":
        context.measurement("cpu_share", share, "1", variant=dtype)


def _rows(params: Params, device_type: str) -> int:
    """Return the rows of the matrices: a quarter on a CPU whose torch was built without a BLAS library.

    There (Debian's torch) a product of 1024 rows takes seconds, where MKL and OpenBLAS need some hundredths of one.
    """
    import torch

    is_slow = device_type == "cpu" and "BLAS_INFO=generic" in torch.__config__.show()
    return -(-params.size(device_type) // 4) if is_slow else params.size(device_type)


def _timed_rows(size: int, device_type: str, dtype: str) -> int:
    """Return ``size``, or a quarter of it for 16 bits on a CPU without instructions for them.

    There 1024 rows take seconds.
    """
    is_emulated = device_type == "cpu" and dtype != "fp32" and not _has_instructions(dtype)
    return -(-size // 4) if is_emulated else size


def _has_instructions(dtype: str) -> bool:
    import torch

    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported", None)  # absent: torch without oneDNN
    return bool(supported and supported())


def _time_gemm(context: Context, size: int, params: Params, dtype: str, number: int) -> tuple[float, float]:
    """Return the median seconds of one GEMM, and the CPU time used as a share of what our threads could use."""
    import torch

    device = context.device
    generator = torch.Generator(device=device.torch).manual_seed(_seed(context, dtype, number))
    shape = (size, size)
    left, right = (
        torch.randn(shape, generator=generator, device=device.torch).to(_torch_dtype(dtype)) for _ in range(2)
    )
    product = torch.empty(shape, dtype=left.dtype, device=device.torch)
    return timed(device, lambda: torch.mm(left, right, out=product), params.seconds)


def _wrong_in_product(
    context: Context, rows: int, dtype: str, number: int, answers: dict[int, tuple[Any, Any, Any]]
) -> tuple[int, list[str]]:
    """Return the number of elements of one product that differ from the host's answer, and the first of them in words.

    The host computes the answer in float64, in which sums so far below 2**53 are exact, too: int64 products have no
    library behind them and took 8 s for 2048 rows, where this takes 0.14.

    Args:
        context: The context of this rank.
        rows: Rows and columns of the product.
        dtype: ``fp32``, ``fp16`` or ``bf16``.
        number: The round, which seeds the operands.
        answers: Operands and answers of this round by bound, which dtypes share; filled here.
    """
    import torch

    is_wide = dtype != "fp32" and context.device.type != "cpu" and _has_wide_output(context.device.torch)
    bound = EXACT_UP_TO["fp32" if is_wide else dtype]
    if bound not in answers:
        left, right = _operands(rows, bound, _seed(context, "fp32", number))
        answers[bound] = left, right, left.double() @ right.double()
    left, right, answer = answers[bound]
    a, b = (operand.to(device=context.device.torch, dtype=_torch_dtype(dtype)) for operand in (left, right))
    product = torch.mm(a, b, out_dtype=torch.float32) if is_wide else torch.mm(a, b)
    result = product.cpu().double()
    different = result != answer
    count = int(different.sum())
    places = different.nonzero()[:_SHOWN].tolist() if count else []
    return count, [f"{place} is {result[tuple(place)]:.9g}, not {answer[tuple(place)]:.9g}" for place in places]


def _operands(rows: int, bound: int, seed: int) -> tuple[Any, Any]:
    """Return integers in [-8, 8] for which every partial sum, in any order, is an integer within ``bound``, thus exact.

    With |b| <= 8 it is enough that the absolute values of each row of a sum up to ``bound`` / 8: a row has nonzero
    values at random places until then, and is 0 elsewhere. Every other seed has rows and columns exchanged.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    inner = min(rows, _EXACT_INNER)
    left = torch.randint(-_LARGEST_OPERAND, _LARGEST_OPERAND + 1, (rows, inner), generator=generator)
    right = torch.randint(-_LARGEST_OPERAND, _LARGEST_OPERAND + 1, (inner, rows), generator=generator)
    order = torch.rand((rows, inner), generator=generator).argsort(dim=1)
    nonzero = left.gather(1, order).abs().cumsum(dim=1) <= bound // _LARGEST_OPERAND
    left *= torch.zeros_like(nonzero).scatter_(1, order, nonzero)
    return (left, right) if seed % 2 == 0 else (right.T.contiguous(), left.T.contiguous())


def _has_wide_output(device: Any) -> bool:
    """Return whether torch multiplies 16-bit operands into a float32 result here: then no partial sum is rounded."""
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


def _seed(context: Context, dtype: str, number: int) -> int:
    return (number * 65_537 + context.rank) * len(EXACT_UP_TO) + list(EXACT_UP_TO).index(dtype)
