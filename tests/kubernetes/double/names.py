"""Names of pods by headless Services, as lines of /etc/hosts: the double of a cluster has no DNS server.

It differs from DNS in one way: a name that several pods share resolves to all of them in the same order.
"""

from __future__ import annotations

from kubernetes.double.pods import is_ready
from kubernetes.double.store import Object, Store

_DOMAIN = "svc.cluster.local"


def hosts_file(store: Store, pod: Object) -> str:
    """Of one pod: its own name, and what can be found from its namespace now."""
    namespace, spec = pod["metadata"]["namespace"], pod["spec"]
    own = spec.get("hostname") or pod["metadata"]["name"]
    long = [f"{own}.{spec['subdomain']}.{namespace}.{_DOMAIN}"] if spec.get("subdomain") else []
    lines = ["127.0.0.1 localhost", " ".join([pod["status"]["podIP"], *long, own])]
    if spec.get("hostNetwork"):
        # Nodes of most clusters know one another; each address is that of its pods in its network.
        lines = [lines[0], *dict.fromkeys(_node(other) for other in store.each("Pod") if _is_on_its_node(other))]
    for service in store.each("Service", namespace):
        told = service["spec"]
        if told.get("clusterIP") != "None" or not told.get("selector"):
            continue
        name = service["metadata"]["name"]
        for other in store.each("Pod", namespace, told["selector"]):
            address = other["status"].get("podIP")
            found = is_ready(other) or told.get("publishNotReadyAddresses", False)
            if address is None or not found or other["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            host = other["spec"].get("hostname")
            is_named = host and other["spec"].get("subdomain") == name
            lines.append(" ".join([address, *(_names(f"{host}.{name}", namespace) if is_named else ())]))
            lines.append(" ".join([address, *_names(name, namespace)]))
    return "".join(f"{line}\n" for line in lines if " " in line)


def _is_on_its_node(pod: Object) -> bool:
    return bool(pod["spec"].get("hostNetwork")) and "podIP" in pod["status"]


def _node(pod: Object) -> str:
    return f"{pod['status']['podIP']} {pod['spec']['nodeName']}"


def _names(short: str, namespace: str) -> tuple[str, ...]:
    """By which a resolver with the search domains of a pod finds it."""
    return short, f"{short}.{namespace}", f"{short}.{namespace}.svc", f"{short}.{namespace}.{_DOMAIN}"
