"""What the scripts of the MPI matrix share: values to send, results to compare. Not a test by itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Op = dist.ReduceOp
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
WIDE = (torch.uint16, torch.uint32, torch.uint64)
counted: Counter[str] = Counter()
"""Results that were equal, by the first word of their name."""


def values(shape: Any, dtype: torch.dtype, salt: int, source: int) -> Tensor:
    """Small integers of both signs where the type has them, other ones on each rank: sums and products are exact."""
    generator = torch.Generator().manual_seed(1000 * salt + source)
    low = 0 if dtype in (torch.bool, torch.uint8, *WIDE) else -2
    drawn = torch.randint(low, 2 if dtype is torch.bool else 3, shape, generator=generator)
    return drawn.to(dtype)


def same(name: str, found: Tensor, expected: Tensor) -> None:
    counted[name.split()[0]] += 1
    if found.dtype != expected.dtype or not torch.equal(found.double(), expected.double()):
        raise AssertionError(f"rank {dist.get_rank()}: {name}: {found} instead of {expected}")


def finish(work: Any, result: Tensor) -> None:
    """Wait in one of the ways that there are."""
    if work is None:
        return
    how = random.randrange(3)
    if how == 0:
        work.wait()
    elif how == 1:
        work.get_future().wait()
    else:
        assert work.wait(timedelta(seconds=30))
    assert work.is_completed()


def raises(text: str, call: Callable[[], Any]) -> None:
    counted["refused"] += 1
    try:
        call()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        if text not in str(error):
            raise AssertionError(f"{error!r} does not say {text!r}") from error
    else:
        raise AssertionError(f"nothing was said of {text!r}")


def by_hand(parts: list[Tensor], op: Any) -> Tensor:
    """The reduction of all ranks' values in float64, as each of them can compute it: for types that Gloo lacks."""
    stacked = torch.stack([part.double() for part in parts])
    if parts[0].dtype is torch.bool:
        return stacked.amax(0) > 0 if op in (Op.SUM, Op.MAX) else stacked.amin(0) > 0
    reduced = {
        Op.SUM: lambda: stacked.sum(0),
        Op.AVG: lambda: stacked.sum(0) / len(parts),
        Op.PRODUCT: lambda: stacked.prod(0),
        Op.MIN: lambda: stacked.amin(0),
        Op.MAX: lambda: stacked.amax(0),
    }[op]()
    return reduced.to(parts[0].dtype)


def moved(name: str, found: Tensor, expected: Tensor) -> None:
    if found.dtype.is_complex:
        found, expected = torch.view_as_real(found.contiguous()), torch.view_as_real(expected.contiguous())
    same(name, found, expected)
