"""The parameters of the compute check."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.devices.specs import highest_peak

EXACT_UP_TO = {"fp32": 2**24, "fp16": 2**11, "bf16": 2**8}
"""By dtype, the bound below which it represents every integer exactly."""
CONVOLUTION = "convolution"
"""The variant of ``wrong_elements`` besides the dtypes."""
REPEATS = 3
"""Timings of each dtype when a rank measures again, alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Sizes and dtypes of the matrices, times, and limits."""

    cpu_size: int = 1024
    """Rows and columns of the timed matrices on a CPU."""
    gpu_size: int = 8192
    """Rows and columns of the timed matrices on a GPU."""
    cpu_dtypes: tuple[str, ...] = ("fp32", "bf16")
    """Dtypes measured on a CPU; ``min_tflops`` limits the first one."""
    gpu_dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")
    """Dtypes measured on a GPU; ``min_tflops`` limits the first one."""
    seconds: float = 0.2
    """Seconds of timing per dtype and round."""
    rounds: int = 2
    """Least number of rounds, each with different data."""
    minutes: float = 0.0
    """Minutes for which rounds go on; 0: there are exactly ``rounds``."""
    fraction: float = 0.85
    """Share that a device must reach of the speed measured on a healthy device of its model."""
    min_tflops: float | None = None
    """The user's limit, TFLOP/s; None: the device model and the fleet set the limit."""
    timeout_s: float = 60.0
    """Deadline of each step, seconds."""

    def __post_init__(self) -> None:
        """Raise ValueError, with a sentence, for a value that cannot be used."""
        for key, dtypes in (("cpu_dtypes", self.cpu_dtypes), ("gpu_dtypes", self.gpu_dtypes)):
            if not dtypes or not set(dtypes) <= set(EXACT_UP_TO):
                raise ValueError(f"{key} is {list(dtypes)}; it takes one or more of {', '.join(EXACT_UP_TO)}")
        for key in ("cpu_size", "gpu_size", "rounds"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}; it must be above 0 and at most 1")
        if not 0 <= self.minutes * 60 < self.timeout_s:
            raise ValueError(f"minutes is {self.minutes}; it must fit into timeout_s, {self.timeout_s:g} s")
        num_dtypes, rounds = max(len(self.cpu_dtypes), len(self.gpu_dtypes)), max(self.rounds, REPEATS)
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
        """Return the dtypes measured on this type of device, ``cpu`` or ``cuda``."""
        return self.cpu_dtypes if device_type == "cpu" else self.gpu_dtypes

    def size(self, device_type: str) -> int:
        """Return the rows and columns of the timed matrices on this type of device."""
        return self.cpu_size if device_type == "cpu" else self.gpu_size
