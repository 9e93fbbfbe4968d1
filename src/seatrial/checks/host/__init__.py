"""Host check: shared memory, limits, memory, hostname, network interfaces, clock, and devices in use of each node."""

from seatrial.checks.check import Check
from seatrial.checks.host.params import Params
from seatrial.checks.host.rules import rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="host",
    scope="alone",
    params=Params,
    measure=OnCall("seatrial.checks.host.measure", "measure"),
    judge=OnCall("seatrial.checks.host.judge", "judge"),
    rules=rules,
)
