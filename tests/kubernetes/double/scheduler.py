"""The scheduler of the double of a cluster: a node needs the labels, enough devices, and no pod to keep apart from."""

from __future__ import annotations

from kubernetes.double.pods import World
from kubernetes.double.store import Object, condition

_HELD = ("cpu", "memory", "ephemeral-storage")
"""Not counted: a node of the double has enough of these."""


def schedule(world: World) -> None:
    """Gives each pod that waits a node, or says why there is none."""
    store = world.store
    nodes = store.each("Node")
    for pod in store.each("Pod"):
        if "nodeName" in pod["spec"]:
            continue
        reasons: dict[str, int] = {}
        fits = []
        for node in nodes:
            why = _obstacle(world, pod, node)
            if why:
                reasons[why] = reasons.get(why, 0) + 1
            else:
                fits.append(node)
        if fits:
            chosen = min(fits, key=lambda node: (_neighbours(world, pod, node), node["metadata"]["name"]))
            pod["spec"]["nodeName"] = chosen["metadata"]["name"]
            condition(pod, "PodScheduled", True, "")
            message = f"Successfully assigned {pod['metadata']['namespace']}/{pod['metadata']['name']} to"
            store.event(pod, "Normal", "Scheduled", f"{message} {chosen['metadata']['name']}")
        else:
            told = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
            message = f"0/{len(nodes)} nodes are available: {told}."
            claim = _missing_claim(world, pod)
            if claim:
                message = f'0/{len(nodes)} nodes are available: persistentvolumeclaim "{claim}" not found.'
            condition(pod, "PodScheduled", False, "Unschedulable", message)
            store.event(pod, "Warning", "FailedScheduling", message)
        store.touch(pod)


def _obstacle(world: World, pod: Object, node: Object) -> str:
    labels = node["metadata"]["labels"]
    if world.faults.any("unschedulable", pods=pod["metadata"]["name"]):
        return "Insufficient nvidia.com/gpu"
    if _missing_claim(world, pod):
        return "claim"
    if not pod["spec"].get("nodeSelector", {}).items() <= labels.items():
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints", ()):
        if not any(_bears(toleration, taint) for toleration in pod["spec"].get("tolerations", ())):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    here = [other for other in world.store.each("Pod") if other["spec"].get("nodeName") == node["metadata"]["name"]]
    here = [other for other in here if other["status"]["phase"] in ("Pending", "Running")]
    for name, amount in _wanted(pod).items():
        used = sum(_wanted(other).get(name, 0) for other in here)
        if used + amount > int(node["status"]["allocatable"].get(name, "0")):
            return f"Insufficient {name}"
    if _ports(pod) & {port for other in here for port in _ports(other)}:
        return "node(s) didn't have free ports for the requested pod ports"
    apart = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    for term in apart.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        chosen = term["labelSelector"]["matchLabels"].items()
        if any(chosen <= other["metadata"].get("labels", {}).items() for other in here):
            return "node(s) didn't match pod anti-affinity rules"
    return ""


def _missing_claim(world: World, pod: Object) -> str:
    for volume in pod["spec"].get("volumes", ()):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if name and world.store.get("PersistentVolumeClaim", pod["metadata"]["namespace"], name) is None:
            return str(name)
    return ""


def _bears(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _wanted(pod: Object) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("limits", {}).items():
            if name not in _HELD and not name.startswith("hugepages"):
                wanted[name] = wanted.get(name, 0) + int(amount)
    return wanted


def _ports(pod: Object) -> set[int]:
    """Of its node: in the network of the host, all ports that it names."""
    named = [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
    if pod["spec"].get("hostNetwork"):
        return {port["containerPort"] for port in named}
    return {port["hostPort"] for port in named if "hostPort" in port}


def _neighbours(world: World, pod: Object, node: Object) -> int:
    """How many pods of the same run are there already: they are spread."""
    mark = "app.kubernetes.io/instance"
    run = pod["metadata"].get("labels", {}).get(mark)
    others = world.store.each("Pod", pod["metadata"]["namespace"], {mark: run} if run else {})
    return sum(other["spec"].get("nodeName") == node["metadata"]["name"] for other in others)
