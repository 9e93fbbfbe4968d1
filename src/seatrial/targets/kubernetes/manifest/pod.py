"""The pod that all kinds share: one container without privileges, which can write only to its own volumes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from seatrial.targets.kubernetes.manifest.objects import (
    BUNDLE,
    START,
    code_contents,
    code_digest,
    code_volume,
    labels,
    part_names,
)
from seatrial.targets.kubernetes.manifest.openshift import service_account_name
from seatrial.targets.kubernetes.manifest.workload import (
    CODE,
    COPY,
    HOME,
    JOIN_TIMEOUT_S,
    SCRATCH,
    UID,
    Object,
    Toleration,
    Workload,
)

COMPONENT = "app.kubernetes.io/component"
"""Label: ``node`` for pods that hold ranks, ``launcher`` for one that starts them."""
NODE_NAME = "SEATRIAL_NODE_NAME"
_PULL_S = 1_800
"""Seconds for pulling the image: 20 GB take half an hour at 90 Mbit/s."""
_LAUNCHER_RESOURCES: Object = {
    # A namespace with a quota for limits accepts no pod without them.
    "requests": {"cpu": "250m", "memory": "256Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}
_OF_HOSTS: Object = {"options": [{"name": "ndots", "value": "2"}]}
"""On the network of its host a pod has the name of the host, which Gloo asks for. By default names of fewer than five
dots are asked for along the search path first: gpu-01.example.org would be Service ``example`` of a namespace ``org``.
A name with one dot still is, as that of a pod of ours needs it."""
# The proxies of service meshes would slow the ranks down, or take over their connections. Old releases of Istio read
# the annotation, new ones the label; its ambient mode has another label, and Linkerd reads an annotation.
_NO_MESH_LABELS = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
_NO_MESH_ANNOTATIONS = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
_GRACE_S = 60
"""Seconds from SIGTERM to SIGKILL: twice the time that a rank of a training has to save a checkpoint."""


_COPY_FILES = """import sys
del sys.path[: sys.path[:1] == [""]]
import hashlib, os
sha256, source, folder, names, *command = sys.argv[1:]
try:
    files = {name: open(f"{source}/{name}", "rb").read() for name in names.split()}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\\n".encode() + content)
    if digest.hexdigest() != sha256:
        raise OSError("they are not those of this manifest: somebody has changed a ConfigMap")
    os.makedirs(folder, 0o700, exist_ok=True)
    for name, content in files.items():
        with open(f"{folder}/{name}.new", "wb") as file:
            file.write(content)
        os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
    os.execvp(command[0], command)
except OSError as error:
    print(f"Error: this pod cannot start from the files in {source} ({error}).", file=sys.stderr)
    sys.exit(3)
"""
"""The first program of a pod. It stands in the workload, and compares what it finds in the ConfigMaps, which others in
the namespace may be allowed to replace, before anything of that is executed or read."""


def escaped(text: str) -> str:
    """Return the text for a field in which Kubernetes expands variables, so that ``$(HOME)`` stays as it is."""
    return text.replace("$", "$$")


EXPANDED = "$({})"
"""A variable of the container. Kubernetes expands it when the pod starts, even if an operator added it later."""


def _compared(workload: Workload, command: Sequence[str]) -> list[str]:
    """Return the command after the one that compares and copies all files; as it is where there are none."""
    contents = code_contents(workload)
    if not contents:
        return list(command)
    names = " ".join(sorted(contents))
    return [escaped(workload.python), "-c", _COPY_FILES, code_digest(contents), CODE, COPY, names, *command]


def copy_argv(workload: Workload) -> list[str]:
    """Return the command that joins the bundle in the pod and compares its SHA-256; empty if the image has seatrial."""
    if workload.bundle is None:
        return []
    parts = [f"{COPY}/{name}" for name in part_names(workload)]
    return [escaped(workload.python), f"{COPY}/{START}", hashlib.sha256(workload.bundle).hexdigest(), COPY, *parts]


def copied_argv(workload: Workload) -> list[str]:
    """Return the command where the bundle has been joined already: the joined file, or the package of the image."""
    code = ["-m", "seatrial"] if workload.bundle is None else [f"{COPY}/{BUNDLE}"]
    return [escaped(word) for word in (workload.python, *code, *workload.arguments)]


def seatrial_argv(workload: Workload) -> list[str]:
    """Return the command of a pod that holds ranks: it joins the bundle and starts it, or the package of the image."""
    if workload.bundle is None:
        return copied_argv(workload)
    return [*copy_argv(workload), "--", *map(escaped, workload.arguments)]


def _variables(workload: Workload) -> list[Object]:
    caches = {
        "HOME": HOME,
        # torch and Triton ask for a user name, and the image may have none for user 10001.
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
    """Return the names of the container's variables, for mpirun, which passes on only the variables it names."""
    return [*(entry["name"] for entry in _variables(workload)), "SEATRIAL_TOKEN"]


def pod_template(
    workload: Workload,
    *,
    container: str,
    command: Sequence[str],
    env: Mapping[str, str],
    component: str = "node",
    probe: Object | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
    fields: Mapping[str, str] = MappingProxyType({}),
) -> Object:
    """Return the template of a pod: its metadata and spec.

    Args:
        workload: The run.
        container: Name of the container; the operators look for it.
        command: Its command; Kubernetes expands variables in it.
        env: Variables beside those of all pods; Kubernetes expands variables in their values.
        component: ``node``, which gets the GPUs, or ``launcher``.
        probe: Readiness probe.
        secrets: Further variables from the Secret of the run: name -> key there.
        fields: Further variables from fields of the pod itself: name -> path of the field.
    """
    volumes, mounts = _volumes(workload)
    from_secret: list[Object] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": workload.run, "key": key}}}
        for name, key in {"SEATRIAL_TOKEN": "token", **secrets}.items()
    ]
    # Findings name the node, not the pod. mpirun must not pass these variables on: their values differ between pods.
    own: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in {NODE_NAME: "spec.nodeName", **fields}.items()
    ]
    main: Object = {
        "name": container,
        "image": workload.image,
        "command": _compared(workload, command),
        "env": [
            *_variables(workload),
            *({"name": name, "value": value} for name, value in env.items()),
            *(*own, *from_secret),
        ],
        "workingDir": HOME,
        "resources": _resources(workload) if component == "node" else _LAUNCHER_RESOURCES,
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
        # The pods do not use the API, and a Service named `master` would set MASTER_PORT.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security(workload),
        "containers": [main],
        "volumes": volumes,
        **_placement(workload, component),
    }
    if workload.deadline_s is not None:
        spec["activeDeadlineSeconds"] = _PULL_S + JOIN_TIMEOUT_S + math.ceil(workload.deadline_s)
    if (name := service_account_name(workload)) is not None:
        spec["serviceAccountName"] = name
    if workload.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in workload.pull_secrets]
    # A launcher on the machine of a worker would have its addresses: mpirun would take that worker for its own machine,
    # and start its ranks in the launcher, which has no GPU.
    if workload.host_network and component == "node":
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet", "dnsConfig": _OF_HOSTS}
    return {
        "metadata": {
            "labels": {**labels(workload), COMPONENT: component, **_NO_MESH_LABELS},
            "annotations": dict(_NO_MESH_ANNOTATIONS),
        },
        "spec": spec,
    }


def _security(workload: Workload) -> Object:
    # Under restricted-v2 OpenShift sets user and group from the range of the namespace, and refuses all others.
    # The kubelet would otherwise change the group of every file on a claim at each mount, for minutes or hours.
    user = {
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    user = {} if workload.openshift == "arbitrary-uid" else user
    groups = {"supplementalGroups": list(workload.supplemental_groups)} if workload.supplemental_groups else {}
    return {"runAsNonRoot": True, **user, **groups, "seccompProfile": {"type": "RuntimeDefault"}}


def _resources(workload: Workload) -> Object:
    amounts = dict(workload.resources)
    if workload.gpu_resource is not None:
        amounts[workload.gpu_resource] = str(workload.gpus_per_node)
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}


def _volumes(workload: Workload) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = [
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        # Without this volume it has 64 MiB. It counts against the memory limit.
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
    fields: Object = {}
    # A launcher has no GPU and may share any node.
    if component == "node":
        if workload.node_selector:
            fields["nodeSelector"] = dict(workload.node_selector)
        if workload.spread != "none" and workload.nodes > 1:
            fields["affinity"] = {"podAntiAffinity": _anti_affinity(workload)}
    tolerations = [_toleration(toleration) for toleration in workload.tolerations]
    return {**fields, **({"tolerations": tolerations} if tolerations else {})}


def _anti_affinity(workload: Workload) -> Object:
    term = {
        "labelSelector": {"matchLabels": {**labels(workload), COMPONENT: "node"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    if workload.spread == "required":
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _toleration(toleration: Toleration) -> Object:
    # The default operator is Equal, which would match only the empty value.
    operator = {"operator": "Exists"} if toleration.value is None else {"operator": "Equal", "value": toleration.value}
    effect = {} if toleration.effect is None else {"effect": toleration.effect}
    return {"key": toleration.key, **operator, **effect}
