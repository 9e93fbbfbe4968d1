"""Who makes pods of which kind, in the order in which they are asked: an owner before what it owns."""

from __future__ import annotations

from kubernetes.double.jobs import reconcile_job, reconcile_jobset
from kubernetes.double.kubeflow import reconcile_mpijob, reconcile_pytorchjob, reconcile_trainjob

__all__ = ["CONTROLLERS"]

CONTROLLERS = {
    "TrainJob": reconcile_trainjob,
    "JobSet": reconcile_jobset,
    "PyTorchJob": reconcile_pytorchjob,
    "MPIJob": reconcile_mpijob,
    "Job": reconcile_job,
}
