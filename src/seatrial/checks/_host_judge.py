"""What the host check makes of what the nodes told. Pure: no torch, no host.

What fails is what surely breaks this trial, or the training that it stands for; what may be too little only warns,
because a rank that then runs out of it is found and named by the steps that follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seatrial.checks._fleet import Machine, culprit, facts_named, machines
from seatrial.checks._host_scene import LINES, Node, Remark, Scene
from seatrial.checks._host_several import among_nodes
from seatrial.checks._host_words import remedy
from seatrial.probe.cpu import cores_in
from seatrial.probe.names import is_loopback
from seatrial.verdict.evidence import Evidence
from seatrial.verdict.figures import Figure
from seatrial.verdict.findings import Culprit, Finding, Judged, Limit, Ruling

if TYPE_CHECKING:
    from seatrial.checks.host import Params

__all__ = ["judge"]

_GB = 1e9


def judge(evidence: Evidence, params: Params) -> Ruling:
    """Node by node, then the nodes among one another, then the devices."""
    told, places = facts_named(evidence, "host"), facts_named(evidence, "place")
    fleet = machines(evidence, places)
    scene = Scene(
        params=params,
        gpu=evidence.device_type != "cpu",
        gloo="gloo" in evidence.backend,
        world_size=len(evidence.ranks),
    )
    nodes, absent = [], [f"place of rank {rank}" for rank in evidence.asked if rank not in places]
    if not evidence.asked:
        absent.append("any rank that finished")
    for machine in fleet:
        teller = next((rank for rank in machine.ranks if rank in told), None)
        if teller is not None:
            figures = {figure.name: figure for figure in evidence.figures if figure.rank == teller}
            nodes.append(Node(machine=machine, facts=told[teller], figures=figures, places=places))
        elif not set(machine.ranks).isdisjoint(evidence.asked):
            absent.append(f"what node {machine.name} is like")
    remarks = [remark for node in nodes for remark in _of_node(node, scene)]
    # Agents that share a network (several on one machine, or containers) reach each other whatever the name stands for.
    if len({_network(machine, places) for machine in fleet}) > 1:
        remarks += among_nodes(nodes, scene)
    else:
        remarks += [remark for node in nodes for remark in _own_name(node)]
    judged = [entry for node in nodes for entry in _judged(node, scene)]
    used = [_used(figure, params) for figure in evidence.figures if figure.name == "device_memory_used"]
    unknown = scene.gpu and any(not place.get("device_used_known") for place in places.values())
    return Ruling(
        findings=(
            *(_occupied(evidence, entry, fleet) for entry in used if not entry.passed),
            *_findings(evidence, remarks, fleet),
        ),
        judged=(*judged, *used),
        absent=tuple(absent),
        unjudged=("memory in use not told by devices that share the host's",) if unknown else (),
    )


def _network(machine: Machine, places: Mapping[int, Mapping[str, Any]]) -> object:
    told = (places[rank].get("network") for rank in machine.ranks if rank in places)
    return next(filter(None, told), machine)


def _findings(evidence: Evidence, remarks: Sequence[Remark], fleet: Sequence[Machine]) -> Iterator[Finding]:
    """A thousand nodes from one image have one mistake, not a thousand."""
    groups: defaultdict[tuple[Any, ...], list[Remark]] = defaultdict(list)
    for remark in remarks:
        groups[remark.severity, remark.what, remark.action, remark.limit, remark.named].append(remark)
    for (severity, what, action, limit, named), members in groups.items():
        ranks = {rank for remark in members for rank in remark.machine.ranks}
        found = culprit(evidence, ranks, fleet) if named else Culprit(kind="none", name="nobody can be named")
        worst = max(members, key=lambda remark: remark.worse)
        several = [f"{remark.machine.name}: {remark.measured}" for remark in members if remark.measured]
        lines = [line for remark in members for line in remark.evidence]
        yield Finding(
            severity=severity,
            check="host",
            what=what.replace("{who}", found.name),
            culprit=found,
            measured=worst.measured,
            limit=limit,
            evidence=tuple(dict.fromkeys([*(several if len(members) > 1 else []), *lines]))[:LINES],
            action=f"{action}." if action else "",
        )


# One node


def _limits(node: Node, scene: Scene) -> dict[str, Limit]:
    """By figure: what it must reach on this node."""
    params, num_ranks = scene.params, node.num_ranks
    memory_gb = params.min_memory_per_rank_gb * num_ranks
    files = params.min_open_files + params.min_open_files_per_rank * scene.world_size
    return {
        "shm_free": Limit(value=params.min_shm_gb, unit="GB", origin="host.min_shm_gb, NCCL's guide for containers"),
        "memory_available": Limit(
            value=memory_gb, unit="GB", origin=f"host.min_memory_per_rank_gb x {num_ranks} on the node"
        ),
        "open_files": Limit(
            value=files, unit="1", origin=f"host.min_open_files + min_open_files_per_rank x {scene.world_size}"
        ),
    }


def _judged(node: Node, scene: Scene) -> Iterator[Judged]:
    for name, limit in _limits(node, scene).items():
        if name in node.figures:
            figure = node.figures[name]
            yield Judged(figure=figure, limit=limit, passed=figure.value >= limit.value)


def _of_node(node: Node, scene: Scene) -> Iterator[Remark]:
    limits = _limits(node, scene)
    yield from _shared_memory(node, scene, limits["shm_free"])
    memory, files = node.figures.get("memory_available"), node.figures.get("open_files")
    if memory is not None and memory.value < limits["memory_available"].value:
        group = node.facts.get("cgroup") or {}
        left = group.get("memory_left_bytes")
        by_group = left is not None and left / _GB <= memory.value
        allowed = f"the control group allows {(group.get('memory_limit_bytes') or 0) / _GB:.3g} GB" if by_group else ""
        yield Remark(
            severity="warn",
            what="{who} may run out of host memory",
            machine=node.machine,
            limit=limits["memory_available"],
            measured=f"{memory.value:.3g} GB available",
            worse=-memory.value,
            evidence=(allowed,) if allowed else (),
            action=node.remedy("memory") if by_group else remedy("memory", "none"),
        )
    if files is not None and files.value < limits["open_files"].value:
        yield Remark(
            severity="warn",
            what="{who} may run out of open files (RLIMIT_NOFILE)",
            machine=node.machine,
            limit=limits["open_files"],
            measured=f"{files.value:.0f} open files",
            worse=-files.value,
            action=node.remedy("open_files"),
        )
    yield from _locked_memory(node, scene)
    yield from _cores(node, scene)
    left_over = [str(name) for name in node.facts.get("leftovers") or ()]
    if left_over:
        yield Remark(
            severity="warn",
            what=f"the environment of {{who}} has {', '.join(left_over)}, which no launcher of this trial has set",
            machine=node.machine,
            action="unset them there (shell, profile, ENV of the image): a script that reads them takes itself for"
            " another rank",
        )


def _shared_memory(node: Node, scene: Scene, limit: Limit) -> Iterator[Remark]:
    free, shm = node.figures.get("shm_free"), node.facts.get("shm")
    if free is not None and free.value >= limit.value:
        return
    size_gb = (shm or {}).get("size_bytes", 0) / _GB
    is_full = size_gb >= limit.value
    if free is None or not shm:
        what, measured = "{who} has no /dev/shm", ""
    else:
        what = "/dev/shm of {who} is nearly full" if is_full else "/dev/shm of {who} is too small"
        measured = f"{free.value:.3g} GB free of {size_gb:.3g} GB"
    yield Remark(
        severity="fail" if scene.gpu and node.num_ranks > 1 else "warn",
        what=f"{what}: NCCL between the GPUs of a node and data loaders with workers need it",
        machine=node.machine,
        limit=limit,
        measured=measured,
        worse=-(free.value if free else 0.0),
        action="remove what earlier runs have left there (ls -l /dev/shm)" if is_full else node.remedy("shm"),
    )


def _locked_memory(node: Node, scene: Scene) -> Iterator[Remark]:
    locked, rdma = node.facts.get("memlock_bytes"), node.facts.get("rdma")
    if locked is None or not rdma or node.facts.get("locks_any") or locked / _GB >= scene.params.min_memlock_gb:
        return
    yield Remark(
        severity="warn",
        what="{who} may not lock enough memory for its RDMA devices (RLIMIT_MEMLOCK)",
        machine=node.machine,
        limit=Limit(value=scene.params.min_memlock_gb, unit="GB", origin="host.min_memlock_gb"),
        measured=f"{locked / _GB:.3g} GB",
        worse=-locked,
        evidence=(f"RDMA devices: {', '.join(map(str, rdma[:LINES]))}",),
        action=node.remedy("memlock"),
    )


def _cores(node: Node, scene: Scene) -> Iterator[Remark]:
    """Each rank may be bound to cores of its own; a quota is for all of them together."""
    masks = [node.places[rank].get("affinity") for rank in node.machine.ranks if rank in node.places]
    if not masks or any(mask is None for mask in masks):
        return
    cores = float(len(frozenset().union(*(cores_in(str(mask)) for mask in masks))))
    quota = (node.facts.get("cgroup") or {}).get("quota_cores")
    binding = "in the affinity masks"
    if quota is not None and quota < cores:
        cores, binding = quota, "by the CPU quota of the control group"
    if cores / node.num_ranks >= scene.params.min_cores_per_rank:
        return
    yield Remark(
        severity="warn",
        what="the ranks of {who} share too few cores, so their speed says little",
        machine=node.machine,
        limit=Limit(
            value=scene.params.min_cores_per_rank * node.num_ranks,
            unit="cores",
            origin=f"host.min_cores_per_rank x {node.num_ranks} on the node",
        ),
        measured=f"{cores:g} {'core' if cores == 1 else 'cores'} {binding}",
        worse=-cores,
        action=node.remedy("cores"),
    )


def _own_name(node: Node) -> Iterator[Remark]:
    own = (node.facts.get("name") or {}).get("own")
    if own is not None and is_loopback(str(own)):
        yield Remark(
            severity="info",
            what=f"the name of {{who}} resolves to {own}, which does no harm with one node",
            machine=node.machine,
        )


# Devices


def _used(figure: Figure, params: Params) -> Judged:
    value = params.own_context_gb + params.max_device_used_gb
    origin = f"{params.own_context_gb:g} GB for our own context + host.max_device_used_gb"
    return Judged(figure=figure, limit=Limit(value=value, unit="GB", origin=origin), passed=bool(figure.value <= value))


def _occupied(evidence: Evidence, entry: Judged, fleet: Sequence[Machine]) -> Finding:
    rank = entry.figure.rank
    seen = evidence.ranks.get(rank) if rank is not None else None
    name = seen.label() if seen else f"rank {rank}"
    return Finding(
        severity="fail",
        check="host",
        what=f"the device of {name} was in use before this trial took it",
        culprit=Culprit(
            kind="device",
            name=name,
            ranks=(rank,) if rank is not None else (),
            nodes=(seen.node,) if seen else (),
        ),
        measured=f"{entry.figure.value:.3g} GB in use",
        limit=entry.limit,
        action="end what else runs on the device (nvidia-smi, amd-smi, fuser /dev/nvidia*), or reset it.",
    )
