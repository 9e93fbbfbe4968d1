"""What a device model can do, as data with its source. An unknown model is judged by its fleet only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from seatrial.plan.tables import load_table

__all__ = ["Spec", "find", "highest_memory_peak", "highest_peak", "specs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One row: a device model. Figures by dtype (``bf16``), TFLOP/s without sparsity."""

    model: str
    names: tuple[str, ...]
    """Shell patterns of the names that drivers give it."""
    attainable_tflops: Mapping[str, float]
    """Measured on a healthy device with large matrices; empty: only the datasheet is known."""
    peak_tflops: Mapping[str, float]
    """The datasheet's."""
    source: str
    """Where the attainable figure comes from; ``datasheet`` where there is none."""
    memory_peak_gbps: float
    """Of the device's own memory, GB/s; the datasheet's."""


@cache
def specs() -> tuple[Spec, ...]:
    """All rows."""
    return tuple(
        Spec(
            model=row["model"],
            names=tuple(row["names"]),
            attainable_tflops=row.get("attainable_tflops", {}),
            peak_tflops=row["peak_tflops"],
            source=row["source"],
            memory_peak_gbps=row["memory_peak_gbps"],
        )
        for row in load_table("specs")["device"]
    )


def find(device_name: str) -> Spec | None:
    """The row of a device, by the name that its driver gives. A slice of a device (MIG) has no row."""
    if " MIG " in device_name:
        return None
    for spec in specs():
        if any(fnmatchcase(device_name, pattern) for pattern in spec.names):
            return spec
    return None


def highest_peak(dtype: str) -> float:
    """TFLOP/s that no known device exceeds in this dtype; infinity where no row tells."""
    return max((spec.peak_tflops[dtype] for spec in specs() if dtype in spec.peak_tflops), default=math.inf)


def highest_memory_peak() -> float:
    """GB/s that the memory of no known device exceeds."""
    return max(spec.memory_peak_gbps for spec in specs())
