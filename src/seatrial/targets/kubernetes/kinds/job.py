"""``--on job``: a batch/v1 Job, which needs no operator. Several nodes: an Indexed Job, with a Service for the names.

Completion indexes are stable since Kubernetes 1.24; seatrial requires 1.25.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.targets.kubernetes.kind import Kind

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload


def _longest_name(workload: Workload) -> str:
    """Return the longest name of a pod that the cluster derives from the name of the run."""
    return f"{workload.run}-{workload.nodes - 1}-12345"


def _render(workload: Workload) -> list[Object]:
    """Return the Service, if there are several pods, and the Job."""
    from seatrial.targets.kubernetes.manifest.nodes import node_template
    from seatrial.targets.kubernetes.manifest.objects import metadata, service

    several = workload.nodes > 1
    master = {"MASTER_ADDR": f"{workload.run}-0.{workload.run}", "MASTER_PORT": str(workload.master_port)}
    template = node_template(
        workload,
        container="seatrial",
        number="JOB_COMPLETION_INDEX" if several else "",
        master=master if several else None,
    )
    spec: Object = {
        # A Job would restart a single pod, while the others wait in a rendezvous that no longer exists.
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


KIND = Kind(
    name="job",
    order=10,
    help="a Job of Kubernetes, without an operator (--image)",
    operator=None,
    # The pod of a Job that is not Indexed has no such label.
    index_label="batch.kubernetes.io/job-completion-index",
    render=_render,
    longest_name=_longest_name,
)
