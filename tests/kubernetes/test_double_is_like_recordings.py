"""Objects that the controllers of the double make from our manifests, against those that the real operators made."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.controllers import CONTROLLERS
from kubernetes.double.faults import Faults
from kubernetes.double.pods import World
from kubernetes.double.store import Object, Store, condition
from kubernetes.recordings_of_clusters import recording
from kubernetes.workloads import workload

from seatrial.targets.kubernetes.manifest.render import manifest

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
    _look(world)
    _make_ready(world)
    _look(world)
    return world


def _make_ready(world: World) -> None:
    """Do what takes a kubelet: the launcher of MPI comes when the nodes are ready."""
    for pod in world.store.each("Pod"):
        pod["status"]["phase"] = "Running"
        condition(pod, "Ready", True, "")


def _look(world: World) -> None:
    for _ in range(4):
        for kind, reconcile in CONTROLLERS.items():
            for thing in world.store.each(kind):
                reconcile(world, thing)


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
    # Two launchers, since the runtime of that version asked for them.
    ends = ("-master-0", "-worker-0", "-worker-1", "-node-0-0", "-node-0-1", "-launcher-0-0", "-launcher-0-1")
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
    assert double.keys() == real.keys()
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


def test_the_service_of_a_job_is_as_the_api_server_took_it() -> None:
    """No operator makes it: the manifest does, and the API server drops no field and changes none."""
    (real,) = (thing for thing in recording("run-job")["objects_when_first_seen"] if thing["kind"] == "Service")
    objects = manifest("job", workload(run=real["metadata"]["name"], namespace=real["metadata"]["namespace"]))
    (ours,) = (thing for thing in objects if thing["kind"] == "Service")
    assert described(ours) == described(real)
    assert ours["spec"].keys() <= real["spec"].keys()


def test_trainer_adds_to_pods_under_mpi_what_the_real_one_did(tmp_path: Path) -> None:
    """Of that TrainJob only the pods were recorded; what is ours in them has changed since."""
    pods = [thing for thing in recording("fix-trainjob-mpi")["objects_when_first_seen"] if thing["kind"] == "Pod"]
    run = pods[0]["metadata"]["labels"]["app.kubernetes.io/instance"]
    made = workload(run=run, namespace="ml", nproc_per_node=1, gpus_per_node=1, kind_options={"runtime": "mpi"})
    world = World(store=Store(), faults=Faults(tmp_path))
    for thing in manifest("trainjob", made):
        world.store.add({**copy.deepcopy(thing), "status": {}}, "ml")
    _look(world)
    _make_ready(world)
    _look(world)
    real, double = by_role(pods), by_role(world.store.each("Pod"))
    assert double.keys() == real.keys() == {"-node-0-0", "-node-0-1", "-launcher-0-0"}
    for key in real:
        assert _added_under_mpi(double[key]) == _added_under_mpi(real[key])


def _added_under_mpi(pod: Object) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    volumes = sorted(_volume(volume) for volume in pod["spec"]["volumes"] if volume["name"].startswith("mpi-"))
    keys = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    return {
        "volumes": volumes,
        "modes": [(secret["defaultMode"], [item["mode"] for item in secret["items"]]) for secret in keys],
        "mounts": [mount for mount in container["volumeMounts"] if mount["name"].startswith("mpi-")],
        # In any order: Trainer applies them by server-side apply, which keeps them sorted.
        "env": sorted(_variable(entry) for entry in container["env"] if entry["name"].startswith("OMPI_")),
        "place": (pod["spec"].get("hostname"), pod["spec"].get("subdomain"), pod["spec"]["restartPolicy"]),
    }
