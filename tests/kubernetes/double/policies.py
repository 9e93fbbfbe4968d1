"""Network policies in the double of a cluster, as rules of iptables in the networks of pods.

Known: selectors by labels, all namespaces, ports. Not known: blocks of addresses, names of ports, `matchExpressions`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

from kubernetes.double.networks import Networks
from kubernetes.double.store import Object, Store


class Policies:
    """The rules that were set, by pod."""

    def __init__(self, store: Store, networks: Networks) -> None:
        self._store, self._networks = store, networks
        self._set: dict[str, str] = {}

    def tick(self) -> None:
        """Set the rules of pods for which they have changed."""
        pods = [pod for pod in self._store.each("Pod") if pod["status"].get("podIP") and not _is_host(pod)]
        policies = self._store.each("NetworkPolicy")
        for pod in pods:
            rules = "\n".join(["*filter", *_rules(pod, pods, policies), "COMMIT", ""])
            uid = str(pod["metadata"]["uid"])
            if self._set.get(uid, "*filter\nCOMMIT\n") != rules and pod["status"].get("phase") in (
                "Pending",
                "Running",
            ):
                enter = ["nsenter", f"--net={self._networks.file(pod)}", "iptables-restore"]
                subprocess.run(enter, input=rules, text=True, capture_output=True, check=True, timeout=20)
                self._set[uid] = rules


def _is_host(pod: Object) -> bool:
    return bool(pod["spec"].get("hostNetwork"))


def _rules(pod: Object, pods: Sequence[Object], policies: Sequence[Object]) -> Iterator[str]:
    for kind, chain, source, peers in (("Ingress", "INPUT", "-s", "from"), ("Egress", "OUTPUT", "-d", "to")):
        selecting = [policy for policy in policies if _selects(policy, pod) and kind in _types(policy)]
        if not selecting:
            continue
        device = "-i" if chain == "INPUT" else "-o"
        yield f"-A {chain} {device} lo -j ACCEPT"
        yield f"-A {chain} -m state --state ESTABLISHED,RELATED -j ACCEPT"
        for policy in selecting:
            for rule in policy["spec"].get(kind.lower(), ()):
                ports = [
                    f" -p {port.get('protocol', 'TCP').lower()}"
                    + (f" --dport {port['port']}" if "port" in port else "")
                    for port in rule.get("ports", ())
                ]
                for address in _addresses(policy, rule.get(peers), pods):
                    for port in ports or [""]:
                        yield f"-A {chain}{f' {source} {address}' if address else ''}{port} -j ACCEPT"
        yield f"-A {chain} -j DROP"


def _types(policy: Object) -> Sequence[str]:
    spec = policy["spec"]
    kinds: Sequence[str] = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return kinds


def _selects(policy: Object, pod: Object) -> bool:
    same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and _matches(policy["spec"].get("podSelector", {}), pod)


def _matches(selector: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _addresses(policy: Object, peers: Sequence[Object] | None, pods: Sequence[Object]) -> Iterator[str]:
    """Yield the addresses of pods that a rule allows; an empty one for all."""
    if not peers:
        yield ""
    for peer in peers or ():
        for pod in pods:
            same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            if (same or "namespaceSelector" in peer) and _matches(peer.get("podSelector", {}), pod):
                yield str(pod["status"]["podIP"])
