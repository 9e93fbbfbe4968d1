"""The clock of the conductor: it goes on while the machine sleeps, as that of the agents on other machines does."""

from __future__ import annotations

import time

# Linux stops CLOCK_MONOTONIC, which is time.monotonic(), while it is suspended. macOS has only that name, and does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_s() -> float:
    """Return the seconds of a clock that never goes backward and does not stop while the machine sleeps."""
    return time.clock_gettime(_CLOCK)
