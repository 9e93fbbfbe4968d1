"""``--on pytorchjob``: kubeflow.org/v1 (training-operator 1.7 to 1.9).

The operator numbers the pods in RANK, which is the node rank; seatrial starts the ranks of a pod itself. Manifests for
2 x 4, 4 x 2 and 8 x 1 therefore differ only in these two numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.targets.kubernetes.kind import Kind, Operator

if TYPE_CHECKING:
    from seatrial.targets.kubernetes.manifest.workload import Object, Workload


_PORT = "pytorchjob-port"


def _longest_name(workload: Workload) -> str:
    """Return the longest name of a pod that the cluster derives from the name of the run."""
    return max(f"{workload.run}-master-0", f"{workload.run}-worker-{max(workload.nodes - 2, 0)}", key=len)


def _render(workload: Workload) -> list[Object]:
    """Return the PyTorchJob; the operator creates a Service for each pod."""
    from seatrial.targets.kubernetes.manifest.objects import metadata

    replicas = {"Master": 1} | ({"Worker": workload.nodes - 1} if workload.nodes > 1 else {})
    spec: Object = {
        # A string in the schema. Without it the operator uses `auto`, which counts the CPUs of the host.
        "nprocPerNode": str(workload.nproc_per_node),
        "pytorchReplicaSpecs": {
            name: {"replicas": count, "restartPolicy": "Never", "template": _template(workload)}
            for name, count in replicas.items()
        },
        "runPolicy": {
            # Keep pods that have ended, for their logs. With a backoffLimit the operator up to 1.9.3 would delete all
            # pods at the first failure (kubeflow/trainer #3419); restartPolicy Never suffices.
            "cleanPodPolicy": "Running",
            **({"ttlSecondsAfterFinished": workload.ttl_s} if workload.ttl_s is not None else {}),
        },
    }
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata(workload), "spec": spec}]


def _template(workload: Workload) -> Object:
    from seatrial.targets.kubernetes.manifest.nodes import node_template

    template = node_template(workload, container="pytorch", number="RANK")
    if workload.host_network:
        # The operator's default port, 23456, would collide with other runs on the same host.
        ports = [{"name": _PORT, "containerPort": workload.master_port}]
        template["spec"]["containers"][0]["ports"] = ports
    return template


KIND = Kind(
    name="pytorchjob",
    order=30,
    help="a PyTorchJob of Kubeflow's training-operator",
    operator=Operator(
        release="Kubeflow's training-operator 1.7 to 1.9",
        api_kinds=("PyTorchJob",),
        instead="--on job, which needs none",
    ),
    index_label="training.kubeflow.org/replica-index",
    role_label="training.kubeflow.org/replica-type",
    nodes_before={"master": 0, "worker": 1},
    container="pytorch",
    render=_render,
    longest_name=_longest_name,
    takes_host_ports=True,
)
