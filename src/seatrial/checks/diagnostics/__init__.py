"""Diagnostics: what devices say about themselves before, during and after the trial. Agents watch them."""

from __future__ import annotations

from seatrial.checks.check import Check
from seatrial.checks.diagnostics.judge import judge
from seatrial.checks.diagnostics.measure import measure
from seatrial.checks.diagnostics.params import Params
from seatrial.checks.diagnostics.rules import rules

CHECK = Check(
    name="diagnostics",
    scope="agents",
    params=Params,
    measure=measure,
    judge=judge,
    rules=rules,
    watches=True,
    devices_only=True,
)
