"""Storage check: does every node write and read correctly and fast enough where checkpoints go, in one folder."""

from seatrial.checks.check import Check, Stage
from seatrial.checks.shared.on_call import OnCall
from seatrial.checks.storage.params import Params
from seatrial.checks.storage.rules import rules

CHECK = Check(
    name="storage",
    scope="alone",
    params=Params,
    measure=OnCall("seatrial.checks.storage.measure", "measure"),
    judge=OnCall("seatrial.checks.storage.judge", "judge"),
    suspects=OnCall("seatrial.checks.storage.judge", "suspects"),
    rules=rules,
    work=("size_bytes", "appends"),
    stages=(
        Stage(name="key", shares=OnCall("seatrial.checks.storage.tokens", "is_of_key")),
        Stage(name="token"),
        Stage(name="view"),
        Stage(name="measure"),
    ),
)
