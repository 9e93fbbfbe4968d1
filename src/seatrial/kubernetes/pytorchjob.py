"""``--on pytorchjob``: kubeflow.org/v1 (training-operator 1.7 to 1.9).

The operator numbers pods by RANK, which is what seatrial calls a node; the ranks of a pod are ours to start, so the
same manifest is right for 2 x 4, 4 x 2 and 8 x 1.
"""

from __future__ import annotations

from seatrial.kubernetes.nodes import node_template
from seatrial.kubernetes.objects import metadata
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["longest_name", "render"]

_PORT = "pytorchjob-port"


def longest_name(workload: Workload) -> str:
    """The longest name that the cluster makes of the run's."""
    return max(f"{workload.run}-master-0", f"{workload.run}-worker-{max(workload.nodes - 2, 0)}", key=len)


def render(workload: Workload) -> list[Object]:
    """The PyTorchJob; the operator makes a Service for each pod."""
    replicas = {"Master": 1} | ({"Worker": workload.nodes - 1} if workload.nodes > 1 else {})
    spec: Object = {
        # The schema has a string; left out, the operator says `auto`, which counts the CPUs of the host.
        "nprocPerNode": str(workload.nproc_per_node),
        "pytorchReplicaSpecs": {
            name: {"replicas": count, "restartPolicy": "Never", "template": _template(workload)}
            for name, count in replicas.items()
        },
        "runPolicy": {
            "backoffLimit": 0,
            # Pods that have ended stay, for their logs.
            "cleanPodPolicy": "Running",
            **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        },
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata(workload), "spec": spec}]


def _template(workload: Workload) -> Object:
    template = node_template(workload, container="pytorch", number="RANK")
    if workload.host_network:
        # The operator's own port, 23456, would be taken on the host by each run alike.
        ports = [{"name": _PORT, "containerPort": workload.master_port}]
        template["spec"]["containers"][0]["ports"] = ports
    return template
