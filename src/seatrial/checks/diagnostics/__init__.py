"""Diagnostics: what devices say about themselves before, during and after the trial. Agents watch them."""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.diagnostics.params import Params
from seatrial.checks.diagnostics.rules import rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="diagnostics",
    scope="agents",
    params=Params,
    measure=OnCall("seatrial.checks.diagnostics.measure", "measure"),
    judge=OnCall("seatrial.checks.diagnostics.judge", "judge"),
    rules=rules,
    watches=True,
    devices_only=True,
)
