"""Links check: GB/s, latency and lost segments of every link between two devices, and the culprits by name."""

from seatrial.checks.check import Check, Stage
from seatrial.checks.links.judge import judge
from seatrial.checks.links.measure import measure
from seatrial.checks.links.params import Params
from seatrial.checks.links.round_request import next_round
from seatrial.checks.links.rules import rules

CHECK = Check(
    name="links",
    scope="pairs",
    params=Params,
    measure=measure,
    judge=judge,
    rules=rules,
    work=("cpu_bytes", "gpu_bytes", "seconds"),
    next_round=next_round,
    stages=(Stage(name="store", first_only=True),),
)
