"""``--on trainjob``: trainer.kubeflow.org/v1alpha1 (Kubeflow Trainer 2.0 and newer).

The run brings a separate TrainingRuntime. A TrainJob can patch a runtime of the cluster, but these patches have no
field for the API token, the host network and probes, and their name differs between releases (``PATCHES``). With a
separate runtime one manifest fits all releases; the release matters only to ``--patch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seatrial.errors import RequestError
from seatrial.targets.kubernetes.kind import Kind, Operator, SpecFields
from seatrial.targets.option import MPIRUN, Option

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload


PATCHES: Mapping[str, str] = {"2.0": "podSpecOverrides", "2.1": "podTemplateOverrides", "2.2+": "runtimePatches"}
"""Release of Kubeflow Trainer -> the field in the spec of a TrainJob that patches its runtime."""
_NEWEST = "2.2+"
_DEFINITION = "trainjobs.trainer.kubeflow.org"
_API = "trainer.kubeflow.org/v1alpha1"
_NODE = "node"
_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_RUNTIME = Option(
    flags=("--runtime",),
    name="runtime",
    help="Whether torch or mpirun starts the ranks.",
    type=("torch", "mpi"),
    default="torch",
)
_TRAINER_VERSION = Option(
    flags=("--trainer-version",),
    name="trainer_version",
    help="Release of Kubeflow Trainer, for --patch. Default: the one of the cluster, else 2.2+.",
    type=tuple(PATCHES),
)


def _under_mpi(kind_options: Mapping[str, Any]) -> bool:
    return kind_options.get("runtime") == "mpi"


def _files(workload: Workload) -> Mapping[str, bytes]:
    """Return the ssh configuration of launcher and nodes if mpirun starts the ranks."""
    from seatrial.targets.kubernetes.manifest.mpi_launcher import mpi_files

    return mpi_files() if _under_mpi(workload.kind_options) else {}


def _longest_name(workload: Workload) -> str:
    """Return the longest name of a pod that the cluster derives from the name of the run."""
    name = f"{workload.run}-{_NODE}-0-{workload.nodes - 1}-12345"
    return max(name, f"{workload.run}-launcher-0-0-12345", key=len) if _under_mpi(workload.kind_options) else name


def _render(workload: Workload) -> list[Object]:
    """Return the TrainingRuntime and the TrainJob, whose controller creates a JobSet."""
    from seatrial.targets.kubernetes.manifest.objects import metadata

    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": metadata(workload),
        "spec": _mpi(workload) if _under_mpi(workload.kind_options) else _torch(workload),
    }
    job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(workload),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": workload.run},
            # The controller adds its variables only to a job with a trainer.
            "trainer": {"numNodes": workload.nodes, "numProcPerNode": workload.nproc_per_node},
        },
    }
    return [runtime, job]


def _template(workload: Workload) -> Object:
    from seatrial.targets.kubernetes.manifest.nodes import node_template

    master = {"MASTER_ADDR": "$(PET_MASTER_ADDR)", "MASTER_PORT": "$(PET_MASTER_PORT)"}
    return node_template(workload, container=_NODE, number="PET_NODE_RANK", master=master)


def _torch(workload: Workload) -> Object:
    return {
        "mlPolicy": {"numNodes": workload.nodes, "torch": {}},
        "template": {"spec": _jobset([_job(_NODE, _template(workload), trainer=True)])},
    }


def _mpi(workload: Workload) -> Object:
    from seatrial.targets.kubernetes.manifest.mpi_launcher import SSH, launcher_template, worker_template

    host, mpirun = f"{workload.run}-{_NODE}-0-{{}}.{workload.run}", workload.kind_options["mpirun"]
    template = launcher_template(workload, container=_NODE, host=host, mpi="openmpi", mpirun=mpirun)
    launcher = _job("launcher", template, trainer=True)
    launcher["dependsOn"] = [{"name": _NODE, "status": "Ready"}]
    spec = _jobset([_job(_NODE, worker_template(workload, container=_NODE), trainer=False), launcher])
    # The sshd of a node never exits by itself.
    spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    return {
        "mlPolicy": {
            # Trainer counts the pods of the job with the label `trainer` by this number, and the nodes by that of the
            # TrainJob: with any other number here there would be several launchers.
            "numNodes": 1,
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


def _resolve(workload: Workload, spec_fields: SpecFields | None) -> Workload:
    """Return the workload with the release of Trainer. The cluster is asked only if the release matters.

    Not every user may read resource definitions. Raises RequestError when the release is needed and cannot be read.
    """
    release = workload.kind_options["trainer_version"]
    if release is None and spec_fields is not None and _patched_fields(workload):
        release = _release(spec_fields)
    return replace(workload, kind_options={**workload.kind_options, "trainer_version": release or _NEWEST})


def _release(spec_fields: SpecFields) -> str:
    known, why = spec_fields(_DEFINITION)
    for release, field in reversed(tuple(PATCHES.items())):
        if field in known:
            return release
    raise RequestError(
        "--patch: the release of Kubeflow Trainer in this cluster cannot be read"
        f" ({why or 'its TrainJob has none of the known patch fields'}); give it with --trainer-version."
    )


def _patched_fields(workload: Workload) -> Mapping[str, str]:
    """Return the entries of ``PATCHES`` whose field ``--patch`` sets."""
    spec = workload.patch.workload.get("spec") or {}
    return {release: field for release, field in PATCHES.items() if field in spec}


def _validate(workload: Workload) -> None:
    if workload.ttl_s is not None:
        raise RequestError("--ttl: a TrainJob has no such field; delete it by name, or use another target.")
    # Some API servers silently drop a field that this release does not know.
    chosen = workload.kind_options["trainer_version"] or _NEWEST
    for release, field in _patched_fields(workload).items():
        if field != PATCHES[chosen]:
            raise RequestError(
                f"--patch: spec.{field} of a TrainJob belongs to Kubeflow Trainer {release}, but --trainer-version is"
                f" {chosen}, which has spec.{PATCHES[chosen]}; use that field."
            )
    mpirun = workload.kind_options["mpirun"]
    if mpirun != MPIRUN.default and not _under_mpi(workload.kind_options):
        raise RequestError(f"--mpirun {mpirun[:80]!a}: mpirun does not start these ranks; add --runtime mpi.")


KIND = Kind(
    name="trainjob",
    order=40,
    help="a TrainJob of Kubeflow Trainer",
    operator=Operator(
        release="Kubeflow Trainer 2.0 or newer",
        api_kinds=("TrainJob", "TrainingRuntime"),
        instead="--on job, which needs none",
    ),
    # The controller creates a JobSet.
    index_label="batch.kubernetes.io/job-completion-index",
    container=_NODE,
    render=_render,
    longest_name=_longest_name,
    owners=("job.batch", "jobset.jobset.x-k8s.io"),
    files=_files,
    takes_host_ports=True,
    # The TrainJob refers to the runtime of the run.
    needs_objects_first=True,
    options=(_RUNTIME, _TRAINER_VERSION, MPIRUN),
    under_mpi=_under_mpi,
    mpi_options="--on trainjob --runtime mpi",
    resolve=_resolve,
    validate=_validate,
)
