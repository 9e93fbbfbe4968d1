"""The judge of the host check. Pure: no torch, no host.

A condition fails if it certainly breaks this trial, or the training that the trial stands for. One that may be too low
only warns: a rank that then runs out of something is found and named by the steps that follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.checks.host.forms import FORMS
from seatrial.checks.host.host_view import MOST_LINES, HostView, Remark, TrialSetup, in_names
from seatrial.checks.host.one_node import judge_measurements, remarks_on_hostname, remarks_on_node
from seatrial.checks.host.params import Params
from seatrial.checks.host.rules import device_memory_rule
from seatrial.checks.host.several_nodes import remarks_among_nodes
from seatrial.checks.shared.facts import drop_malformed, unreadable
from seatrial.checks.shared.host_inventory import Fleet, HostInventory, culprit, facts_named, fleet_of, machines
from seatrial.evidence.evidence import Evidence
from seatrial.evidence.findings import Culprit, Finding, Judged, Ruling
from seatrial.evidence.measurement import Measurement


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Judge each node by itself, then the nodes among one another, then the devices."""
    damaged = unreadable(evidence, FORMS)
    evidence = drop_malformed(evidence, FORMS)
    reports, processes = facts_named(evidence, "host"), facts_named(evidence, "process")
    fleet = fleet_of(machines(evidence, processes))
    setup = TrialSetup(
        params=params,
        gpu=evidence.device_type != "cpu",
        gloo=evidence.backend == "gloo",
        world_size=len(evidence.ranks),
    )
    hosts = []
    absent = [*damaged, *(f"process facts of rank {rank}" for rank in evidence.asked if rank not in processes)]
    if not evidence.asked:
        absent.append("any rank that finished")
    asked, readings = {*evidence.asked}, defaultdict[int | None, dict[str, Measurement]](dict)
    for measurement in evidence.measurements:
        readings[measurement.rank][measurement.name] = measurement
    for machine in fleet.machines:
        reporter = next((rank for rank in machine.ranks if rank in reports), None)
        if reporter is not None:
            facts = in_names(reports[reporter])
            hosts.append(HostView(machine=machine, facts=facts, measurements=readings[reporter], processes=processes))
        elif not asked.isdisjoint(machine.ranks):
            absent.append(f"host facts of node {machine.name}")
    remarks = [remark for host in hosts for remark in remarks_on_node(host, setup)]
    # Agents that share a network (several on one machine, or containers) reach each other under any hostname.
    if len({_network(machine, processes) for machine in fleet.machines}) > 1:
        remarks += remarks_among_nodes(hosts, setup)
    else:
        remarks += [remark for host in hosts for remark in remarks_on_hostname(host)]
    # The last one of each rank: a repeated one is no second device.
    in_use = {entry.rank: entry for entry in evidence.measurements if entry.name == "device_memory_used"}
    used = [device_memory_rule(params).judge(measurement) for measurement in in_use.values()]
    is_unknown = setup.gpu and any(not process.get("device_used_known") for process in processes.values())
    return Ruling(
        findings=(
            *(_occupied_device(evidence, entry) for entry in used if not entry.passed),
            *_findings(evidence, remarks, fleet),
        ),
        judged=(*(entry for host in hosts for entry in judge_measurements(host, setup)), *used),
        absent=tuple(absent),
        unjudged=("device memory in use: unknown where a device shares the host's memory",) if is_unknown else (),
    )


def _network(machine: HostInventory, processes: Mapping[int, Mapping[str, Any]]) -> object:
    """Return the identity of the machine's network; the machine itself if it is unknown.

    A machine may repeat what another one says, but not its place.
    """
    networks = (processes[rank].get("network") for rank in machine.ranks if rank in processes)
    known = next(filter(None, networks), None)
    return machine if known is None else (known, machine.place)


def _findings(evidence: Evidence, remarks: Sequence[Remark], fleet: Fleet) -> Iterator[Finding]:
    """Merge equal remarks: a thousand nodes from one image have one mistake, not a thousand."""
    groups: defaultdict[tuple[Any, ...], list[Remark]] = defaultdict(list)
    for remark in remarks:
        groups[remark.severity, remark.what, remark.action, remark.limit, remark.named].append(remark)
    for (severity, what, action, limit, is_named), members in groups.items():
        ranks = {rank for remark in members for rank in remark.machine.ranks}
        named = culprit(evidence, ranks, fleet) if is_named else Culprit(kind="none", name="nobody can be named")
        worst = max(members, key=lambda remark: remark.badness)
        values = [f"{remark.machine.name}: {remark.measured}" for remark in members if remark.measured]
        lines = [line for remark in members for line in remark.evidence]
        yield Finding(
            severity=severity,
            check="host",
            what=what.replace("{nodes}", named.name),
            culprit=named,
            measured=worst.measured,
            limit=limit,
            evidence=tuple(dict.fromkeys([*(values if len(members) > 1 else []), *lines]))[:MOST_LINES],
            action=f"{action}." if action else "",
        )


def _occupied_device(evidence: Evidence, entry: Judged) -> Finding:
    rank = entry.measurement.rank
    owner = evidence.ranks.get(rank) if rank is not None else None
    name = owner.label() if owner else f"rank {rank}"
    return Finding(
        severity="fail",
        check="host",
        what=f"the device of {name} was in use before this trial took it",
        culprit=Culprit(
            kind="device",
            name=name,
            ranks=(rank,) if rank is not None else (),
            nodes=(owner.node,) if owner else (),
        ),
        measured=f"{entry.measurement.value:.3g} GB in use",
        limit=entry.limit,
        action="end what else runs on the device (nvidia-smi, amd-smi, fuser /dev/nvidia*), or reset it.",
    )
