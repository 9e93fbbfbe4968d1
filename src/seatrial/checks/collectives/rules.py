"""The limits of the collectives check."""

from __future__ import annotations

from seatrial.checks.check import Rule, exact_rule, user_rule
from seatrial.checks.collectives.params import Params

WRONG_ELEMENTS = exact_rule("wrong_elements")


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the rules: values are exact, and only the user limits bandwidth and latency."""
    return (WRONG_ELEMENTS, busbw_rule(params), latency_rule(params))


def busbw_rule(params: Params) -> Rule:
    """Return the rule for the bandwidth of all_reduce at the largest size."""
    return user_rule(
        "busbw",
        "at least",
        params.min_busbw_gbps,
        "GB/s",
        key="collectives.min_busbw_gbps",
        condition="all_reduce, largest size",
    )


def latency_rule(params: Params) -> Rule:
    """Return the rule for the time of all_reduce at the smallest size."""
    return user_rule(
        "time_us",
        "at most",
        params.max_latency_us,
        "us",
        key="collectives.max_latency_us",
        condition="all_reduce, smallest size",
    )
