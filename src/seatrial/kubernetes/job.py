"""``--on job``: a batch/v1 Job, with nothing installed. More than one node: Indexed, and a Service for their names.

Floor: Kubernetes 1.24 (stable completion indexes); used as of 1.25.
"""

from __future__ import annotations

from seatrial.kubernetes.nodes import node_template
from seatrial.kubernetes.objects import metadata, service
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["longest_name", "render"]


def longest_name(workload: Workload) -> str:
    """The longest name that the cluster makes of the run's."""
    return f"{workload.run}-{workload.nodes - 1}-12345"


def render(workload: Workload) -> list[Object]:
    """The Service, if names are needed, and the Job."""
    several = workload.nodes > 1
    master = {"MASTER_ADDR": f"{workload.run}-0.{workload.run}", "MASTER_PORT": str(workload.master_port)}
    template = node_template(
        workload,
        container="seatrial",
        number="JOB_COMPLETION_INDEX" if several else "",
        master=master if several else None,
    )
    spec: Object = {
        # A Job would start a single pod again, and the others would wait in a rendezvous that is gone.
        "backoffLimit": 0,
        "completions": workload.nodes,
        "parallelism": workload.nodes,
        "completionMode": "Indexed" if several else "NonIndexed",
        **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        "template": template,
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(workload), "spec": spec}
    if not several:
        return [job]
    template["spec"]["subdomain"] = workload.run
    return [service(workload, {"job-name": workload.run}), job]
