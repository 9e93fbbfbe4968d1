"""Network policies of the double of a cluster, as rules of a pod's own network namespace.

By the reference of the API (networking.k8s.io/v1): a pod that no policy selects for a direction lets everything pass;
one that is selected lets pass what any of these policies names, answers to what it let pass, and what stays in the pod.
A node always reaches its pods; the double's probes do not use the network. A selector of namespaces selects all.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubernetes.double.store import Object, Store

_CHAINS = {"Ingress": ("INPUT", "ingress", "from", "-s"), "Egress": ("OUTPUT", "egress", "to", "-d")}


def rules_of(store: Store, pod: Object) -> str:
    """What ``iptables-restore`` reads; empty where no policy selects the pod."""
    namespace = pod["metadata"]["namespace"]
    policies = [
        policy for policy in store.each("NetworkPolicy", namespace) if _selects(policy["spec"].get("podSelector"), pod)
    ]
    lines = []
    for direction, (chain, field, peers, flag) in _CHAINS.items():
        of_direction = [policy["spec"] for policy in policies if direction in _types(policy["spec"])]
        if not of_direction:
            continue
        device = "-i" if chain == "INPUT" else "-o"
        lines += [
            f"-A {chain} {device} lo -j ACCEPT",
            f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        ]
        allowed = (rule for spec in of_direction for rule in spec.get(field) or ())
        lines += [
            f"-A {chain} {match}-j ACCEPT"
            for rule in allowed
            for match in _matches(store, namespace, rule, peers, flag)
        ]
        lines.append(f"-A {chain} -j DROP")
    return "\n".join(["*filter", *lines, "COMMIT", ""]) if lines else ""


def _types(spec: Object) -> list[str]:
    return list(spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])])


def _selects(selector: Object | None, pod: Object) -> bool:
    wanted = (selector or {}).get("matchLabels", {})
    return bool(wanted.items() <= pod["metadata"].get("labels", {}).items())


def _matches(store: Store, namespace: str, rule: Object, peers: str, flag: str) -> Iterator[str]:
    ports = [
        f"-p {port.get('protocol', 'TCP').lower()} --dport {port['port']} " if "port" in port else ""
        for port in rule.get("ports") or [{}]
    ]
    hosts = [""]
    if rule.get(peers):
        others = [
            pod
            for peer in rule[peers]
            for pod in store.each("Pod", None if "namespaceSelector" in peer else namespace)
            if _selects(peer.get("podSelector"), pod) and "podIP" in pod["status"]
        ]
        hosts = [f"{flag} {address} " for address in dict.fromkeys(pod["status"]["podIP"] for pod in others)]
    yield from (f"{host}{port}" for host in hosts for port in ports)
