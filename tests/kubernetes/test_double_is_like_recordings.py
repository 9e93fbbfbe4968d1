"""Objects that the controllers of the double make from our manifests, against those that the real operators made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.controllers import CONTROLLERS
from kubernetes.double.faults import Faults
from kubernetes.double.pods import World
from kubernetes.double.store import Object, Store
from kubernetes.recordings_of_clusters import recording

_KINDS = {
    "run-job": "Job",
    "run-jobset": "JobSet",
    "run-pytorchjob": "PyTorchJob",
    "run-trainjob": "JobSet",
    "run-trainjob-mpi": "JobSet",
    "run-mpijob": "MPIJob",
}
_MAY_DIFFER_OF_A_POD = {
    # Defaults of the API server, and what admission adds to every pod.
    *("preemptionPolicy", "priority", "schedulerName", "serviceAccount", "serviceAccountName", "tolerations"),
    *("dnsPolicy", "nodeName", "imagePullSecrets"),
    # mpi-operator 0.7 and newer: NAME.NAMESPACE.svc.cluster.local, in which nothing of ours is looked for.
    "dnsConfig",
}
_MAY_DIFFER_OF_A_CONTAINER = {"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy", "command"}
_RANDOM = (
    "batch.kubernetes.io/controller-uid",
    "controller-uid",
    "jobset.sigs.k8s.io/job-key",
    "jobset.sigs.k8s.io/jobset-uid",
)
_LATER_RELEASES = (
    # JobSet 0.12 and Trainer 2.3 add these labels and annotations; nothing of ours reads them.
    *("jobset.sigs.k8s.io/group-name", "jobset.sigs.k8s.io/job-group-index", "jobset.sigs.k8s.io/group-replicas"),
    "jobset.sigs.k8s.io/priority",
    *("jobset.sigs.k8s.io/job-group-", "jobset.sigs.k8s.io/individual-", "trainer.kubeflow.org/"),
)


def made_by_the_double(name: str, folder: Path) -> World:
    """Give the recorded workload to the controllers of the double, which make the rest."""
    world = World(store=Store(), faults=Faults(folder))
    for thing in recording(name)["objects_when_first_seen"]:
        # The JobSet of Trainer has the variables of its plugin already; its runtime was not recorded.
        if thing["kind"] == _KINDS[name]:
            world.store.add({**thing, "status": {}}, "ml")
    for _ in range(4):
        for kind, reconcile in CONTROLLERS.items():
            for thing in world.store.each(kind):
                reconcile(world, thing)
    return world


def described(thing: Object) -> dict[str, Any]:
    """Return what of a pod or Service must be equal, by its path."""
    metadata, spec = thing["metadata"], thing["spec"]
    found: dict[str, Any] = {}
    for part in ("labels", "annotations"):
        for key, value in metadata.get(part, {}).items():
            if key not in _RANDOM and not key.startswith(_LATER_RELEASES):
                found[f"{part} {key}"] = value
    found["owners"] = [
        (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"])
        for owner in metadata.get("ownerReferences", ())
    ]
    if thing["kind"] == "Service":
        keys = ("selector", "clusterIP", "publishNotReadyAddresses")
        return {**found, **{key: spec.get(key) or None for key in keys}}
    for key, value in spec.items():
        if key not in (*_MAY_DIFFER_OF_A_POD, "containers", "initContainers", "volumes"):
            found[key] = value
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        for key, value in container.items():
            if key == "env":
                found[f"{container['name']} env"] = [_variable(entry) for entry in value]
            elif key == "readinessProbe":
                # The API server adds defaults to it.
                found[f"{container['name']} probe"] = (value["periodSeconds"], value["tcpSocket"])
            elif key == "image" and container["name"] == "init-pytorch":
                assert value  # a flag of the operator; the real cluster reached no registry
            elif key not in _MAY_DIFFER_OF_A_CONTAINER:
                found[f"{container['name']} {key}"] = value
    found["volumes"] = sorted(_volume(volume) for volume in spec["volumes"])
    return found


def _variable(entry: Object) -> tuple[str, Any]:
    source = entry.get("valueFrom", {})
    field = source.get("fieldRef", {}).get("fieldPath") or source.get("secretKeyRef", {}).get("key")
    return entry["name"], entry.get("value", "") or field


def _volume(volume: Object) -> tuple[str, ...]:
    (kind,) = volume.keys() - {"name"}
    source = volume[kind] or {}
    items = [(item["key"], item["path"]) for item in source.get("items", ())]
    return volume["name"], kind, str(source.get("name") or source.get("secretName") or ""), str(items)


def by_role(pods: list[Object]) -> dict[str, Object]:
    """Return the pods by their names without the random ends."""
    ends = ("-master-0", "-worker-0", "-worker-1", "-node-0-0", "-node-0-1")
    found = {}
    for pod in pods:
        name, run = pod["metadata"]["name"], pod["metadata"]["labels"]["app.kubernetes.io/instance"]
        rest = name.removeprefix(run)
        key = next((end for end in ends if rest.startswith(end)), "-launcher" if "-launcher" in rest else rest[:2])
        found[key] = pod
    return found


@pytest.mark.parametrize("name", _KINDS)
def test_pods_are_those_of_the_real_operators(name: str, tmp_path: Path) -> None:
    world = made_by_the_double(name, tmp_path)
    real = by_role([thing for thing in recording(name)["objects_when_first_seen"] if thing["kind"] == "Pod"])
    double = by_role(world.store.each("Pod"))
    assert real
    # The launcher of an MPIJob comes when the workers are ready, which needs a kubelet.
    assert double.keys() == real.keys() - {"-launcher"}
    for key in double:
        assert described(double[key]) == described(real[key])


@pytest.mark.parametrize("name", ["run-jobset", "run-pytorchjob", "run-trainjob", "run-trainjob-mpi", "run-mpijob"])
def test_services_are_those_of_the_real_operators(name: str, tmp_path: Path) -> None:
    world = made_by_the_double(name, tmp_path)
    real = {
        thing["metadata"]["name"]: thing
        for thing in recording(name)["objects_when_first_seen"]
        if thing["kind"] == "Service"
    }
    double = {thing["metadata"]["name"]: thing for thing in world.store.each("Service")}
    assert real
    assert double.keys() == real.keys()
    for key in real:
        found, expected = described(double[key]), described(real[key])
        for part in ("selector", "clusterIP", "publishNotReadyAddresses", "owners"):
            assert found[part] == expected[part], (key, part)
