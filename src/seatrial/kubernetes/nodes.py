"""The command of a pod that is one node: an agent that starts the ranks, and in the first one the conductor, too."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.kubernetes.pod import EXPANDED, escaped, pod_template, seatrial_argv
from seatrial.kubernetes.workload import Object, Workload

__all__ = ["node_template"]


def node_template(
    workload: Workload, *, container: str, number: str, master: Mapping[str, str] | None = None
) -> Object:
    """The template of such pods.

    ``number``: the variable with the number of the pod, which the operator or the Job controller adds. It is put in
    at the pod's start; where nobody has added it, the words ``$(NAME)`` stay and are refused there as no number.
    ``master``: MASTER_ADDR and MASTER_PORT, where the operator does not add them.
    """
    place = [f"SEATRIAL_NODE_RANK={EXPANDED.format(number)}"] if number else []
    # An operator adds these after the variables here, so they can be put into the command only.
    later = [f"{name}={value}" for name, value in (master or {}).items() if "$(" in value]
    now = {name: escaped(value) for name, value in (master or {}).items() if "$(" not in value}
    marks = {
        **({} if number else {"SEATRIAL_NODE_RANK": "0"}),
        "SEATRIAL_NNODES": str(workload.nodes),
        "SEATRIAL_NPROC_PER_NODE": str(workload.nproc_per_node),
    }
    words = [*place, *later]
    command = [*(["env", *words] if words else []), *seatrial_argv(workload)]
    return pod_template(workload, container=container, command=command, env={**marks, **now})
