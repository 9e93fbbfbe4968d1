"""Checks of a workload before it is rendered: requests that a kind cannot hold, and names that become too long."""

from __future__ import annotations

import re

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kind import Kind
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.parse import dns_label, quantity_bytes
from seatrial.targets.kubernetes.manifest.workload import Workload

_MAX_NAME = 63
"""Characters of a host name; every pod has its name as host name."""
_IMAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._:/@-]{0,510}[A-Za-z0-9])?"


def validate_workload(target: str, workload: Workload) -> None:
    """Raise RequestError for a workload that this kind, or any cluster, cannot hold."""
    kind = KINDS[target]
    workload = kind.with_defaults(workload)
    _names(kind, workload)
    _amounts(workload)
    _devices(workload)
    _kind(kind, workload)


def _names(kind: Kind, workload: Workload) -> None:
    dns_label(workload.run, "--name")
    if workload.namespace is not None and not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", workload.namespace):
        raise RequestError(
            f"--namespace {workload.namespace[:80]!a}: expected lowercase letters, digits and dashes, at most 63."
        )
    longest = kind.longest_name(workload)
    if len(longest) > _MAX_NAME:
        raise RequestError(
            f"--name {workload.run}: a pod would be called {longest}, which has {len(longest)} characters; the limit is"
            f" {_MAX_NAME}: use a name that is at least {len(longest) - _MAX_NAME} characters shorter."
        )
    if not re.fullmatch(_IMAGE, workload.image):
        raise RequestError(
            f"--image {workload.image[:80]!a}: expected the name of an image, such as registry.example.com/torch:2.13."
        )


def _amounts(workload: Workload) -> None:
    if not 1 <= workload.nodes <= 10_000:
        raise RequestError(f"--nodes {workload.nodes}: expected a number from 1 to 10,000.")
    if workload.nproc_per_node < 1:
        raise RequestError(f"--nproc-per-node {workload.nproc_per_node}: expected at least one process.")
    if workload.ttl_s is not None and not 0 <= workload.ttl_s < 2**31:
        raise RequestError(f"--ttl {workload.ttl_s}: expected a number of seconds, at least 0.")
    shm, memory = quantity_bytes(workload.shm_size, "--shm-size"), workload.resources.get("memory")
    if memory is not None and shm >= quantity_bytes(memory, "--memory"):
        raise RequestError(
            f"--shm-size {workload.shm_size} counts against --memory {memory}, which leaves no memory; raise --memory."
        )


def _devices(workload: Workload) -> None:
    if workload.gpu_resource is None:
        if workload.gpus_per_node:
            raise RequestError(
                f"--gpus-per-node {workload.gpus_per_node} with --gpu-resource none: leave one of them out."
            )
        return
    if workload.gpus_per_node < 1:
        if workload.gpus_per_node < 0:
            raise RequestError(f"--gpus-per-node {workload.gpus_per_node}: expected a number from 1.")
        # A trial of the CPUs would report PASS for GPUs that it never used.
        raise RequestError(
            "--gpus-per-node N is required, the number of GPUs of each node; for a trial of the CPUs alone add"
            " --gpu-resource none."
        )
    if workload.nproc_per_node > workload.gpus_per_node:
        raise RequestError(
            f"--nproc-per-node {workload.nproc_per_node} needs one GPU for each process, and --gpus-per-node is only"
            f" {workload.gpus_per_node}."
        )


def _without_ports() -> str:
    return " or ".join(f"--on {other.name}" for other in KINDS.values() if not other.takes_host_ports)


def _kind(kind: Kind, workload: Workload) -> None:
    if workload.host_network and kind.takes_host_ports and workload.nodes > 1 and workload.spread != "required":
        raise RequestError(
            f"--host-network with --on {kind.name}: its pods all reserve the same port of their node, so no two fit on"
            f" one; add --spread required, let pods share nodes with {_without_ports()}, whose pods reserve none, or"
            " leave --host-network out."
        )
    if workload.patch.runtime and not kind.needs_objects_first:
        brings = " or ".join(f"--on {other.name}" for other in KINDS.values() if other.needs_objects_first)
        raise RequestError(f"--patch: runtime is for {brings}; {kind.name} has no such object, so leave it out.")
    if workload.max_restarts and not kind.restart_label:
        instead = " or ".join(f"--on {other.name}" for other in KINDS.values() if other.restart_label)
        raise RequestError(
            f"--max-restarts {workload.max_restarts}: {kind.name} restarts single pods, not all together;"
            f" use {instead}."
        )
    kind.validate(workload)
    if kind.under_mpi(workload.kind_options) and workload.openshift == "arbitrary-uid":
        instead = ", ".join(other.name for other in KINDS.values() if not other.under_mpi({}))
        raise RequestError(
            "--openshift arbitrary-uid: mpirun starts the ranks over ssh, which refuses a user without a line and a"
            f" shell in /etc/passwd; use --openshift custom-scc, or a target without MPI ({instead})."
        )
    if workload.openshift == "custom-scc":
        if workload.namespace is None:
            raise RequestError(
                "--openshift custom-scc requires --namespace, since the constraint names an account in it."
            )
        if workload.service_account is not None:
            raise RequestError(
                f"--service-account {workload.service_account} with --openshift custom-scc: custom-scc makes a separate"
                " account for the run; leave one of them out."
            )
