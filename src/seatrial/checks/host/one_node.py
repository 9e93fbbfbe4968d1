"""The rules of the host check for one node: shared memory, memory, open files, locked memory, cores. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.checks.check import Rule
from seatrial.checks.host.host_view import MOST_LINES, HostView, Remark, TrialSetup
from seatrial.checks.host.remedies import remedy
from seatrial.checks.host.rules import cores_rule, memlock_rule, memory_rule, open_files_rule, shm_rule
from seatrial.evidence.findings import Judged
from seatrial.probe.cpu import cores_in
from seatrial.probe.names import is_loopback

_GB = 1e9


def _rules(host: HostView, setup: TrialSetup) -> dict[str, Rule]:
    """Return the rules for the measurements of this node, by name."""
    memory = memory_rule(setup.params)
    return {
        "shm_free": shm_rule(setup.params, is_fatal=setup.gpu and host.num_ranks > 1),
        "memory_available": memory.scaled(host.num_ranks, origin=f"{memory.origin} x {host.num_ranks} on the node"),
        "open_files": open_files_rule(setup.params, setup.world_size),
    }


def judge_measurements(host: HostView, setup: TrialSetup) -> Iterator[Judged]:
    """Yield each measurement of the node that has a limit."""
    for name, rule in _rules(host, setup).items():
        if name in host.measurements:
            yield rule.judge(host.measurements[name])


def remarks_on_node(host: HostView, setup: TrialSetup) -> Iterator[Remark]:
    """Yield what is wrong with one node by itself."""
    rules = _rules(host, setup)
    yield from _shared_memory(host, rules["shm_free"])
    yield from _memory(host, rules["memory_available"])
    files = host.measurements.get("open_files")
    if files is not None and not rules["open_files"].passes(files.value):
        yield Remark(
            severity=rules["open_files"].severity,
            what="{nodes} may run out of open files (RLIMIT_NOFILE)",
            machine=host.machine,
            limit=rules["open_files"].limit(),
            measured=f"{files.value:.0f} open files",
            badness=-files.value,
            action=host.remedy("open_files"),
        )
    yield from _locked_memory(host, setup)
    yield from _cores(host, setup)
    if host.facts.get("has_loopback") is False and setup.world_size > 1:
        yield Remark(
            severity="fail",
            what="the loopback interface of {nodes} is down",
            machine=host.machine,
            action="start it (ip link set lo up): without it a node does not reach itself, so its ranks cannot connect",
        )
    leftovers = ", ".join(str(name) for name in (host.facts.get("leftovers") or ())[:MOST_LINES])
    if leftovers:
        yield Remark(
            severity="warn",
            what=f"the environment of {{nodes}} has {leftovers}, which no launcher of this trial has set",
            machine=host.machine,
            action="unset them there (shell, profile, ENV of the image): a script that reads them would assume that it"
            " is another rank",
        )


def _shared_memory(host: HostView, rule: Rule) -> Iterator[Remark]:
    free, shm = host.measurements.get("shm_free"), host.facts.get("shm")
    read_only = bool((shm or {}).get("read_only"))
    if free is not None and rule.passes(free.value) and not read_only:
        return
    size_gb = (shm or {}).get("size_bytes", 0) / _GB
    is_full = rule.passes(size_gb)
    if free is None or not shm:
        what, measured = "{nodes} has no /dev/shm", ""
    else:
        what = "/dev/shm of {nodes} is nearly full" if is_full else "/dev/shm of {nodes} is too small"
        measured = f"{free.value:.3g} GB free of {size_gb:.3g} GB"
    action = "remove what earlier runs have left there (ls -l /dev/shm)" if is_full else host.remedy("shm")
    if read_only:
        what, action = "/dev/shm of {nodes} is read-only", "mount it writable there (mount -o remount,rw /dev/shm)"
    yield Remark(
        severity=rule.severity,
        what=f"{what}: NCCL between the GPUs of a node and data loaders with workers need it",
        machine=host.machine,
        limit=rule.limit(),
        measured=measured,
        badness=-(free.value if free else 0.0),
        action=action,
    )


def _memory(host: HostView, rule: Rule) -> Iterator[Remark]:
    memory = host.measurements.get("memory_available")
    if memory is None or rule.passes(memory.value):
        return
    control_group = host.facts.get("cgroup") or {}
    left_bytes = control_group.get("memory_left_bytes")
    is_limited = left_bytes is not None and left_bytes / _GB <= memory.value
    allowed_gb = (control_group.get("memory_limit_bytes") or 0) / _GB
    yield Remark(
        severity=rule.severity,
        what="{nodes} may run out of host memory",
        machine=host.machine,
        limit=rule.limit(),
        measured=f"{memory.value:.3g} GB available",
        badness=-memory.value,
        evidence=(f"the control group allows {allowed_gb:.3g} GB",) if is_limited else (),
        action=host.remedy("memory") if is_limited else remedy("memory", "none"),
    )


def _locked_memory(host: HostView, setup: TrialSetup) -> Iterator[Remark]:
    locked, rdma = host.facts.get("memlock_bytes"), host.facts.get("rdma")
    rule = memlock_rule(setup.params)
    if locked is None or not rdma or host.facts.get("locks_any") or rule.passes(locked / _GB):
        return
    yield Remark(
        severity=rule.severity,
        what="{nodes} may not lock enough memory for its RDMA devices (RLIMIT_MEMLOCK)",
        machine=host.machine,
        limit=rule.limit(),
        measured=f"{locked / _GB:.3g} GB",
        badness=-locked,
        evidence=(f"RDMA devices: {', '.join(map(str, rdma[:MOST_LINES]))}",),
        action=host.remedy("memlock"),
    )


def _cores(host: HostView, setup: TrialSetup) -> Iterator[Remark]:
    """Compare the union of the ranks' affinity masks, or the CPU quota that they share, with the number of ranks."""
    masks = [host.processes[rank].get("affinity") for rank in host.machine.ranks if rank in host.processes]
    if not masks or any(mask is None for mask in masks):
        return
    cores = float(len(frozenset().union(*(cores_in(str(mask)) for mask in masks))))
    quota = (host.facts.get("cgroup") or {}).get("quota_cores")
    binding = "in the affinity masks"
    if quota is not None and quota < cores:
        cores, binding = quota, "by the CPU quota of the control group"
    rule = cores_rule(setup.params)
    if rule.passes(cores / host.num_ranks):
        return
    yield Remark(
        severity=rule.severity,
        what="the ranks of {nodes} share too few cores, so their speed says little",
        machine=host.machine,
        limit=rule.scaled(host.num_ranks, origin=f"{rule.origin} x {host.num_ranks} on the node").limit(),
        measured=f"{cores:g} {'core' if cores == 1 else 'cores'} {binding}",
        badness=-cores,
        action=host.remedy("cores"),
    )


def remarks_on_hostname(host: HostView) -> Iterator[Remark]:
    """Yield a remark if the hostname of the only node of a trial resolves to a loopback address."""
    address = (host.facts.get("name") or {}).get("own")
    if address is not None and is_loopback(str(address)):
        yield Remark(
            severity="info",
            what=f"the hostname of {{nodes}} resolves to {address}: harmless on one node, fatal on several",
            machine=host.machine,
        )
