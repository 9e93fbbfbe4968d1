"""The number of devices: one for each rank, and the expected number on each node. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from seatrial.checks.inventory.params import Params
from seatrial.checks.inventory.rules import SHARED_DEVICE, device_count_rule
from seatrial.checks.shared.host_inventory import Fleet, HostInventory, culprit, listed, split
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Limit
from seatrial.util.text import as_name

Reports = Mapping[int, Mapping[str, Any]]
"""Rank -> its fact ``inventory``."""

_MOST_LINES = 8
"""The largest number of evidence lines of one finding."""


def shared_devices(evidence: Evidence, reports: Reports, fleet: Fleet) -> Iterator[Finding]:
    """Yield a finding for each device that several ranks use."""
    users: defaultdict[tuple[Any, str], list[int]] = defaultdict(list)
    hosts = evidence.hosts()
    for rank, facts in sorted(reports.items()):
        identity = facts.get("device_id")
        if isinstance(identity, str) and identity:
            # A PCI address is unique within a machine only. All containers of a machine have the same boot ID.
            users[facts.get("boot_id") or evidence.ranks[rank].node, identity].append(rank)
    for (_, identity), ranks in users.items():
        # Parts of one device (MIG, compute partitions) may share its ID; the index in one common list separates them.
        indexes = {(reports[rank].get("visibility"), reports[rank].get("index")) for rank in ranks}
        is_partitioned = len({visibility for visibility, _ in indexes}) == 1 and len(indexes) == len(ranks)
        if len(ranks) > 1 and not is_partitioned:
            nodes = culprit(evidence, ranks, fleet).nodes
            name = f"{listed('rank', ranks)} on {listed('node', nodes)}"
            # Containers of one machine join from different places, and a host may claim the device of another one.
            one_of = len({hosts[rank] for rank in ranks}) > 1
            yield Finding(
                severity="fail",
                check="inventory",
                what=f"{name} use the same device",
                culprit=Culprit(kind="none", name=f"one of {name}, not separable", ranks=tuple(ranks), nodes=nodes)
                if one_of
                else Culprit(kind="device", name=name, ranks=tuple(ranks), nodes=nodes),
                measured=f"{len(ranks)} ranks on device {as_name(identity)}",
                limit=SHARED_DEVICE.limit(),
                evidence=tuple(_device_line(rank, reports[rank]) for rank in ranks[:_MOST_LINES]),
                action="start one process for each device, and have the launcher show each process its own device or"
                " all of them the same list.",
            )


def unexpected_counts(evidence: Evidence, params: Params, reports: Reports, fleet: Fleet) -> Iterator[Finding]:
    """Yield a finding for each node without the number of devices that the user requests, or that most nodes show.

    Without a majority, the most devices that two nodes show are the standard, else those of the node that shows most:
    devices get lost, none appear, and one node may claim any number. A node with fewer devices than processes is found
    by its ranks that share one.
    """
    counts = [
        (machine, _num_devices(machine, reports))
        for machine in fleet.machines
        if not reports.keys().isdisjoint(machine.ranks)
    ]
    if params.devices_per_node is not None:
        expected, origin = params.devices_per_node, device_count_rule(params).origin
    elif "devices" in params.allow_mixed or not counts:
        return
    else:
        difference = split({machine.ranks[0]: count for machine, count in counts}, [machine for machine, _ in counts])
        usual = counts[0][1] if difference is None else difference.majority
        if isinstance(usual, int):
            expected, origin = usual, "fleet, majority of the nodes"
        elif seconds := _shown_by_two(evidence, counts):
            expected, origin = max(seconds), "fleet, the most that two nodes show"
        else:
            expected, origin = max(count for _, count in counts), "fleet, the node that shows most"
    correction = 'allow it with allow_mixed = ["devices"]'
    if params.devices_per_node is not None:
        correction = "correct inventory.devices_per_node in the plan"
    for machine, count in counts:
        if count != expected:
            node = culprit(evidence, machine.ranks, fleet)
            remedy = (
                "check for a device that fell off the bus (the driver's log, the PCI bus), and which devices the"
                " container or job was given"
            )
            if count > expected:
                remedy = "request nodes of one kind, and check what hides devices on the other nodes"
            yield Finding(
                severity="fail",
                check="inventory",
                what=f"{node.name} shows {_devices(count)} where {expected} are expected",
                culprit=node,
                measured=_devices(count),
                limit=Limit(value=expected, unit="devices", origin=origin),
                evidence=tuple(
                    _device_line(rank, reports[rank]) for rank in machine.ranks[:_MOST_LINES] if rank in reports
                ),
                action=f"{remedy}, or {correction}.",
            )


def _shown_by_two(evidence: Evidence, counts: Iterable[tuple[HostInventory, int]]) -> set[int]:
    """Return the numbers of devices that machines of at least two hosts show."""
    hosts, places = evidence.hosts(), defaultdict[int, set[str]](set)
    for machine, count in counts:
        places[count].add(hosts[machine.ranks[0]])
    return {count for count, seen in places.items() if len(seen) > 1}


def _num_devices(machine: HostInventory, reports: Reports) -> int:
    """Return the number of devices that a node shows, or uses if its launcher shows each process only one."""
    facts = [reports[rank] for rank in machine.ranks if rank in reports]
    used = {report["device_id"] for report in facts if report.get("device_id")}
    visible = [int(report.get("visible") or 0) for report in facts]
    return max(len(used), *visible)


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _device_line(rank: int, facts: Mapping[str, Any]) -> str:
    visibility = facts.get("visibility")
    variables = as_name(visibility) if visibility else "no variable hides any"
    return f"rank {rank}: sees {_devices(facts.get('visible', 0))} ({variables}), uses number {facts.get('index')}"
