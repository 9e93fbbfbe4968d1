"""The rules of the network check, for its judge and for ``seatrial plan show``."""

from __future__ import annotations

from seatrial.checks.check import Rule
from seatrial.checks.network.params import PAYLOAD_BYTES, Params


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules: each node reaches each other one, at the address of its ranks, with packets of full size."""
    return (
        Rule(
            measurement="connections between nodes",
            text=f"all accepted, within {params.connect_timeout_s:g} s",
            origin="network.connect_timeout_s",
        ),
        Rule(measurement="packets of full size", text=f"all pass, {PAYLOAD_BYTES} B there and back", origin="exact"),
        Rule(measurement="addresses and hostnames", text="each belongs to one node", origin="exact"),
    )
