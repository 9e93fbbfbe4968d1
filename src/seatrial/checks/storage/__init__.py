"""Storage check: does every node write and read correctly and fast enough where checkpoints go, in one folder."""

from seatrial.checks.check import Check, Stage
from seatrial.checks.storage.judge import judge, suspects
from seatrial.checks.storage.measure import measure
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import rules

CHECK = Check(
    name="storage",
    scope="alone",
    params=Params,
    measure=measure,
    judge=judge,
    suspects=suspects,
    rules=rules,
    work=("size_bytes", "appends"),
    stages=(Stage(name="key", first_only=True), Stage(name="token"), Stage(name="view"), Stage(name="measure")),
)
