"""Parameters of the diagnostics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Deadline and limits of what devices say about themselves."""

    timeout_s: float = 45.0
    """Deadline of the first snapshot of a node, seconds; nvidia-smi takes up to 10 s where no driver is kept loaded."""
    warn_below_slowdown_k: float = 5.0
    """Kelvin below the temperature at which a device slows itself down, from which a temperature is a warning."""
    max_temperature_c: float = 85.0
    """Temperature above which there is a warning where the driver names no own limit, degrees Celsius."""
    min_utilization_share: float = 0.5
    """Utilization during training below which there is a warning, as a share of the median of the fleet."""
    min_throttled_share: float = 0.05
    """Share of a step for which a hardware slowdown must have held to be a warning."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_utilization_share <= 1 or not 0 < self.min_throttled_share <= 1:
            raise ValueError("min_utilization_share and min_throttled_share are shares from 0 to 1")
        if self.warn_below_slowdown_k < 0:
            raise ValueError("warn_below_slowdown_k must be at least 0")
