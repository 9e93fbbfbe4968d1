"""The objects for OpenShift, whose restricted-v2 constraint accepts only users in the range of the namespace."""

from __future__ import annotations

from seatrial.targets.kubernetes.manifest.objects import labels, metadata
from seatrial.targets.kubernetes.manifest.workload import UID, Object, Workload

_RBAC = "rbac.authorization.k8s.io"


def service_account_name(workload: Workload) -> str | None:
    """Return the ServiceAccount of the pods: the one given, or with custom-scc the one made for the run."""
    return workload.run if workload.openshift == "custom-scc" else workload.service_account


def custom_scc(workload: Workload) -> list[Object]:
    """Return restricted-v2 with user 10001, and an account that may use it; applying it takes a cluster-admin."""
    if workload.openshift != "custom-scc":
        return []
    # A constraint belongs to no namespace, and another namespace may have a run of the same name.
    name = f"{workload.namespace}-{workload.run}"
    user_range = {"type": "MustRunAs", "ranges": [{"min": UID, "max": UID}]}
    constraint = {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": name, "labels": labels(workload)},
        "allowHostDirVolumePlugin": False,
        "allowHostIPC": False,
        "allowHostNetwork": workload.host_network,
        "allowHostPID": False,
        "allowHostPorts": workload.host_network,
        "allowPrivilegeEscalation": False,
        "allowPrivilegedContainer": False,
        "fsGroup": user_range,
        "readOnlyRootFilesystem": False,
        "requiredDropCapabilities": ["ALL"],
        "runAsUser": {"type": "MustRunAs", "uid": UID},
        "seLinuxContext": {"type": "MustRunAs"},
        "seccompProfiles": ["runtime/default"],
        "supplementalGroups": {"type": "RunAsAny"},
        "volumes": [
            *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
            "secret",
        ],
    }
    role = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(workload),
        "rules": [
            {
                "apiGroups": ["security.openshift.io"],
                "resources": ["securitycontextconstraints"],
                "resourceNames": [name],
                "verbs": ["use"],
            }
        ],
    }
    service_account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(workload),
        "automountServiceAccountToken": False,
    }
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(workload),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": workload.run},
        "subjects": [{"kind": "ServiceAccount", "name": workload.run, "namespace": workload.namespace}],
    }
    return [constraint, service_account, role, binding]
