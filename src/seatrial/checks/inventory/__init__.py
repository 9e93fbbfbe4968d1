"""Inventory check: devices, drivers and libraries, alike on all nodes and as the user requests."""

from seatrial.checks.check import Check
from seatrial.checks.inventory.judge import judge
from seatrial.checks.inventory.measure import measure
from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.rules import rules

CHECK = Check(name="inventory", scope="alone", params=Params, measure=measure, judge=judge, rules=rules)
