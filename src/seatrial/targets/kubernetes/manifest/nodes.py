"""The pod of one node: an agent that starts its ranks, and in the first pod also the conductor."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.kubernetes.manifest.pod import EXPANDED, escaped, pod_template, seatrial_argv
from seatrial.targets.kubernetes.manifest.workload import Object, Workload


def node_template(
    workload: Workload, *, container: str, number: str, master: Mapping[str, str] | None = None
) -> Object:
    """Return the template of the pods that hold ranks.

    ``number``: the variable in which the operator or the Job controller gives the number of the pod; empty for the only
    pod. Kubernetes expands it when the pod starts. If the variable is missing, the text ``$(NAME)`` stays and the pod
    refuses it as not a number. ``master``: MASTER_ADDR and MASTER_PORT, if the operator does not set them.
    """
    node_rank = [f"SEATRIAL_NODE_RANK={EXPANDED.format(number)}"] if number else []
    # The operator adds its variables after ours, so only the command can refer to them.
    expanded = [f"{name}={value}" for name, value in (master or {}).items() if "$(" in value]
    constant = {name: escaped(value) for name, value in (master or {}).items() if "$(" not in value}
    env = {
        **({} if number else {"SEATRIAL_NODE_RANK": "0"}),
        "SEATRIAL_NNODES": str(workload.nodes),
        "SEATRIAL_NPROC_PER_NODE": str(workload.nproc_per_node),
    }
    assignments = [*node_rank, *expanded]
    command = [*(["env", *assignments] if assignments else []), *seatrial_argv(workload)]
    return pod_template(workload, container=container, command=command, env={**env, **constant})
