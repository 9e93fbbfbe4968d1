"""Workloads that are suspended first, as Kueue does it, then resumed: what each operator does, and what is told."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from kubernetes.double.cluster import Cluster
from kubernetes.double.controllers import CONTROLLERS
from kubernetes.double.faults import Faults
from kubernetes.double.pods import World
from kubernetes.double.store import Object, Store
from kubernetes.driven import HALF_WAY, HELD, SHORT_TRIAL, await_in_file, await_in_logs, driven
from kubernetes.recordings_of_clusters import objects, pods_at, recording, warnings_at, workload_at
from kubernetes.runs import TARGETS
from kubernetes.workloads import workload

from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.wait_for_hosts import hosts_in
from seatrial.targets.kubernetes.manifest.workload import Patch
from seatrial.targets.kubernetes.pending_pods import PendingPods
from seatrial.targets.kubernetes.pods import is_taken_up, pods_of, suspended
from seatrial.targets.kubernetes.warnings_of_run import creation_warnings

_IN_RUN_POLICY = ("pytorchjob", "mpijob")
"""The kinds whose ``suspend`` is not in the spec itself."""
_SUSPENDED = "are not created: the workload is suspended, because a queue (such as Kueue)"
_NODES = ("trial-1-node-0-0", "trial-1-node-0-1")
_RESUMED = {
    # Kind, runtime -> the pods once it is resumed, and the words of its operator, with the source of each.
    ("job", None): (("trial-1-0", "trial-1-1"), "JobSuspended", "JobResumed"),
    ("jobset", None): (_NODES, "SuspendedJobs", "ResumeJobs"),
    ("pytorchjob", None): (("trial-1-master-0", "trial-1-worker-0"), "PyTorchJobSuspended", "PyTorchJobResumed"),
    ("trainjob", None): (_NODES, "Suspended", "Resumed"),
    # The launcher follows when the nodes are ready.
    ("trainjob", "mpi"): (_NODES, "Suspended", "Resumed"),
    # The launcher starts with the workers, and waits for them by itself (manifest/wait_for_hosts.py).
    ("mpijob", None): (
        ("trial-1-launcher", "trial-1-worker-0", "trial-1-worker-1"),
        "MPIJobSuspended",
        "MPIJobResumed",
    ),
}


def _suspend(kind: str, value: bool) -> dict[str, Any]:
    """Return what of the spec suspends or resumes a workload."""
    return {"runPolicy": {"suspend": value}} if kind in _IN_RUN_POLICY else {"suspend": value}


def _set(thing: Object, kind: str, value: bool) -> None:
    for key, part in _suspend(kind, value).items():
        thing["spec"][key] = {**thing["spec"][key], **part} if isinstance(part, dict) else part


def _look(world: World) -> None:
    for _ in range(3):
        for kind, reconcile in CONTROLLERS.items():
            for thing in world.store.each(kind):
                reconcile(world, thing)
        world.store.collect_garbage()


def _pods(world: World) -> list[str]:
    """Return the names of all pods, without the letters that Jobs add."""
    pods = world.store.each("Pod")
    by_job = [pod["metadata"]["ownerReferences"][0]["kind"] == "Job" for pod in pods]
    names = [str(pod["metadata"]["name"]) for pod in pods]
    return sorted(name.rpartition("-")[0] if own else name for name, own in zip(names, by_job, strict=True))


def _told(world: World, kind: str, options: dict[str, Any], thing: Object) -> str:
    """Return what is printed for this state of the cluster."""
    pods = pods_of({"items": world.store.each("Pod")}, KINDS[kind])
    under_mpi = KINDS[kind].under_mpi(options)
    return PendingPods(pods=pods, nodes=2, under_mpi=under_mpi, suspended=suspended(thing)).reason()


@pytest.mark.parametrize(("kind", "runtime"), _RESUMED)
def test_a_suspended_workload_is_told_and_gets_its_pods_later(kind: str, runtime: str | None, tmp_path: Path) -> None:
    names, stopped, resumed = _RESUMED[kind, runtime]
    options = {"runtime": runtime} if runtime else {}
    world = World(store=Store(), faults=Faults(tmp_path))
    patch = Patch(workload={"spec": _suspend(kind, True)})
    for made in manifest(kind, workload(patch=patch, kind_options=options)):
        world.store.add(copy.deepcopy(made), "default")
    (thing,) = (each for each in world.store if each["kind"].lower() == kind)
    _look(world)
    assert _pods(world) == []
    assert is_taken_up(thing)
    wanted = 3 if KINDS[kind].under_mpi(options) else 2
    words = f"{wanted} of {wanted} pods {_SUSPENDED}"
    assert _told(world, kind, options, thing).startswith(words)
    assert _reasons(thing) == [stopped]

    _set(thing, kind, False)
    _look(world)
    assert tuple(_pods(world)) == names
    assert not suspended(thing)
    assert "suspended" not in _told(world, kind, options, thing)
    assert _reasons(thing) == [resumed]

    # A queue may take the place back.
    _set(thing, kind, True)
    _look(world)
    assert _pods(world) == []
    assert suspended(thing)
    _set(thing, kind, False)
    _look(world)
    assert tuple(_pods(world)) == names


def _reasons(thing: Object) -> list[str]:
    return [known["reason"] for known in thing["status"]["conditions"] if known["type"] == "Suspended"]


# The recording: an MPIJob that was resumed after ten seconds. Its launcher did not wait for names yet.

_RESUME = "resume-mpijob"


def _waits_at(at_s: float) -> PendingPods:
    (job,) = objects(_RESUME, "MPIJob")
    return PendingPods(
        pods=pods_of(pods_at(_RESUME, at_s), KINDS["mpijob"]),
        nodes=2,
        under_mpi=True,
        warnings=creation_warnings(warnings_at(_RESUME, at_s), job["metadata"]["name"], "", pods=2),
        suspended=suspended(workload_at(_RESUME, "mpijobs", at_s)),
    )


def test_what_is_told_of_a_real_mpijob_that_is_resumed() -> None:
    # As often as the cluster is asked while pods start.
    waits = [_waits_at(float(at_s)) for at_s in range(1, 15)]
    told = [found.reason() for found in waits if found.waiting or found.missing > 0]
    assert [text for text, _ in groupby(told)] == [
        "3 of 3 pods are not created yet",
        f"3 of 3 pods {_SUSPENDED} has not admitted it yet or somebody has suspended it",
        "3 of 3 pods wait: its image is being pulled or its container created",
    ]
    assert not any(found.final_refusal or found.unready for found in waits)
    assert is_taken_up(workload_at(_RESUME, "mpijobs", 5.0))


def test_the_launcher_now_waits_for_the_name_of_which_a_real_one_died(tmp_path: Path) -> None:
    pods = pods_of(pods_at(_RESUME, 14.0), KINDS["mpijob"])
    (launcher,) = (pod for pod in pods if pod.is_launcher)
    assert (launcher.exit_code, launcher.stop) == (255, "")
    assert all(pod.state == "running" for pod in pods if not pod.is_launcher)
    world = World(store=Store(), faults=Faults(tmp_path))
    (job,) = objects(_RESUME, "MPIJob")
    world.store.add({**copy.deepcopy(job), "status": {}}, "ml")
    _look(world)
    config = world.store.get("ConfigMap", "ml", f"{job['metadata']['name']}-config")
    assert config is not None
    name = job["metadata"]["name"]
    (host, _) = hosts_in(
        config["data"]["hostfile"], f"{name}-worker-{{}}.{name}", " slots=1", 2, "ml.svc.cluster.local"
    )
    said = "\n".join(recording(_RESUME)["output"])
    assert f"Could not resolve hostname {host}: Temporary failure in name resolution" in said


def test_the_double_suspends_as_mpi_operator_did(tmp_path: Path) -> None:
    """Its conditions word for word, and the launcher's Job with the first look."""
    world = World(store=Store(), faults=Faults(tmp_path))
    (job,) = objects(_RESUME, "MPIJob")
    thing = world.store.add({**copy.deepcopy(job), "status": {}}, "ml")
    for value, at_s in ((True, 5.0), (False, 12.9)):
        _set(thing, "mpijob", value)
        _look(world)
        (launcher,) = world.store.each("Job")
        assert launcher["spec"]["suspend"] is value
        assert workload_at(_RESUME, "jobs", at_s)["spec"]["suspend"] is value
        real = workload_at(_RESUME, "mpijobs", at_s)["status"]["conditions"]
        for known in (entry for entry in real if entry["type"] in ("Created", "Suspended")):
            (made,) = (entry for entry in thing["status"]["conditions"] if entry["type"] == known["type"])
            assert (made["status"], made["reason"], made["message"]) == (
                *(known["status"], known["reason"]),
                known["message"],
            )


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", TARGETS)
def test_a_trial_that_is_resumed_passes(target: str, cluster: Cluster, tmp_path: Path) -> None:
    if "mpi" in target and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    kind = target.partition("-")[0]
    patch = tmp_path / "patch.yaml"
    patch.write_text(json.dumps({"workload": {"spec": _suspend(kind, True)}}))

    def resume(process: subprocess.Popen[bytes]) -> None:
        await_in_file(tmp_path / "out.said", "the workload is suspended")
        time.sleep(1)
        assert cluster.get("pods")["items"] == []
        words = ("patch", f"{kind}/trial-1", "--type=merge", "-p", json.dumps({"spec": _suspend(kind, False)}))
        done = cluster.call(*words)
        assert done.returncode == 0, done.stderr

    words = ("run", f"--patch={patch}", "--only=inventory,collectives", "--", "smoke")
    ended = driven(cluster, tmp_path / "out", words, target, meanwhile=resume, end_s=100)
    assert ended.code == 0, ended.said
    assert "FINAL ACCEPTANCE: PASS (partial" in ended.said


@pytest.mark.cluster
@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", ["job", "pytorchjob", "mpijob"])
def test_a_trial_whose_place_is_taken_back_is_interrupted(target: str, cluster: Cluster, tmp_path: Path) -> None:
    if "mpi" in target and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")

    def take_back(process: subprocess.Popen[bytes]) -> None:
        await_in_logs(cluster, HALF_WAY, timeout_s=60)
        patch = json.dumps({"spec": _suspend(target, True)})
        assert cluster.call("patch", f"{target}/trial-1", "--type=merge", "-p", patch).returncode == 0

    ended = driven(cluster, tmp_path / "out", SHORT_TRIAL, target, meanwhile=take_back, env=HELD, end_s=100)
    assert ended.code == 130, ended.said
    assert "the workload is suspended: a queue (such as Kueue) has taken its place back" in ended.said
    assert not ended.blames
