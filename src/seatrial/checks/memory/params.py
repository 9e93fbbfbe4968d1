"""The parameters of the memory check."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.checks.memory.patterns import PATTERNS
from seatrial.devices.specs import highest_memory_peak

COPIES = {"cpu": ("device",), "cuda": ("device", "host_to_device", "device_to_host")}
"""Kinds of copies by type of device."""
REPEATS = 5
"""Timings of each kind of copy when a rank measures again, alone."""
REPEAT_S = 0.05
"""Least seconds of each of them: another process that used the memory for a moment must not look like a fault."""
_FASTEST_HOST_LINK_GBPS = 450.0
"""NVLink-C2C of Grace Hopper and Grace Blackwell, each way (NVIDIA GH200 datasheet: 900 GB/s both ways)."""
_SLOWEST_PATTERN_GBPS = 0.1
"""Least rate of a CPU that writes, reads and compares, all counted, for which the deadline is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Sizes of copies and tests, times, and limits."""

    cpu_copy_bytes: int = 67_108_864
    """Bytes of a copy inside the memory of a CPU; less than the last cache would measure the cache."""
    gpu_copy_bytes: int = 1_073_741_824
    """Bytes of a copy inside the memory of a GPU."""
    host_copy_bytes: int = 268_435_456
    """Bytes of a copy between host and device, each way."""
    cpu_bytes: int = 67_108_864
    """Bytes that each rank tests on a CPU, if half of the host's available memory is enough for all ranks there."""
    gpu_share: float = 0.9
    """Share of the free memory of a GPU that is tested."""
    patterns: tuple[str, ...] = PATTERNS
    """Patterns to write and read back."""
    seconds: float = 0.1
    """Seconds of timing per kind of copy and round."""
    rounds: int = 1
    """Least number of rounds of copies and patterns, each with different random words."""
    minutes: float = 0.0
    """Minutes for which rounds go on; 0: there are exactly ``rounds``."""
    min_copy_gbps: float | None = None
    """The user's limit for copies inside the device, GB/s; None: the fleet sets the limit."""
    min_host_copy_gbps: float | None = None
    """The user's limit for copies between host and device, each way, GB/s; None: the fleet sets the limit."""
    timeout_s: float = 60.0
    """Deadline of each step, seconds."""

    def __post_init__(self) -> None:
        """Raise ValueError, with a sentence, for a value that cannot be used."""
        if not self.patterns or not set(self.patterns) <= set(PATTERNS):
            raise ValueError(f"patterns is {list(self.patterns)}; it takes one or more of {', '.join(PATTERNS)}")
        for key in ("cpu_copy_bytes", "gpu_copy_bytes", "host_copy_bytes", "cpu_bytes"):
            if getattr(self, key) < 2**20:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least {2**20}, 1 MiB")
        if not 0 < self.gpu_share <= 0.95:
            raise ValueError(f"gpu_share is {self.gpu_share}; it must be above 0 and at most 0.95")
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}; it must be at least 1")
        if not 0 <= self.minutes * 60 < self.timeout_s:
            raise ValueError(f"minutes is {self.minutes}; it must fit into timeout_s, {self.timeout_s:g} s")
        rounds = max(self.rounds, REPEATS)
        if not (self.seconds >= 0 and max(self.seconds, REPEAT_S) * len(COPIES["cuda"]) * rounds < self.timeout_s):
            raise ValueError(
                f"seconds is {self.seconds:g}; {rounds} times for {len(COPIES['cuda'])} kinds of copies it must fit "
                f"into timeout_s, {self.timeout_s:g} s"
            )
        slowest_s = self.cpu_bytes * len(self.patterns) / (_SLOWEST_PATTERN_GBPS * 1e9)
        if not slowest_s < self.timeout_s - self.minutes * 60:
            raise ValueError(
                f"cpu_bytes is {self.cpu_bytes}; {len(self.patterns)} patterns at {_SLOWEST_PATTERN_GBPS:g} GB/s take "
                f"{slowest_s:.0f} s, which must fit into timeout_s less minutes, "
                f"{self.timeout_s - self.minutes * 60:g} s"
            )
        for key, peak, what in (
            ("min_copy_gbps", highest_memory_peak(), "the physical peak of the fastest memory known"),
            ("min_host_copy_gbps", _FASTEST_HOST_LINK_GBPS, "the physical peak of the fastest link known"),
        ):
            value = getattr(self, key)
            if value is not None and not 0 < value <= peak:
                raise ValueError(f"{key} is {value:g} GB/s; the limit must be above 0 and at most {peak:g}, {what}")

    def copy_bytes(self, device_type: str, kind: str) -> int:
        """Return the bytes of a copy of this kind on this type of device."""
        if kind != "device":
            return self.host_copy_bytes
        return self.cpu_copy_bytes if device_type == "cpu" else self.gpu_copy_bytes
