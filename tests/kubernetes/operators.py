"""A double of the Job controller and the operators: the variables that they add to containers.

Taken from their sources (kubernetes 1.31 `pkg/controller/job`, training-operator release-1.9
`pkg/controller.v1/pytorch/envvar.go`, trainer `pkg/runtime/framework/plugins/torch/torch.go`), not from our renderer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from seatrial.targets.kubernetes.manifest.workload import Object


def _index(number: int, nodes: int, nproc_per_node: int) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(number)}


def _pytorchjob(number: int, nodes: int, nproc_per_node: int) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "MASTER_ADDR": "trial-1-master-0",
        "PET_MASTER_ADDR": "trial-1-master-0",
        "WORLD_SIZE": str(nodes * nproc_per_node),
        "RANK": str(number),
        "PET_NPROC_PER_NODE": str(nproc_per_node),
        "PET_NODE_RANK": str(number),
        "PET_NNODES": str(nodes),
    }


def _trainjob(number: int, nodes: int, nproc_per_node: int) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(number),
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(nproc_per_node),
        "PET_NODE_RANK": str(number),
        "PET_MASTER_ADDR": "trial-1-node-0-0.trial-1",
        "PET_MASTER_PORT": "29500",
    }


INJECTED = {"job": _index, "jobset": _index, "pytorchjob": _pytorchjob, "trainjob": _trainjob}
"""Kind -> variables that the container of pod ``number`` gets after those of the manifest."""


def started(
    container: Object, injected: dict[str, str], secret: Mapping[str, str], address: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Command and environment as the kubelet makes them: later variables win, known ones are put in for ``$(NAME)``.

    ``secret``: what is in the Secret of the run; ``address``: that of the pod.
    """
    environ: dict[str, str] = {}
    for entry in container["env"]:
        if "fieldRef" in (source := entry.get("valueFrom", {})):
            environ[entry["name"]] = {"spec.nodeName": "node-0", "status.podIP": address}[
                source["fieldRef"]["fieldPath"]
            ]
        else:
            environ[entry["name"]] = (
                secret[source["secretKeyRef"]["key"]] if source else _expanded(entry["value"], environ)
            )
    environ |= injected
    return [_expanded(word, environ) for word in container["command"]], environ


def _expanded(text: str, environ: dict[str, str]) -> str:
    def put_in(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environ.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", put_in, text)
