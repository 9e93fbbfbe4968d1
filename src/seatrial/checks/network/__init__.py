"""Network: which nodes cannot connect to which. Agents carry it out, before anything of torch runs."""

from __future__ import annotations

from seatrial.checks.check import Check, Stage
from seatrial.checks.network.interfaces import chosen_interface, next_round
from seatrial.checks.network.judge import judge
from seatrial.checks.network.params import Params
from seatrial.checks.network.rules import rules
from seatrial.rank.node_context import NodeContext


def _measure(context: NodeContext, params: Params) -> None:
    # Only agents need asyncio, and a command line that starts nothing would wait for its import.
    from seatrial.checks.network.measure import measure

    measure(context, params)


CHECK = Check(
    name="network",
    scope="agents",
    params=Params,
    measure=_measure,
    judge=judge,
    rules=rules,
    next_round=next_round,
    interface=chosen_interface,
    min_nodes=2,
    stages=(Stage(name="listen"), Stage(name="connect")),
)
