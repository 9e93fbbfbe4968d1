"""Measurements and facts: everything that ranks measure, each in one generic record.

A new check needs no new record. Reports, comparisons and baselines group by the fields of a measurement (per rank, per
pair, per size, per step), never by the check that measured it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from seatrial.evidence.schema_types import Whole

Better = Literal["high", "low"]
HANDED = ("diagnostics", "handed")
"""Check and name of the facts about files that a person handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured number and where it was measured."""

    check: str
    """The check that measured it, such as ``compute``."""
    name: str
    """The measured quantity, such as ``tflops`` or ``busbw``; the same name always has the same unit."""
    value: float
    unit: str
    """``GB/s`` is 10**9 bytes per second; a pure number has the unit ``1``."""
    better: Better | None = None
    """Which direction is good; None for a number that is neither good nor bad."""
    rank: Whole | None = None
    """The rank in generation 0, in every generation."""
    peer: Whole | None = None
    """The other rank of a pair."""
    variant: str = ""
    """Distinguishes measurements of one name: a dtype (``bf16``) or an operation (``all_reduce``)."""
    size_bytes: int | None = None
    step: int | None = None
    """Training step, counted from 0."""
    device: str | None = None
    """The device model as the driver names it, such as ``NVIDIA H200``."""
    node: str | None = None
    """Host name of the node."""
    generation: Whole = 0
    stage: str = "measure"
    """The stage of the check; ``repeat`` measures a suspect again."""

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON, without the fields at their defaults."""
        defaults = {"variant": "", "generation": 0, "stage": "measure"}
        return {key: value for key, value in asdict(self).items() if value is not None and defaults.get(key) != value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One observation that is not a number: a device name, a digest, a version, wrong elements."""

    check: str
    name: str
    value: Any
    """JSON: a string, a number, a list or a dictionary of these."""
    rank: Whole | None = None
    """The rank in generation 0, in every generation."""
    node_rank: Whole | None = None
    """The number of the node whose agent observed it; None for a fact of a rank."""
    generation: Whole = 0
    stage: str = "measure"

    def to_json(self) -> dict[str, Any]:
        """Return the fact as JSON, without the fields that are None."""
        return {key: value for key, value in asdict(self).items() if value is not None}
