"""``--on trainjob``: trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 2.0 and newer).

The run brings a TrainingRuntime of its own. The patches that a TrainJob can make to a runtime of the cluster have no
field for the token of the API, the network of the host and probes, and they have had another name in each release
(``PATCHES``); so this manifest is the same for all of them, and the release matters to a user's own patch only.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.kubernetes.mpi import SSH, launcher_template, mpi_files, worker_template
from seatrial.kubernetes.nodes import node_template
from seatrial.kubernetes.objects import metadata
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["NEWEST", "PATCHES", "files", "longest_name", "render"]

PATCHES: Mapping[str, str] = {"2.0": "podSpecOverrides", "2.1": "podTemplateOverrides", "2.2+": "runtimePatches"}
"""Release of Trainer -> the field of a TrainJob's spec in which it patches its runtime."""
NEWEST = "2.2+"
_API = "trainer.kubeflow.org/v1alpha1"
_NODE = "node"
_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def files(workload: Workload) -> Mapping[str, bytes]:
    """What launcher and nodes need to reach one another, if MPI starts the ranks."""
    return mpi_files() if workload.runtime == "mpi" else {}


def longest_name(workload: Workload) -> str:
    """The longest name that the cluster makes of the run's."""
    name = f"{workload.run}-{_NODE}-0-{workload.nodes - 1}-12345"
    return max(name, f"{workload.run}-launcher-0-0-12345", key=len) if workload.runtime == "mpi" else name


def render(workload: Workload) -> list[Object]:
    """The runtime and the TrainJob; its controller makes a JobSet."""
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": metadata(workload),
        "spec": _mpi(workload) if workload.runtime == "mpi" else _torch(workload),
    }
    job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(workload),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": workload.run},
            # The controller adds its variables only where there is a trainer.
            "trainer": {"numNodes": workload.nodes, "numProcPerNode": workload.nproc_per_node},
        },
    }
    return [runtime, job]


def _template(workload: Workload) -> Object:
    master = {"MASTER_ADDR": "$(PET_MASTER_ADDR)", "MASTER_PORT": "$(PET_MASTER_PORT)"}
    return node_template(workload, container=_NODE, number="PET_NODE_RANK", master=master)


def _torch(workload: Workload) -> Object:
    return {
        "mlPolicy": {"numNodes": workload.nodes, "torch": {}},
        "template": {"spec": _jobset([_job(_NODE, _template(workload), trainer=True)])},
    }


def _mpi(workload: Workload) -> Object:
    launcher = _job("launcher", launcher_template(workload, container=_NODE), trainer=True)
    launcher["dependsOn"] = [{"name": _NODE, "status": "Ready"}]
    spec = _jobset([_job(_NODE, worker_template(workload, container=_NODE), trainer=False), launcher])
    # The sshd of a node never ends by itself.
    spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    return {
        "mlPolicy": {
            "numNodes": workload.nodes,
            "mpi": {
                "mpiImplementation": "OpenMPI",
                "numProcPerNode": workload.nproc_per_node,
                "sshAuthMountPath": SSH,
                "runLauncherAsNode": False,
            },
        },
        "template": {"spec": spec},
    }


def _jobset(jobs: list[Object]) -> Object:
    return {
        "network": {"publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": jobs,
    }


def _job(name: str, template: Object, *, trainer: bool) -> Object:
    job: Object = {"spec": {"backoffLimit": 0, "template": template}}
    return {"name": name, "replicas": 1, "template": {**({"metadata": {"labels": _TRAINER}} if trainer else {}), **job}}
