"""Every device by itself: are its results right, and is it fast.

Right: products and convolutions of small integers, whose exact answer is the same for every dtype, order of summation
and device, so that any wrong bit is a fault of the device. Fast: GEMM TFLOP/s, 2MNK / t, on random data, the median
after warm-up.
"""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.compute import params, rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="compute",
    scope="alone",
    params=params.Params,
    measure=OnCall("seatrial.checks.compute.measure", "measure"),
    judge=OnCall("seatrial.checks.compute.judge", "judge"),
    suspects=OnCall("seatrial.checks.compute.judge", "suspects"),
    rules=rules.rules,
    work=("cpu_size", "gpu_size", "cpu_dtypes", "gpu_dtypes", "seconds", "rounds", "minutes"),
)
