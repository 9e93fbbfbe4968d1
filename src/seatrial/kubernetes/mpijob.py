"""``--on mpijob``: kubeflow.org/v2beta1 (mpi-operator 0.5 and newer): a launcher and workers with sshd.

``runLauncherAsWorker`` is not used: the launcher would need a device and an sshd, and the host file another first line.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.kubernetes.mpi import SSH, launcher_template, mpi_files, worker_template
from seatrial.kubernetes.objects import metadata
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["files", "longest_name", "render"]

_CONTAINER = "mpi"
_IMPLEMENTATIONS = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}


def files(workload: Workload) -> Mapping[str, bytes]:
    """What launcher and workers need to reach one another."""
    return mpi_files()


def longest_name(workload: Workload) -> str:
    """The longest name that the cluster makes of the run's."""
    return max(f"{workload.run}-launcher-12345", f"{workload.run}-worker-{workload.nodes - 1}", key=len)


def render(workload: Workload) -> list[Object]:
    """The MPIJob; the operator makes the Service, the host file and the key."""
    launcher = launcher_template(workload, container=_CONTAINER)
    worker = worker_template(workload, container=_CONTAINER)
    for template in (launcher, worker):
        # What stands here is overridden by the replica's, with a warning.
        del template["spec"]["restartPolicy"]
    spec: Object = {
        "slotsPerWorker": workload.nproc_per_node,
        "mpiImplementation": _IMPLEMENTATIONS[workload.mpi],
        "sshAuthMountPath": SSH,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {
            "backoffLimit": 0,
            # The sshd of a worker never ends by itself.
            "cleanPodPolicy": "Running",
            **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": workload.nodes, "restartPolicy": "Never", "template": worker},
        },
    }
    return [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata(workload), "spec": spec}]
