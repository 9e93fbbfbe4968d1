"""Peak and attainable rates of device models, with their source. An unknown model is judged by its fleet only."""

from __future__ import annotations

import json
import math
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One device model. Rates by dtype (``bf16``), in TFLOP/s without sparsity."""

    model: str
    names: tuple[str, ...]
    """Shell patterns of the names that drivers report for it."""
    attainable_tflops: Mapping[str, float]
    """Measured on a healthy device with large matrices; empty where only the datasheet is known."""
    peak_tflops: Mapping[str, float]
    """From the datasheet."""
    source: str
    """Source of the attainable rates; ``datasheet`` where there are none."""
    memory_peak_gbps: float
    """Bandwidth of the device memory in GB/s, from the datasheet."""


@cache
def specs() -> tuple[Spec, ...]:
    """Return all device models."""
    # pkgutil asks the loader, so that the file is found inside a zip too.
    content = pkgutil.get_data(__package__, "specs.json")
    assert content is not None
    return tuple(
        Spec(
            model=row["model"],
            names=tuple(row["names"]),
            attainable_tflops=row.get("attainable_tflops", {}),
            peak_tflops=row["peak_tflops"],
            source=row["source"],
            memory_peak_gbps=row["memory_peak_gbps"],
        )
        for row in json.loads(content)["device"]
    )


def find(device_name: str) -> Spec | None:
    """Return the row of a device by the name that its driver reports; None if unknown, or a slice of a device (MIG)."""
    if " MIG " in device_name:
        return None
    for spec in specs():
        if any(fnmatchcase(device_name, pattern) for pattern in spec.names):
            return spec
    return None


def highest_peak(dtype: str) -> float:
    """Return the highest peak of all models in this dtype, in TFLOP/s; infinity where no row has the dtype."""
    return max((spec.peak_tflops[dtype] for spec in specs() if dtype in spec.peak_tflops), default=math.inf)


def highest_memory_peak() -> float:
    """Return the highest memory bandwidth of all models, in GB/s."""
    return max(spec.memory_peak_gbps for spec in specs())
