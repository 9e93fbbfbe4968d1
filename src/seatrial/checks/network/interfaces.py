"""The choice of another interface where nodes do not reach one another at the addresses that ranks would use. Pure."""

from __future__ import annotations

from typing import Any

from seatrial.checks.network.observations import Observations, observe, said_once
from seatrial.checks.network.params import NIC, Params
from seatrial.checks.shared.facts import has_fields
from seatrial.evidence.evidence import Evidence
from seatrial.protocol.fields import INTERFACE_NAME

_LARGE = ("large to", "large from")


def next_round(evidence: Evidence, params: Params) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """Return the next interface to try, which all nodes have, each with an address that no other node has."""
    seen = observe(evidence)
    if not _is_closed(seen):
        return None
    tried = _over(evidence)
    untried = [name for name in _common(seen) if name not in tried]
    return ((), {"interface": untried[0]}) if untried else None


def chosen_interface(evidence: Evidence, params: Params) -> str | None:
    """Return the first interface over which all nodes reach one another, where they do not otherwise; else None."""
    seen = observe(evidence)
    if not _is_closed(seen):
        return None
    for name, reports in _over(evidence).items():
        if reports.keys() >= seen.nodes.keys() and not any(
            report["failed"] or report["untried"] for report in reports.values()
        ):
            return name
    return None


def _is_closed(seen: Observations) -> bool:
    return any(entry.role == "data" and entry.how not in _LARGE and entry.targets for entry in seen.failed)


def _common(seen: Observations) -> list[str]:
    """Return the interfaces of all nodes whose addresses differ, by names that agents take."""
    offered = [
        {role.removeprefix(NIC): place[0] for role, place in node.places.items() if role.startswith(NIC)}
        for node in seen.nodes.values()
    ]
    names = sorted(set.intersection(*(set(entry) for entry in offered))) if offered else []
    return [
        name
        for name in names
        if INTERFACE_NAME.fullmatch(name) and len({entry[name] for entry in offered}) == len(offered)
    ]


def _over(evidence: Evidence) -> dict[str, dict[int, dict[str, Any]]]:
    """Return interface -> node -> its report."""
    reports: dict[str, dict[int, dict[str, Any]]] = {}
    for fact in said_once(evidence.facts):
        if fact.name != "connections_over" or fact.node_rank is None:
            continue
        if has_fields(fact.value, interface=str, untried=list, failed=list):
            reports.setdefault(fact.value["interface"], {})[fact.node_rank] = fact.value
    return reports
