"""Figures and facts: what the ranks measure, in one generic record each.

A new check needs no new record: reports, comparison and baselines draw by the places that a figure names
(per rank, per pair, per size, per step), never by the check that measured it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Better", "Fact", "Figure"]

Better = Literal["high", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number and where it was measured."""

    check: str
    """The check that measured it, such as ``compute``."""
    name: str
    """What was measured, such as ``tflops`` or ``busbw``; the same name always has the same unit."""
    value: float
    unit: str
    """``GB/s`` is 10**9 bytes per second; a pure number has the unit ``1``."""
    better: Better | None = None
    """Which direction is good; None when the number is only told."""
    rank: int | None = None
    """The trial rank: the number that the rank had in generation 0, in all generations."""
    peer: int | None = None
    """The other rank of a pair."""
    variant: str = ""
    """What tells apart figures of one name: a dtype (``bf16``) or an operation (``all_reduce``)."""
    size_bytes: int | None = None
    step: int | None = None
    """Training step, counted from 0."""
    device: str | None = None
    """The device model as the driver names it, such as ``NVIDIA H200``."""
    node: str | None = None
    """Host name of the node."""
    generation: int = 0
    stage: str = "measure"
    """The stage of the check in which it was measured; ``repeat`` replaces an earlier suspicion."""

    def to_json(self) -> dict[str, Any]:
        """Leave out what is at its default, so that a figure stays small on the wire."""
        defaults = {"variant": "", "generation": 0, "stage": "measure"}
        return {key: value for key, value in asdict(self).items() if value is not None and defaults.get(key) != value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something seen that is no number: a device name, a digest, a version, wrong elements."""

    check: str
    name: str
    value: Any
    """JSON: a string, a number, a list or a dictionary of such."""
    rank: int | None = None
    generation: int = 0
    stage: str = "measure"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}
