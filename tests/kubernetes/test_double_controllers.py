"""The pods that the double of a cluster makes of workloads, without running them: names, variables, ends."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from kubernetes.double.controllers import CONTROLLERS
from kubernetes.double.faults import Faults
from kubernetes.double.pods import World, is_over
from kubernetes.double.recorded import OPERATOR_VARIABLES
from kubernetes.double.scheduler import schedule
from kubernetes.double.store import Object, Store, condition
from kubernetes.double.volumes import contents_of, environment
from kubernetes.workloads import workload

from seatrial.targets.kubernetes.manifest.render import manifest


def _world(folder: Path, kind: str, **changes: object) -> World:
    """With the objects of a workload on two nodes of eight devices."""
    world = World(store=Store(), faults=Faults(folder))
    for number in range(2):
        node = {"metadata": {"name": f"node-{number}", "labels": {}}, "spec": {}}
        world.store.add({"kind": "Node", **node, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}, "")
    for thing in manifest(kind, workload(ssh_key="not-a-real-key\n", **changes)):
        world.store.add(copy.deepcopy(thing), "default")
    _look(world)
    return world


def _look(world: World, times: int = 3) -> None:
    for _ in range(times):
        for kind, reconcile in CONTROLLERS.items():
            for thing in world.store.each(kind):
                reconcile(world, thing)
        schedule(world)
        world.store.collect_garbage()


def _pods(world: World) -> dict[str, Object]:
    """By name, without the letters that Jobs add."""
    found = {}
    for pod in world.store.each("Pod"):
        name = pod["metadata"]["name"]
        by_job = pod["metadata"]["ownerReferences"][0]["kind"] == "Job"
        found[name.rpartition("-")[0] if by_job else name] = pod
    return found


def _end(pod: Object, phase: str) -> None:
    pod["status"]["phase"] = phase


def _ready(pod: Object) -> None:
    pod["status"]["phase"] = "Running"
    condition(pod, "Ready", True, "")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("job", ["trial-1-0", "trial-1-1"]),
        ("jobset", ["trial-1-node-0-0", "trial-1-node-0-1"]),
        ("pytorchjob", ["trial-1-master-0", "trial-1-worker-0"]),
        ("trainjob", ["trial-1-node-0-0", "trial-1-node-0-1"]),
        ("mpijob", ["trial-1-worker-0", "trial-1-worker-1"]),
    ],
)
def test_pods_have_the_names_and_variables_that_the_operator_gives(kind: str, names: list[str], tmp_path: Path) -> None:
    world = _world(tmp_path, kind)
    pods = _pods(world)
    assert sorted(pods) == names
    for number, name in enumerate(names):
        pod = pods[name]
        _, environ = environment(world.store, pod, pod["spec"]["containers"][0], {})
        assert environ["SEATRIAL_TOKEN"] == "not-a-real-token"
        told = {variable: environ[variable] for variable in OPERATOR_VARIABLES.get(kind, ())}
        rank = OPERATOR_VARIABLES.get(kind, ("",))[0]
        assert told.get(rank, str(number)) == str(number)
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == {"node-0", "node-1"}


@pytest.mark.parametrize("kind", ["mpijob", "trainjob"])
def test_a_launcher_starts_when_all_workers_are_ready(kind: str, tmp_path: Path) -> None:
    world = _world(tmp_path, kind, kind_options={"runtime": "mpi"})
    workers = _pods(world)
    assert len(workers) == 2
    first, second = workers.values()
    _ready(first)
    _look(world)
    assert len(_pods(world)) == 2
    _ready(second)
    _look(world)
    (launcher,) = (pod for name, pod in _pods(world).items() if "launcher" in name)
    mounts = {mount["mountPath"]: mount["name"] for mount in launcher["spec"]["containers"][0]["volumeMounts"]}
    (volume,) = (each for each in launcher["spec"]["volumes"] if each["name"] == mounts["/etc/mpi"])
    config = world.store.get("ConfigMap", "default", volume["configMap"]["name"])
    assert config is not None
    names = [f"{pod['spec']['hostname']}.trial-1" for pod in workers.values()]
    ending = ".default.svc" if kind == "mpijob" else ""
    assert contents_of(config)["hostfile"].decode() == "".join(f"{name}{ending} slots=8\n" for name in names)


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "trainjob"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_workload_ends_with_its_pods(kind: str, phase: str, tmp_path: Path) -> None:
    world = _world(tmp_path, kind)
    pods = list(_pods(world).values())
    _end(pods[0], "Succeeded")
    _end(pods[1], phase)
    _look(world)
    thing = next(each for each in world.store if each["kind"].lower() == kind)
    assert (is_over(thing) == "Failed") == (phase == "Failed")
    assert is_over(thing)
    assert len(_pods(world)) == 2


def test_a_jobset_restarts_as_often_as_allowed(tmp_path: Path) -> None:
    world = _world(tmp_path, "jobset", max_restarts=1)
    before = {pod["metadata"]["uid"] for pod in _pods(world).values()}
    _end(next(iter(_pods(world).values())), "Failed")
    _look(world)
    again = _pods(world)
    assert len(again) == 2
    assert not before & {pod["metadata"]["uid"] for pod in again.values()}
    _end(next(iter(again.values())), "Failed")
    _look(world)
    (jobset,) = world.store.each("JobSet")
    assert is_over(jobset) == "Failed"


@pytest.mark.parametrize("kind", ["job", "jobset", "pytorchjob", "trainjob", "mpijob"])
def test_objects_are_deleted_with_their_owner(kind: str, tmp_path: Path) -> None:
    world = _world(tmp_path, kind)
    thing = next(each for each in world.store if each["kind"].lower() == kind)
    world.store.drop(thing)
    _look(world, times=4)
    left = {each["kind"] for each in world.store if each["kind"] not in ("Node", "Event")}
    # What was applied beside it: nobody owns these.
    beside = {"ConfigMap", "Secret", "NetworkPolicy", *(["Service"] if kind == "job" else [])}
    assert left == beside | ({"TrainingRuntime"} if kind == "trainjob" else set())


def test_a_node_without_enough_devices_gets_no_pod(tmp_path: Path) -> None:
    world = _world(tmp_path, "job", nodes=3)
    waiting = [pod for pod in world.store.each("Pod") if "nodeName" not in pod["spec"]]
    assert len(waiting) == 1
    (told,) = (known for known in waiting[0]["status"]["conditions"] if known["type"] == "PodScheduled")
    assert told["message"] == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def test_pods_that_must_be_apart_are(tmp_path: Path) -> None:
    world = _world(tmp_path, "job", nodes=3, gpus_per_node=1, nproc_per_node=1, spread="required")
    assert [pod["spec"].get("nodeName") for pod in world.store.each("Pod")] == ["node-0", "node-1", None]


@pytest.mark.parametrize(("nodes", "gpus"), [(4, 2), (8, 1)])
@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_in_the_host_network_fit_on_two_machines(kind: str, nodes: int, gpus: int, tmp_path: Path) -> None:
    world = _world(tmp_path, kind, nodes=nodes, gpus_per_node=gpus, nproc_per_node=gpus, host_network=True)
    places = [pod["spec"].get("nodeName") for pod in world.store.each("Pod")]
    assert sorted(places) == ["node-0"] * (nodes // 2) + ["node-1"] * (nodes // 2)


def test_a_pytorchjob_in_the_host_network_has_one_pod_a_machine(tmp_path: Path) -> None:
    """Why it is refused: its operator gives each replica the port, and one template makes all workers."""
    world = _world(tmp_path, "pytorchjob", nodes=4, gpus_per_node=2, nproc_per_node=2, host_network=True)
    waiting = [pod for pod in world.store.each("Pod") if "nodeName" not in pod["spec"]]
    assert len(waiting) == 2
    told = {known["message"] for pod in waiting for known in pod["status"]["conditions"]}
    assert told == {"0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."}
