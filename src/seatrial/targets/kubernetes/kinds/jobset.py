"""``--on jobset``: jobset.x-k8s.io/v1alpha2, one replicated Job whose pods are the nodes and end together.

The oldest supported release is JobSet 0.6, the first with ``network.publishNotReadyAddresses``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.targets.kubernetes.kind import Kind, Operator

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload


_JOB = "node"


def _longest_name(workload: Workload) -> str:
    """Return the longest name of a pod that the cluster derives from the name of the run."""
    return f"{workload.run}-{_JOB}-0-{workload.nodes - 1}-12345"


def _render(workload: Workload) -> list[Object]:
    """Return the JobSet, whose controller creates the Service."""
    from seatrial.targets.kubernetes.manifest.nodes import node_template
    from seatrial.targets.kubernetes.manifest.objects import metadata

    master = {
        "MASTER_ADDR": f"{workload.run}-{_JOB}-0-0.{workload.run}",
        "MASTER_PORT": str(workload.master_port),
    }
    job = {
        "backoffLimit": 0,
        "completions": workload.nodes,
        "parallelism": workload.nodes,
        "completionMode": "Indexed",
        "template": node_template(workload, container="seatrial", number="JOB_COMPLETION_INDEX", master=master),
    }
    spec: Object = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": workload.run},
        "successPolicy": {"operator": "All"},
        # With this and backoffLimit 0 of the Job, a pod that fails ends all others, and all of them restart together.
        "failurePolicy": {"maxRestarts": workload.max_restarts},
        **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        # One replica: each of several Jobs would count its pods from 0.
        "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata(workload), "spec": spec}]


KIND = Kind(
    name="jobset",
    order=20,
    help="a JobSet",
    operator=Operator(
        release="JobSet 0.6 or newer (kubernetes-sigs/jobset)",
        api_kinds=("JobSet",),
        instead="--on job, which needs none",
    ),
    index_label="batch.kubernetes.io/job-completion-index",
    render=_render,
    longest_name=_longest_name,
    owners=("job.batch",),
    restart_label="jobset.sigs.k8s.io/restart-attempt",
)
