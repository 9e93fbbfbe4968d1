"""The controllers of the double of a cluster, in the order in which they run: an owner before its objects."""

from __future__ import annotations

from kubernetes.double.jobs import reconcile_job, reconcile_jobset
from kubernetes.double.kubeflow import reconcile_mpijob, reconcile_pytorchjob, reconcile_trainjob

CONTROLLERS = {
    "TrainJob": reconcile_trainjob,
    "JobSet": reconcile_jobset,
    "PyTorchJob": reconcile_pytorchjob,
    "MPIJob": reconcile_mpijob,
    "Job": reconcile_job,
}
