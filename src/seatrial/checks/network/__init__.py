"""Network: which nodes cannot connect to which. Agents carry it out, before anything of torch runs."""

from __future__ import annotations

from seatrial.checks.check import Check, Stage
from seatrial.checks.network.params import Params
from seatrial.checks.network.rules import rules
from seatrial.checks.shared.on_call import OnCall

CHECK = Check(
    name="network",
    scope="agents",
    params=Params,
    measure=OnCall("seatrial.checks.network.measure", "measure"),
    judge=OnCall("seatrial.checks.network.judge", "judge"),
    rules=rules,
    next_round=OnCall("seatrial.checks.network.interfaces", "next_round"),
    interface=OnCall("seatrial.checks.network.interfaces", "chosen_interface"),
    min_nodes=2,
    stages=(Stage(name="listen"), Stage(name="connect"), Stage(name="count", excuses=True)),
)
