"""``--on mpijob``: kubeflow.org/v2beta1 (mpi-operator 0.5 and newer), a launcher and workers with sshd.

``runLauncherAsWorker`` is not used: the launcher would need a GPU and an sshd, and the host file another first line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kind import Kind, Operator
from seatrial.targets.option import MPIRUN, Option

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload


_CONTAINER = "mpi"
_IMPLEMENTATIONS = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
_MPI = Option(
    flags=("--mpi",),
    name="mpi",
    help="MPI implementation in the image.",
    type=tuple(_IMPLEMENTATIONS),
    default="openmpi",
)


def _files(workload: Workload) -> Mapping[str, bytes]:
    """Return the ssh configuration of launcher and workers."""
    from seatrial.targets.kubernetes.manifest.mpi_launcher import mpi_files

    return mpi_files()


def _longest_name(workload: Workload) -> str:
    """Return the longest name of a pod that the cluster derives from the name of the run."""
    return max(f"{workload.run}-launcher-12345", f"{workload.run}-worker-{workload.nodes - 1}", key=len)


def _render(workload: Workload) -> list[Object]:
    """Return the MPIJob; the operator creates the Service and the host file."""
    from seatrial.targets.kubernetes.manifest.mpi_launcher import SSH, launcher_template, worker_template
    from seatrial.targets.kubernetes.manifest.objects import metadata

    mpi, mpirun = workload.kind_options["mpi"], workload.kind_options["mpirun"]
    host = f"{workload.run}-worker-{{}}.{workload.run}"
    launcher = launcher_template(workload, container=_CONTAINER, host=host, mpi=mpi, mpirun=mpirun)
    worker = worker_template(workload, container=_CONTAINER)
    for template in (launcher, worker):
        # The operator overrides this field by that of the replica, with a warning.
        del template["spec"]["restartPolicy"]
    spec: Object = {
        "slotsPerWorker": workload.nproc_per_node,
        "mpiImplementation": _IMPLEMENTATIONS[mpi],
        "sshAuthMountPath": SSH,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {
            "backoffLimit": 0,
            # The sshd of a worker never exits by itself.
            "cleanPodPolicy": "Running",
        },
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": workload.nodes, "restartPolicy": "Never", "template": worker},
        },
    }
    return [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata(workload), "spec": spec}]


def _validate(workload: Workload) -> None:
    if workload.ttl_s is not None:
        raise RequestError(
            f"--ttl {workload.ttl_s}: mpi-operator deletes only the launcher then, and the MPIJob with its nodes stays;"
            " delete it by name, or use --on job or --on jobset."
        )


KIND = Kind(
    name="mpijob",
    order=50,
    help="an MPIJob of Kubeflow's mpi-operator",
    operator=Operator(
        release="Kubeflow's mpi-operator 0.5 or newer (training-operator has another MPIJob, v1)",
        api_kinds=("MPIJob",),
        instead="--on job, which needs neither an operator nor MPI",
    ),
    index_label="training.kubeflow.org/replica-index",
    container=_CONTAINER,
    render=_render,
    longest_name=_longest_name,
    # Of the launcher.
    owners=("job.batch",),
    files=_files,
    takes_host_ports=True,
    options=(_MPI, MPIRUN),
    under_mpi=lambda kind_options: True,
    mpi_options="--on mpijob",
    validate=_validate,
)
