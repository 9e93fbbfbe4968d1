"""Real training with DistributedDataParallel: does it learn, do the replicas stay equal, is no rank slow or wrong.

Up to 32 ranks train on the digits that ship with the package, with a fixed global batch and number of steps, so that
the target does not depend on the number of ranks. Above, a synthetic workload grows with the world and has references
for itself.
"""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.shared.on_call import OnCall
from seatrial.checks.training import params, rules

CHECK = Check(
    name="training",
    scope="world",
    params=params.Params,
    measure=OnCall("seatrial.checks.training.measure", "measure"),
    judge=OnCall("seatrial.checks.training.judge", "judge"),
    suspects=OnCall("seatrial.checks.training.judge", "suspects"),
    rules=rules.rules,
    work=("max_steps", "num_samples", "duration_s"),
)
