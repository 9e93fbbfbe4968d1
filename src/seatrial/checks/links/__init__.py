"""Links check: GB/s, latency and lost segments of every link between two devices, and the culprits by name."""

from seatrial.checks.check import Check, Stage
from seatrial.checks.links.params import Params
from seatrial.checks.links.rules import rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="links",
    scope="pairs",
    params=Params,
    measure=OnCall("seatrial.checks.links.measure", "measure"),
    judge=OnCall("seatrial.checks.links.judge", "judge"),
    rules=rules,
    work=("cpu_bytes", "gpu_bytes", "seconds"),
    next_round=OnCall("seatrial.checks.links.round_request", "next_round"),
    most_wait_s=Params.most_wait_s,
    stages=(Stage(name="page"), Stage(name="store", shares=OnCall("seatrial.rank.groups", "is_of_store"))),
)
