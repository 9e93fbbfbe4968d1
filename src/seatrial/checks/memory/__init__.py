"""The memory of every device by itself: does it return what was written to it, and how fast is it copied.

Right: patterns are written over a stated part of the free memory, all of it, then read back and compared word by word.
Fast: GB/s, the median after warm-up. A copy inside the device reads and writes every byte, and both count: bytes moved
= 2 x size. (Memory that a CPU's cache reads before it is overwritten does not count.) A copy between host and device
counts its size once; the host's side is pinned.
"""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.memory import params, rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="memory",
    scope="alone",
    params=params.Params,
    measure=OnCall("seatrial.checks.memory.measure", "measure"),
    judge=OnCall("seatrial.checks.memory.judge", "judge"),
    suspects=OnCall("seatrial.checks.memory.judge", "suspects"),
    rules=rules.rules,
    work=(
        "cpu_copy_bytes",
        "gpu_copy_bytes",
        "host_copy_bytes",
        "cpu_bytes",
        "gpu_share",
        "patterns",
        "seconds",
        "rounds",
        "minutes",
    ),
)
