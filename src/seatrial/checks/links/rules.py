"""The limits of the links check."""

from __future__ import annotations

from dataclasses import replace

from seatrial.checks.check import Rule
from seatrial.checks.links.fabrics import EFFECTS, HEALTHY_PAIRS, costs, user_gbps_rule
from seatrial.checks.links.params import Params
from seatrial.checks.shared.speed import CPU_SHARE


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the limits of rate, latency and segments sent again: the user's limit, and the healthy pairs."""
    by_kind = [user_gbps_rule(params)]
    for kind, condition in (("cpu", "CPU"), ("cuda", "GPU")):
        by_kind.append(
            Rule(
                measurement="gbps",
                condition=condition,
                comparison="at least",
                value=1 - EFFECTS[kind],
                share_of="what healthy pairs reach",
                origin=f"{HEALTHY_PAIRS}, again alone",
            )
        )
        by_kind += [
            Rule(
                measurement=cost.measurement,
                condition=condition,
                text=cost.requirement,
                origin=f"{HEALTHY_PAIRS}, again alone",
            )
            for cost in costs(kind)
        ]
    by_kind.append(replace(CPU_SHARE, condition="slow between CPUs, both ends; with less a link only warns"))
    return tuple(by_kind)
