"""ResourceQuotas of the double of a cluster: whether a namespace has enough left for one more pod.

Words of the API server: plugin/pkg/admission/resourcequota/controller.go of apiserver, and
pkg/quota/v1/evaluator/core/pods.go of Kubernetes 1.34. Pods that have ended do not count.
"""

from __future__ import annotations

from decimal import Decimal

from kubernetes.double.store import Object, Store

_DEMANDED = ("cpu", "memory")
"""Of these each container must have what a quota counts."""
_SUFFIXES = {
    "m": Decimal("0.001"),
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGT", start=1)},
    **{letter: Decimal(1000**power) for power, letter in enumerate("kMGT", start=1)},
}


def quota_refusal(store: Store, pod: Object, namespace: str) -> str:
    """Empty: all quotas let the pod in."""
    others = [other for other in store.each("Pod", namespace) if other["status"]["phase"] in ("Pending", "Running")]
    for quota in store.each("ResourceQuota", namespace):
        name, hard = quota["metadata"]["name"], quota["spec"]["hard"]
        lacks = [
            f"{counted} for: {','.join(containers)}"
            for counted in sorted(hard)
            if (containers := _containers_without(pod, counted))
        ]
        if lacks:
            return f"failed quota: {name}: must specify {'; '.join(lacks)}"
        over = []
        for counted in sorted(hard):
            asked, used = _amount(pod, counted), sum((_amount(other, counted) for other in others), Decimal(0))
            if asked and used + asked > _number(hard[counted]):
                over.append((counted, asked, used, hard[counted]))
        if over:
            requested, used_now, limited = (
                ",".join(f"{entry[0]}={_shown(entry[index])}" for entry in over) for index in (1, 2, 3)
            )
            return f"exceeded quota: {name}, requested: {requested}, used: {used_now}, limited: {limited}"
    return ""


def _containers_without(pod: Object, counted: str) -> list[str]:
    group, _, resource = counted.partition(".")
    if resource not in _DEMANDED or group not in ("limits", "requests"):
        return []
    return [
        container["name"]
        for container in pod["spec"]["containers"]
        if resource not in container.get("resources", {}).get(group, {})
    ]


def _amount(pod: Object, counted: str) -> Decimal:
    if counted == "pods":
        return Decimal(1)
    group, _, resource = counted.partition(".")
    assert group in ("limits", "requests"), counted
    return sum(
        (
            _number(container.get("resources", {}).get(group, {}).get(resource, "0"))
            for container in pod["spec"]["containers"]
        ),
        Decimal(0),
    )


def _number(quantity: str) -> Decimal:
    suffix = next((suffix for suffix in _SUFFIXES if quantity.endswith(suffix)), "")
    return Decimal(quantity.removesuffix(suffix)) * (_SUFFIXES[suffix] if suffix else 1)


def _shown(amount: Decimal | str) -> str:
    return amount if isinstance(amount, str) else f"{amount.normalize():f}"
