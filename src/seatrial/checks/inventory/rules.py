"""The limits of the inventory check."""

from __future__ import annotations

from seatrial.checks.check import Rule
from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.properties import MEMORY_TOLERANCE, PROPERTIES, Property

SHARED_DEVICE = Rule(
    measurement="ranks that share a device",
    comparison="exactly",
    value=0,
    unit="ranks",
    origin="exact: one process a device",
)
_MIXED = "none: may differ"
_MIXED_ORIGIN = "user inventory.allow_mixed"


def device_count_rule(params: Params) -> Rule:
    """Return the rule for the number of devices; without a value, the nodes decide, or the number may differ."""
    measurement = "devices of a node"
    if params.devices_per_node is not None:
        origin = "user inventory.devices_per_node"
        return Rule(measurement=measurement, value=params.devices_per_node, unit="devices", origin=origin)
    if "devices" in params.allow_mixed:
        return Rule(measurement=measurement, text=_MIXED, origin=_MIXED_ORIGIN)
    origin = "fleet, majority of the nodes, else the most of two"
    return Rule(measurement=measurement, text="as many as on most nodes", origin=origin)


def property_rule(about: Property, params: Params) -> Rule:
    """Return the rule for one property: the requested value, or that all nodes are alike, or that they may differ."""
    requested = getattr(params, about.key)
    if requested is not None:
        return Rule(measurement=about.name, text=about.text(requested), origin=f"user inventory.{about.key}")
    if about.name in params.allow_mixed:
        return Rule(measurement=about.name, text=_MIXED, origin=_MIXED_ORIGIN)
    tolerance = f", within {MEMORY_TOLERANCE:.0%}" if about.name == "memory" else ""
    return Rule(
        measurement=about.name,
        text=f"alike{tolerance}",
        origin="fleet, majority of the nodes",
        severity=about.severity,
    )


def rules(params: Params) -> tuple[Rule, ...]:
    """Return the required values, and the properties that must be alike."""
    return (SHARED_DEVICE, device_count_rule(params), *(property_rule(about, params) for about in PROPERTIES))
