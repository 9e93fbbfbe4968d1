"""The collective operations over sizes: are the values right, and how fast.

Right: every rank contributes different small integers at every element, so that each result is exact in float32 in any
order of summation, and a wrong element of a data movement shows whose contribution it was. Fast: the median after
warm-up. busbw = algbw x factor, comparable between operations (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.collectives import params, rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="collectives",
    scope="world",
    params=params.Params,
    measure=OnCall("seatrial.checks.collectives.measure", "measure"),
    judge=OnCall("seatrial.checks.collectives.judge", "judge"),
    rules=rules.rules,
    work=("cpu_sizes", "gpu_sizes", "repeats", "rounds", "minutes"),
)
