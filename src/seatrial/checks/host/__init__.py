"""Host check: shared memory, limits, memory, hostname, network interfaces, clock, and devices in use of each node."""

from seatrial.checks.check import Check
from seatrial.checks.host.judge import judge
from seatrial.checks.host.measure import measure
from seatrial.checks.host.params import Params
from seatrial.checks.host.rules import rules

CHECK = Check(name="host", scope="alone", params=Params, measure=measure, judge=judge, rules=rules)
