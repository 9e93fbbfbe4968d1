"""The parameters of the collectives check."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.checks.collectives.operations import ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Sizes, repeats, times, and limits."""

    cpu_sizes: tuple[int, ...] = (8, 65_536, 1_048_576, 16_777_216)
    """Bytes of the full array on CPUs, ascending; limits apply to the first (latency) and the last one (bandwidth)."""
    gpu_sizes: tuple[int, ...] = (8, 1_048_576, 67_108_864, 268_435_456)
    """Bytes of the full array on GPUs, ascending."""
    repeats: int = 20
    """Timed calls per operation and size; fewer of large ones, the same number on all ranks."""
    rounds: int = 1
    """Least number of rounds of everything, each with its values checked."""
    minutes: float = 0.0
    """Minutes for which rounds go on, by the clock of rank 0; 0: there are exactly ``rounds``."""
    min_busbw_gbps: float | None = None
    """The user's limit for all_reduce at the largest size, GB/s; None: only measured."""
    max_latency_us: float | None = None
    """The user's limit for all_reduce at the smallest size, microseconds; None: only measured."""
    timeout_s: float = 120.0
    """Deadline of the step, seconds."""

    def __post_init__(self) -> None:
        """Raise ValueError, with a sentence, for a value that cannot be used."""
        for key in ("cpu_sizes", "gpu_sizes"):
            sizes = getattr(self, key)
            are_whole = all(size >= ELEMENT_BYTES and size % ELEMENT_BYTES == 0 for size in sizes)
            if not sizes or not are_whole or list(sizes) != sorted(set(sizes)):
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
        """Return the sizes for this type of device, in bytes."""
        return self.cpu_sizes if device_type == "cpu" else self.gpu_sizes
