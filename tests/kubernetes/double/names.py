"""/etc/hosts of the pods in the double of a cluster, as kubelet writes it. Others come from DNS (``dns.py``)."""

from __future__ import annotations

from kubernetes.double.store import Object, Store

_DOMAIN = "svc.cluster.local"


def hosts_file(store: Store, pod: Object) -> str:
    """Of one pod: its own name; in the network of its host, the names of the nodes."""
    namespace, spec = pod["metadata"]["namespace"], pod["spec"]
    own = spec.get("hostname") or pod["metadata"]["name"]
    long = [f"{own}.{spec['subdomain']}.{namespace}.{_DOMAIN}"] if spec.get("subdomain") else []
    lines = ["127.0.0.1 localhost", " ".join([pod["status"]["podIP"], *long, own])]
    if spec.get("hostNetwork"):
        # Nodes of most clusters know one another; each address is that of its pods in its network.
        lines = [lines[0], *dict.fromkeys(_node(other) for other in store.each("Pod") if _is_on_its_node(other))]
    return "".join(f"{line}\n" for line in lines)


def _is_on_its_node(pod: Object) -> bool:
    return bool(pod["spec"].get("hostNetwork")) and "podIP" in pod["status"]


def _node(pod: Object) -> str:
    return f"{pod['status']['podIP']} {pod['spec']['nodeName']}"
