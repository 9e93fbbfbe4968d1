"""The pod that all kinds share: one container, no rights, and nothing that can be written but what is made for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from seatrial.kubernetes.objects import BUNDLE, code_volume, labels
from seatrial.kubernetes.openshift import account
from seatrial.kubernetes.workload import CODE, HOME, JOIN_TIMEOUT_S, SCRATCH, UID, Object, Toleration, Workload

__all__ = ["COMPONENT", "EXPANDED", "NODE_NAME", "env_names", "escaped", "pod_template", "seatrial_argv"]

COMPONENT = "app.kubernetes.io/component"
"""Label: ``node`` for pods that hold ranks, ``launcher`` for one that starts them."""
NODE_NAME = "SEATRIAL_NODE_NAME"
_PULL_S = 1_800
"""A pod that is still pulling its image after half an hour (20 GB at 90 Mbit/s) does not come."""
_GRACE_S = 60
"""From SIGTERM to SIGKILL: twice what a rank of a training is given to save."""


def escaped(text: str) -> str:
    """For a place where Kubernetes puts variables in: ``$(HOME)`` stays what it is."""
    return text.replace("$", "$$")


EXPANDED = "$({})"
"""A variable of the container, put in by Kubernetes itself, also where an operator adds it later."""


def seatrial_argv(workload: Workload) -> list[str]:
    """What is executed where ranks are: the file that travels, or the package of the image."""
    code = ["-m", "seatrial"] if workload.bundle is None else [f"{CODE}/{BUNDLE}"]
    return [escaped(word) for word in (workload.python, *code, *workload.arguments)]


def _variables(workload: Workload) -> list[Object]:
    caches = {
        "HOME": HOME,
        # An image that knows no user 10001: torch and Triton ask for a name.
        "USER": "seatrial",
        "XDG_CACHE_HOME": f"{HOME}/.cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{HOME}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{HOME}/.cache/triton",
        "PYTHONUNBUFFERED": "1",
        **({"SEATRIAL_JOIN_TIMEOUT_S": str(JOIN_TIMEOUT_S)} if workload.nodes > 1 else {}),
        **({"SEATRIAL_LIVE": workload.live} if workload.live is not None else {}),
    }
    return [{"name": name, "value": escaped(value)} for name, value in {**caches, **workload.env}.items()]


def env_names(workload: Workload) -> list[str]:
    """Of all variables of the container, for launchers that pass on what they are told to."""
    return [*(entry["name"] for entry in _variables(workload)), "SEATRIAL_TOKEN"]


def pod_template(
    workload: Workload,
    *,
    container: str,
    command: Sequence[str],
    env: Mapping[str, str],
    component: str = "node",
    probe: Object | None = None,
) -> Object:
    """Metadata and spec of a pod.

    ``container``: its name. ``env``: beside what all pods have; Kubernetes puts variables in. ``component``: ``node``
    gets the devices, ``launcher`` does not.
    """
    own = labels(workload)
    volumes, mounts = _volumes(workload)
    token = {"name": "SEATRIAL_TOKEN", "valueFrom": {"secretKeyRef": {"name": workload.run, "key": "token"}}}
    # What findings name: a pod has a name of its own. Not among those that MPI passes on, as each pod has another.
    node = {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    main: Object = {
        "name": container,
        "image": workload.image,
        "command": list(command),
        "env": [*_variables(workload), *({"name": name, "value": value} for name, value in env.items()), node, token],
        "workingDir": HOME,
        "resources": _resources(workload) if component == "node" else {"requests": {"cpu": "250m", "memory": "256Mi"}},
        **({"readinessProbe": probe} if probe else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": mounts,
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        # A token of the API is of no use here, and a Service named `master` would set MASTER_PORT.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security(workload),
        "containers": [main],
        "volumes": volumes,
        **_placement(workload, component),
    }
    if workload.deadline_s is not None:
        spec["activeDeadlineSeconds"] = _PULL_S + JOIN_TIMEOUT_S + math.ceil(workload.deadline_s)
    if (name := account(workload)) is not None:
        spec["serviceAccountName"] = name
    if workload.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in workload.pull_secrets]
    if workload.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {
        "metadata": {
            # Old releases of Istio read the annotation, new ones the label; a proxy would stand between the ranks.
            "labels": {**own, COMPONENT: component, "sidecar.istio.io/inject": "false"},
            "annotations": {"sidecar.istio.io/inject": "false"},
        },
        "spec": spec,
    }


def _security(workload: Workload) -> Object:
    # With restricted-v2 OpenShift fills in user and group out of the namespace's range, and refuses others.
    user = {} if workload.openshift == "arbitrary-uid" else {"runAsUser": UID, "runAsGroup": UID, "fsGroup": UID}
    groups = {"supplementalGroups": list(workload.supplemental_groups)} if workload.supplemental_groups else {}
    return {"runAsNonRoot": True, **user, **groups, "seccompProfile": {"type": "RuntimeDefault"}}


def _resources(workload: Workload) -> Object:
    wanted = dict(workload.resources)
    if workload.gpu_resource is not None:
        wanted[workload.gpu_resource] = str(workload.gpus_per_node)
    return {"requests": wanted, "limits": dict(wanted)} if wanted else {}


def _volumes(workload: Workload) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = [
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        # 64 MiB by default; counts against the memory limit.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": workload.shm_size}},
    ]
    mounts: list[Object] = [
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": SCRATCH},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    code = code_volume(workload)
    if code is not None:
        volumes.append({"name": "code", **code})
        mounts.append({"name": "code", "mountPath": CODE, "readOnly": True})
    for number, claim in enumerate(workload.claims):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim.name}})
        mounts.append({"name": f"claim-{number}", "mountPath": claim.path})
    return volumes, mounts


def _placement(workload: Workload, component: str) -> Object:
    placed: Object = {}
    # A launcher needs no device, and may share a node with anybody.
    if component == "node":
        if workload.node_selector:
            placed["nodeSelector"] = dict(workload.node_selector)
        if workload.spread != "none" and workload.nodes > 1:
            placed["affinity"] = {"podAntiAffinity": _apart(workload)}
    tolerations = [_toleration(toleration) for toleration in workload.tolerations]
    return {**placed, **({"tolerations": tolerations} if tolerations else {})}


def _apart(workload: Workload) -> Object:
    term = {
        "labelSelector": {"matchLabels": {**labels(workload), COMPONENT: "node"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    if workload.spread == "required":
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _toleration(toleration: Toleration) -> Object:
    # Without an operator it would be Equal, to the empty value.
    how = {"operator": "Exists"} if toleration.value is None else {"operator": "Equal", "value": toleration.value}
    effect = {} if toleration.effect is None else {"effect": toleration.effect}
    return {"key": toleration.key, **how, **effect}
