"""What OpenShift wants to know: its restricted-v2 constraint takes no user but one of the namespace's own range."""

from __future__ import annotations

from seatrial.kubernetes.objects import labels, metadata
from seatrial.kubernetes.workload import UID, Object, Workload

__all__ = ["account", "custom_scc"]

_RBAC = "rbac.authorization.k8s.io"


def account(workload: Workload) -> str | None:
    """The ServiceAccount of the pods: the user's, or with a constraint of our own the run's."""
    return workload.run if workload.openshift == "custom-scc" else workload.service_account


def custom_scc(workload: Workload) -> list[Object]:
    """restricted-v2 with user 10001 in it, and an account of the run that may use it. It takes a cluster-admin."""
    if workload.openshift != "custom-scc":
        return []
    # It belongs to no namespace, and another namespace may have a run of the same name.
    name = f"{workload.namespace}-{workload.run}"
    own = {"type": "MustRunAs", "ranges": [{"min": UID, "max": UID}]}
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
        "fsGroup": own,
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
