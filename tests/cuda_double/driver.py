"""What a CUDA driver knows of its devices: which are visible, their memory, and the error that makes them unusable.

Nothing here needs torch. The values come from the environment, so that every process of a run sees the same machine:

- SEATRIAL_CUDA_DOUBLE: a folder; set, it puts the double in place (``startup/sitecustomize.py``).
- SEATRIAL_CUDA_DOUBLE_DEVICES: their number; 2 by default.
- SEATRIAL_CUDA_DOUBLE_BYTES: memory of each; 2 GiB by default.
- SEATRIAL_CUDA_DOUBLE_FAULT: ``INDEX:COUNT:TEXT``: the kernel with this number on the device INDEX fails.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

MODEL = "double of a CUDA device"
ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
"""c10/cuda/CUDAException.cpp appends this to every error."""


class DriverError(RuntimeError):
    """An error of the runtime; ``install.py`` raises torch's own class for it."""


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


@dataclass
class Driver:
    """The devices of this machine as this process sees them."""

    numbers: tuple[int, ...]
    """Number on the machine of each visible device, by torch's index."""
    total_bytes: int
    fault: tuple[int, int, str] | None = None
    """Index, number of the kernel, and text of a failure to come."""
    fraction: float = 1.0
    used: dict[int, int] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    kernels: dict[int, int] = field(default_factory=dict)
    unsynchronized: set[int] = field(default_factory=set)
    """Identities of events that were recorded after the last synchronization."""
    error: str = ""
    """Set by a failed kernel: no call finds it before one synchronizes, and from then on all do, until the process
    ends (CUDA C++ Programming Guide, Error Checking; cudaErrorIllegalAddress: the process must be terminated)."""
    reported: bool = False
    _thread: threading.local = field(default_factory=threading.local)

    @classmethod
    def from_environ(cls) -> Driver:
        count = int(os.environ.get("SEATRIAL_CUDA_DOUBLE_DEVICES", "2"))
        fault = os.environ.get("SEATRIAL_CUDA_DOUBLE_FAULT", "").split(":", 2)
        return cls(
            numbers=_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), count),
            total_bytes=int(os.environ.get("SEATRIAL_CUDA_DOUBLE_BYTES", str(2 << 30))),
            fault=(int(fault[0]), int(fault[1]), fault[2]) if len(fault) == 3 else None,
        )

    @property
    def current(self) -> int:
        """Index of the current device: each thread starts with device 0 (CUDA C++ Programming Guide, Device
        Selection)."""
        return getattr(self._thread, "index", 0)

    def select(self, index: int) -> None:
        self.check(index)
        self._thread.index = index

    def check(self, index: int) -> int:
        """Return the index; raise for a device that does not exist or after an error was reported."""
        if not 0 <= index < len(self.numbers):
            raise DriverError(f"CUDA error: invalid device ordinal{ADVICE}")
        if self.reported:
            raise DriverError(f"CUDA error: {self.error}{ADVICE}")
        return index

    def launch(self, index: int) -> None:
        """Count a kernel; its failure is seen later."""
        self.check(index)
        number = self.kernels[index] = self.kernels.get(index, 0) + 1
        if self.fault is not None and self.fault[:2] == (self.numbers[index], number):
            self.error = self.fault[2]

    def synchronize(self) -> None:
        self.unsynchronized.clear()
        self.reported = self.reported or bool(self.error)
        self.check(0)

    def take(self, index: int, size_bytes: int) -> Callable[[], None] | str:
        """Take memory. Return the function that gives it back, or the refusal as torch words it."""
        used, room = self.used.get(index, 0), int(self.total_bytes * self.fraction)
        if used + size_bytes > room:
            # c10/cuda/CUDACachingAllocator.cpp
            return (
                f"CUDA out of memory. Tried to allocate {_words(size_bytes)}. GPU {index} has a total capacity of"
                f" {_words(self.total_bytes)} of which {_words(self.total_bytes - used)} is free."
            )
        self.used[index] = used + size_bytes
        self.peak[index] = max(self.peak.get(index, 0), self.used[index])

        def give_back() -> None:
            self.used[index] -= size_bytes

        return give_back


def _words(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.2f} MiB"


def _visible(value: str | None, count: int) -> tuple[int, ...]:
    """Return the numbers of the devices before the first entry that matches none (CUDA C++ Programming Guide,
    CUDA_VISIBLE_DEVICES)."""
    if value is None:
        return tuple(range(count))
    numbers: list[int] = []
    for entry in value.split(","):
        text = entry.strip()
        matches = [
            number
            for number in range(count)
            if text == str(number) or (text.startswith("GPU-") and f"GPU-{uuid(number)}".startswith(text))
        ]
        if len(matches) != 1:
            break
        if matches[0] in numbers:  # listed twice: none at all
            return ()
        numbers += matches
    return tuple(numbers)
