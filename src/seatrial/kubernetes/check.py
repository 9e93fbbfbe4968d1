"""What is refused before anything is made of it: what a kind cannot do, and names that grow too long."""

from __future__ import annotations

import re

from seatrial.errors import RequestError
from seatrial.kubernetes.manifest import KINDS
from seatrial.kubernetes.parse import dns_label, quantity_bytes
from seatrial.kubernetes.trainjob import PATCHES
from seatrial.kubernetes.workload import Workload

__all__ = ["see_that_it_can_be"]

_MOST_NAME = 63
"""Of a host name, which every pod's name becomes."""
_IMAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._:/@-]{0,510}[A-Za-z0-9])?"


def see_that_it_can_be(kind: str, workload: Workload) -> None:
    """Raises RequestError, one sentence, for a workload that this kind cannot hold, or no cluster can."""
    _names(kind, workload)
    _amounts(workload)
    _devices(workload)
    _kind(kind, workload)


def _names(kind: str, workload: Workload) -> None:
    dns_label(workload.run, "--name")
    if workload.namespace is not None and not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", workload.namespace):
        raise RequestError(f"--namespace {workload.namespace[:80]!a}: that is no name of a namespace.")
    longest = KINDS[kind].longest_name(workload)
    if len(longest) > _MOST_NAME:
        raise RequestError(
            f"--name {workload.run}: a pod of it would be called {longest}, {len(longest)} characters, and {_MOST_NAME}"
            f" are the most; take a name that is at least {len(longest) - _MOST_NAME} shorter."
        )
    if not re.fullmatch(_IMAGE, workload.image):
        raise RequestError(f"--image {workload.image[:80]!a}: that is no name of an image.")


def _amounts(workload: Workload) -> None:
    if not 1 <= workload.nodes <= 10_000:
        raise RequestError(f"--nodes {workload.nodes}: a number from 1 to 10,000 is expected.")
    if workload.nproc_per_node < 1:
        raise RequestError(f"--nproc-per-node {workload.nproc_per_node}: at least one process is needed.")
    if workload.ttl_s is not None and not 0 <= workload.ttl_s < 2**31:
        raise RequestError(f"--ttl {workload.ttl_s}: a number of seconds from 0 is expected.")
    shm, memory = quantity_bytes(workload.shm_size, "--shm-size"), workload.resources.get("memory")
    if memory is not None and shm >= quantity_bytes(memory, "--memory"):
        raise RequestError(
            f"--shm-size {workload.shm_size} counts against --memory {memory}, and nothing would be left; ask for more"
            " memory."
        )


def _devices(workload: Workload) -> None:
    if workload.gpu_resource is None:
        if workload.gpus_per_node:
            raise RequestError(f"--gpus-per-node {workload.gpus_per_node} with --gpu-resource none: leave one out.")
        return
    if workload.gpus_per_node < 1:
        # A trial of CPUs would say PASS of devices that nobody looked at.
        raise RequestError(
            "--gpus-per-node N: say how many devices each node is to be given; for a trial of the CPUs alone say"
            " --gpu-resource none."
        )
    if workload.nproc_per_node > workload.gpus_per_node:
        raise RequestError(
            f"--nproc-per-node {workload.nproc_per_node}: there is one process for each device, and --gpus-per-node is"
            f" {workload.gpus_per_node}."
        )


def _kind(kind: str, workload: Workload) -> None:
    under_mpi = kind == "mpijob" or (kind == "trainjob" and workload.runtime == "mpi")
    if workload.host_network and KINDS[kind].takes_host_ports and workload.nodes > 1 and workload.spread != "required":
        raise RequestError(
            f"--host-network with --on {kind}: two pods on one node would take the same port; say --spread required."
        )
    if workload.max_restarts and kind != "jobset":
        raise RequestError(
            f"--max-restarts {workload.max_restarts}: {kind} starts single pods again, not all together;"
            " use --on jobset."
        )
    if workload.ttl_s is not None and kind == "trainjob":
        raise RequestError("--ttl: a TrainJob has no such field; delete it by its name, or use another target.")
    if kind == "trainjob":
        _trainer(workload)
    if workload.mpirun != "mpirun" and not under_mpi:
        raise RequestError(f"--mpirun {workload.mpirun[:80]!a}: MPI does not start these ranks; add --runtime mpi.")
    if under_mpi and workload.openshift == "arbitrary-uid":
        raise RequestError(
            "--openshift arbitrary-uid: ssh, by which mpirun starts the ranks, refuses a user who is not in /etc/passwd"
            " with a shell; use --openshift custom-scc, or a target without MPI (job, jobset, pytorchjob, trainjob)."
        )
    if workload.openshift == "custom-scc":
        if workload.namespace is None:
            raise RequestError("--openshift custom-scc: it names the namespace's account, so --namespace is needed.")
        if workload.service_account is not None:
            raise RequestError(
                f"--service-account {workload.service_account} with --openshift custom-scc: the run brings an account"
                " of its own; leave one out."
            )


def _trainer(workload: Workload) -> None:
    """A field that a release does not know is dropped without a word by some API servers."""
    own = PATCHES[workload.trainer_version]
    for release, field in PATCHES.items():
        if field != own and field in (workload.patch.workload.get("spec") or {}):
            raise RequestError(
                f"--patch: spec.{field} of a TrainJob is of Kubeflow Trainer {release}, and --trainer-version is"
                f" {workload.trainer_version}, which has spec.{own}; write that."
            )
