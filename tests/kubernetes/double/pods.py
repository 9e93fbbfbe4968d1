"""Creation of pods by the controllers of the double of a cluster: what they add, and what prevents it."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubernetes.double.faults import Faults
from kubernetes.double.openshift import admit
from kubernetes.double.quotas import quota_refusal
from kubernetes.double.store import Object, Store

_PULL_SECRET_S = 1.5


@dataclass
class World:
    """What controllers and kubelet share."""

    store: Store
    faults: Faults
    openshift: bool = False
    """It has constraints, and pods must fit one."""
    memory: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What a controller keeps in mind of an object, by its uid and a word."""

    def first_seen(self, thing: Object, word: str) -> float:
        """How many seconds ago this was asked for the first time."""
        began: float = self.memory.setdefault((thing["metadata"]["uid"], word), time.monotonic())
        return time.monotonic() - began


def phase(pod: Object) -> str:
    found = pod["status"]["phase"]
    assert isinstance(found, str)
    return found


def is_active(pod: Object) -> bool:
    """It has not ended, and nobody wants it to."""
    return phase(pod) in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]


def is_ready(pod: Object) -> bool:
    return any(known["type"] == "Ready" and known["status"] == "True" for known in pod["status"].get("conditions", ()))


def is_over(thing: Object) -> str:
    """How a workload ended: the name of its last condition, or nothing."""
    ends = ("Complete", "Completed", "Succeeded", "Failed")
    for known in thing.get("status", {}).get("conditions", ()):
        if known["type"] in ends and known["status"] == "True":
            return str(known["type"])
    return ""


def upserted(environment: Iterable[Object], added: Iterable[Object]) -> list[Object]:
    """A variable that is there already is replaced where it stands; others come behind."""
    made = list(environment)
    for entry in added:
        places = [place for place, known in enumerate(made) if known["name"] == entry["name"]]
        if places:
            made[places[0]] = entry
        else:
            made.append(entry)
    return made


def provision_accounts(world: World) -> None:
    """Gives each account the pull secret of the internal registry a while after its creation, and never to a pod that
    was created before (openshift/origin #20225; pkg/serviceaccounts of openshift-controller-manager)."""
    for account in world.store.each("ServiceAccount"):
        if world.first_seen(account, "pull secret") > _PULL_SECRET_S and "imagePullSecrets" not in account:
            account["imagePullSecrets"] = [{"name": f"{account['metadata']['name']}-dockercfg-x7k2p"}]
            world.store.touch(account)


def make_pod(
    world: World,
    owner: Object,
    name: str,
    template: Object,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    added: Sequence[Object] = (),
    spec: Mapping[str, Any] | None = None,
) -> Object | None:
    """A pod of a template, with variables ``added`` to all of its containers and fields of ``spec`` set.

    None where it is refused (quota, account, constraints), which the events of its owner tell.
    """
    store, metadata = world.store, owner["metadata"]
    if world.faults.any("quota", pods=name):
        amounts = "requested: pods=1, used: pods=4, limited: pods=4"
        refused = f'pods "{name}" is forbidden: exceeded quota: compute-quota, {amounts}'
        _tell_refusal(world, owner, refused)
        return None
    if world.faults.any("limit-range", pods=name):
        # plugin/pkg/admission/limitranger of Kubernetes.
        refused = f'pods "{name}" is forbidden: maximum memory usage per Container is 32Gi, but limit is 64Gi'
        _tell_refusal(world, owner, refused)
        return None
    if world.faults.any("pod-security", pods=name):
        refused = (
            f'pods "{name}" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'
        )
        _tell_refusal(world, owner, refused)
        return None
    made = copy.deepcopy(template)
    told = made.get("metadata", {})
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**told.get("labels", {}), **labels},
            "annotations": {**told.get("annotations", {}), **(annotations or {})},
        },
        "spec": {**made["spec"], **(spec or {})},
        "status": {"phase": "Pending"},
    }
    taken = {fault["variable"] for fault in world.faults.all("without", pods=name)}
    kept = [entry for entry in added if entry["name"] not in taken]
    # The Job controller adds its variable to init containers, too; training-operator adds none of its own to them.
    inits = pod["spec"].get("initContainers", ()) if owner["kind"] == "Job" else ()
    for container in (*inits, *pod["spec"]["containers"]):
        container["env"] = [*container.get("env", ()), *kept]
    if taken:
        _take_away(pod, taken, added)
    unmounted = {fault["volume"] for fault in world.faults.all("unmounted", pods=name)}
    for container in pod["spec"]["containers"]:
        mounts = container.get("volumeMounts", ())
        container["volumeMounts"] = [mount for mount in mounts if mount["name"] not in unmounted]
    refusal = _refusal(world, pod, metadata["namespace"]) or quota_refusal(store, pod, metadata["namespace"])
    if refusal:
        _tell_refusal(world, owner, f'pods "{name}" is forbidden: {refusal}')
        return None
    # plugin/pkg/admission/serviceaccount of Kubernetes: what the account has at this moment, unless the pod names some.
    account = store.get("ServiceAccount", metadata["namespace"], pod["spec"].get("serviceAccountName", "default"))
    if account is not None and account.get("imagePullSecrets"):
        pod["spec"].setdefault("imagePullSecrets", account["imagePullSecrets"])
    store.event(owner, "Normal", "SuccessfulCreate", f"Created pod: {name}")
    return store.add(pod, metadata["namespace"], owner)


def _tell_refusal(world: World, owner: Object, refused: str) -> None:
    """Each operator has its own event for it (the recordings quota-mpijob, quota-jobset, run-pytorchjob-restricted)."""
    reason, words = {
        "MPIJob": ("MPIJobFailed", "worker pod created failed: "),
        "PyTorchJob": ("FailedCreatePod", "Error creating: "),
    }.get(owner["kind"], ("FailedCreate", "Error creating: "))
    world.store.event(owner, "Warning", reason, f"{words}{refused}")


def is_suspended(thing: Object) -> bool:
    """By its spec, where each kind has it. Kueue suspends all of them and resumes them when it is their turn."""
    spec = thing["spec"]
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def was_suspended(thing: Object) -> bool:
    """Its controller has told that it is suspended, and not yet that it has been resumed."""
    return any(
        known["type"] == "Suspended" and known["status"] == "True"
        for known in thing.get("status", {}).get("conditions", ())
    )


def _refusal(world: World, pod: Object, namespace: str) -> str:
    """Of the admission of pods; empty: it lets the pod in."""
    account = pod["spec"].get("serviceAccountName")
    if account is not None and world.store.get("ServiceAccount", namespace, account) is None:
        return f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    return admit(world.store, pod, namespace) if world.openshift else ""


def _take_away(pod: Object, taken: set[str], added: Sequence[Object]) -> None:
    """Trainer has put its variables into the template already."""
    if not {entry["name"] for entry in added} & taken:
        for container in pod["spec"]["containers"]:
            container["env"] = [entry for entry in container["env"] if entry["name"] not in taken]
