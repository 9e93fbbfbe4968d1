"""``--on jobset``: jobset.x-k8s.io/v1alpha2, one replicated Job whose pods are the nodes; all of them live or none.

Floor: JobSet 0.5.
"""

from __future__ import annotations

from seatrial.kubernetes.nodes import node_template
from seatrial.kubernetes.objects import metadata
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["longest_name", "render"]

_JOB = "node"


def longest_name(workload: Workload) -> str:
    """The longest name that the cluster makes of the run's."""
    return f"{workload.run}-{_JOB}-0-{workload.nodes - 1}-12345"


def render(workload: Workload) -> list[Object]:
    """The JobSet; it makes its Service itself."""
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
        # With this and the Job's backoffLimit of 0 the end of one pod is the end of all, and all start again or none.
        "failurePolicy": {"maxRestarts": workload.max_restarts},
        **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        # One replica: several would be Jobs that each count their pods from 0.
        "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata(workload), "spec": spec}]
