"""Inventory check: devices, drivers and libraries, alike on all nodes and as the user requests."""

from seatrial.checks.check import Check
from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.rules import rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="inventory",
    scope="alone",
    params=Params,
    measure=OnCall("seatrial.checks.inventory.measure", "measure"),
    judge=OnCall("seatrial.checks.inventory.judge", "judge"),
    rules=rules,
)
