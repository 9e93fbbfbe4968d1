"""OpenShift's admission of pods in the double of a cluster: which constraint admits a pod, and what it sets.

Recorded from openshift/apiserver-library-go (pkg/securitycontextconstraints), the manifest of restricted-v2 in
openshift/cluster-kube-apiserver-operator, and openshift/cluster-policy-controller (ranges of namespaces), 4.12 and
newer; nothing here is taken from our renderer.

It lacks, compared with OpenShift: priorities, restrictions of seccomp and SELinux, constraints that name users.
"""

from __future__ import annotations

from typing import Any

from kubernetes.double.store import Object, Store

FIRST_UID = 1_000_680_000
_COUNT = 10_000
_ANNOTATION = "openshift.io/sa.scc.uid-range"
_GROUP = "security.openshift.io"
_VOLUMES = ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
_RESTRICTED: Object = {
    "metadata": {"name": "restricted-v2"},
    "allowHostNetwork": False,
    "allowHostPorts": False,
    "allowPrivilegeEscalation": False,
    "fsGroup": {"type": "MustRunAs"},
    "requiredDropCapabilities": ["ALL"],
    "runAsUser": {"type": "MustRunAsRange"},
    "volumes": _VOLUMES,
}


def ranges() -> Object:
    """Annotations of a namespace."""
    return {_ANNOTATION: f"{FIRST_UID}/{_COUNT}"}


def admit(store: Store, pod: Object, namespace: str) -> str:
    """Fills in what the first constraint that fits wants; else why none does."""
    complaints = []
    # The one that changes nothing is preferred, and what an account was given by name is more open than the rest.
    for constraint in (*_given(store, pod, namespace), _RESTRICTED):
        wrong = _problems(constraint, pod)
        if not wrong:
            _fill_in(constraint, pod)
            return ""
        complaints += [f"provider {constraint['metadata']['name']}: {each}" for each in wrong]
    return f"unable to validate against any security context constraint: [{', '.join(complaints)}]"


def _given(store: Store, pod: Object, namespace: str) -> list[Object]:
    """Those that a Role lets the pod's account use."""
    account = pod["spec"].get("serviceAccountName", "default")
    found = []
    for binding in store.each("RoleBinding", namespace):
        subjects = binding["subjects"]
        mine = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        role = store.get("Role", namespace, binding["roleRef"]["name"])
        if role is None or not any(mine.items() <= subject.items() for subject in subjects):
            continue
        for rule in role["rules"]:
            if "use" in rule["verbs"] and _GROUP in rule["apiGroups"]:
                found += [store.get("SecurityContextConstraints", "", name) for name in rule["resourceNames"]]
    return [constraint for constraint in found if constraint is not None]


def _problems(constraint: Object, pod: Object) -> list[str]:
    spec = pod["spec"]
    shared, wrong = spec.get("securityContext", {}), []
    place = ".spec.securityContext"
    group = shared.get("fsGroup")
    if group is not None and not _fits(constraint["fsGroup"], group):
        wrong.append(f"{place}.fsGroup: Invalid value: []int64{{{group}}}: {group} is not an allowed group")
    if spec.get("hostNetwork") and not constraint["allowHostNetwork"]:
        wrong.append(f"{place}.hostNetwork: Invalid value: true: Host network is not allowed to be used")
    for volume in spec.get("volumes", ()):
        (kind,) = (key for key in volume if key != "name")
        if kind not in constraint["volumes"]:
            wrong.append(f'spec.volumes: Invalid value: "{kind}": {kind} volumes are not allowed to be used')
    for place, container in _containers(spec):
        own = container.get("securityContext", {})
        user = own.get("runAsUser", shared.get("runAsUser"))
        if user is not None:
            wrong += [f"{place}.runAsUser: Invalid value: {user}: {why}" for why in _wrong_user(constraint, user)]
        if own.get("allowPrivilegeEscalation") and not constraint["allowPrivilegeEscalation"]:
            why = "Invalid value: true: Allowing privilege escalation for containers is not allowed"
            wrong.append(f"{place}.allowPrivilegeEscalation: {why}")
        if own.get("privileged"):
            wrong.append(f"{place}.privileged: Invalid value: true: Privileged containers are not allowed")
        added = own.get("capabilities", {}).get("add", ())
        wrong += [
            f'{place}.capabilities.add: Invalid value: "{name}": capability may not be added'
            for name in added
            if name != "NET_BIND_SERVICE"
        ]
        for port in container.get("ports", ()):
            if ("hostPort" in port or spec.get("hostNetwork")) and not constraint["allowHostPorts"]:
                wrong.append(
                    f"{place}.hostPort: Invalid value: {port['containerPort']}: Host ports are not allowed to be used"
                )
    return wrong


def _containers(spec: Object) -> list[tuple[str, Object]]:
    found = []
    for word in ("initContainers", "containers"):
        found += [(f".{word}[{number}]", container) for number, container in enumerate(spec.get(word, ()))]
    return found


def _fits(strategy: Object, value: int) -> bool:
    if strategy["type"] == "RunAsAny":
        return True
    told = strategy.get("ranges") or [{"min": FIRST_UID, "max": FIRST_UID}]
    return any(each["min"] <= value <= each["max"] for each in told)


def _wrong_user(constraint: Object, user: int) -> list[str]:
    strategy = constraint["runAsUser"]
    if strategy["type"] == "MustRunAs" and user != strategy["uid"]:
        return [f"must be: {strategy['uid']}"]
    last = FIRST_UID + _COUNT - 1
    if strategy["type"] == "MustRunAsRange" and not FIRST_UID <= user <= last:
        return [f"must be in the ranges: [{FIRST_UID}, {last}]"]
    return []


def _fill_in(constraint: Object, pod: Object) -> None:
    shared: dict[str, Any] = pod["spec"].setdefault("securityContext", {})
    strategy = constraint["fsGroup"]
    if strategy["type"] == "MustRunAs":
        told = strategy.get("ranges") or [{"min": FIRST_UID}]
        shared.setdefault("fsGroup", told[0]["min"])
    user = constraint["runAsUser"].get("uid", FIRST_UID)
    for _, container in _containers(pod["spec"]):
        own = container.setdefault("securityContext", {})
        if "runAsUser" not in shared:
            own.setdefault("runAsUser", user)
        own.setdefault("allowPrivilegeEscalation", False)
        own.setdefault("capabilities", {}).setdefault("drop", constraint["requiredDropCapabilities"])
    pod["metadata"].setdefault("annotations", {})["openshift.io/scc"] = constraint["metadata"]["name"]
