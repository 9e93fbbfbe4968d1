"""Recordings of a real cluster, replayed through the code that reads it: no process, no cluster."""

from __future__ import annotations

import pytest
from kubernetes.recordings_of_clusters import objects, pods_at, recording, warnings_at, workload_at

from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.pending_pods import PendingPods
from seatrial.targets.kubernetes.pods import PodStatus, first_pod, first_pod_labels, is_taken_up, pods_of, suspended
from seatrial.targets.kubernetes.warnings_of_run import creation_warnings, is_final, pod_warnings


def seen(name: str, kind: str, at_s: float) -> dict[str, PodStatus]:
    """The pods of a recording at a second, by the end of their names: ``worker-1``, ``launcher``."""
    found = pods_of(pods_at(name, at_s), KINDS[kind])
    return {pod.name.split("-", 2)[2]: pod for pod in found}


def run_of(name: str) -> str:
    """The name that seatrial gave to the run."""
    (of, *_) = [event["of"] for event in recording(name)["events"]]
    return "-".join(of.partition("/")[2].split("-")[:2])


def pending(name: str, kind: str, at_s: float, nodes: int) -> PendingPods:
    events = (warnings_at(name, at_s), run_of(name), "")
    return PendingPods(
        pods=pods_of(pods_at(name, at_s), KINDS[kind]),
        nodes=nodes,
        under_mpi=KINDS[kind].under_mpi({}),
        warnings=creation_warnings(*events, pods=nodes),
        pod_warnings=pod_warnings(*events),
    )


@pytest.mark.parametrize(
    ("name", "kind", "under_mpi"),
    [
        *(("run-job", "job", False), ("run-jobset", "jobset", False), ("run-pytorchjob", "pytorchjob", False)),
        *(("run-mpijob", "mpijob", True), ("run-trainjob", "trainjob", False), ("fix-trainjob-mpi", "trainjob", True)),
    ],
)
def test_the_report_of_a_manifest_is_read_from_the_first_pod_alone(name: str, kind: str, under_mpi: bool) -> None:
    pods = objects(name, "Pod")
    wanted = first_pod_labels(KINDS[kind], nodes=2, under_mpi=under_mpi)
    chosen = [pod["metadata"]["name"] for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]
    first = first_pod(pods_of({"items": pods}, KINDS[kind]), nodes=2, under_mpi=under_mpi)
    assert first is not None
    assert chosen == [first.name]
    assert len(pods) > 1


@pytest.mark.parametrize("name", ["kill-train-mpijob", "kill-run-mpijob"])
def test_a_killed_worker_is_known_however_mpirun_ends(name: str) -> None:
    pods = seen(name, "mpijob", 15.5)
    worker = pods["worker-1"]
    assert (worker.exit_code, worker.killed, worker.stop) == (137, True, "")
    (launcher,) = [pod for pod in pods.values() if pod.is_launcher]
    assert launcher.exit_code == {"kill-train-mpijob": 0, "kill-run-mpijob": 255}[name]
    assert not pods["worker-0"].killed


def test_the_operator_deletes_workers_after_a_success() -> None:
    ends = [state["at_s"] for state in recording("slow-train-mpijob-1")["states"] if state["deletion"]]
    pods = seen("slow-train-mpijob-1", "mpijob", min(ends) + 0.05)
    (launcher,) = [pod for pod in pods.values() if pod.is_launcher]
    assert (launcher.exit_code, launcher.stop) == (0, "")
    assert any(pod.deleted and pod.exit_code is None for pod in pods.values())


def test_a_failed_pod_that_the_operator_deletes_failed_by_itself() -> None:
    """training-operator 1.9.3 with backoffLimit deletes all pods at the first failure (kubeflow/trainer #3419)."""
    ends = [state["at_s"] for state in recording("kill193-unfixed")["states"] if state["kind"] == "pods"]
    found = [seen("kill193-unfixed", "pytorchjob", at_s) for at_s in sorted(ends)]
    killed = [pods["worker-0"] for pods in found if "worker-0" in pods and pods["worker-0"].exit_code == 137]
    assert killed
    assert all(pod.killed and pod.stop == "" for pod in killed)


def test_a_pod_whose_node_is_silent() -> None:
    assert not any(pod.node_gone for pod in seen("kubelet-stop-job", "job", 80).values())
    silent = [pod for pod in seen("kubelet-stop-job", "job", 90).values() if pod.node_gone]
    assert [(pod.number, pod.node) for pod in silent] == [(0, "node-1")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("run-pytorchjob-restricted", "pytorchjob"), ("kill-run-mpijob", "mpijob"), ("kill-run-jobset", "jobset")],
)
def test_a_pod_that_starts_or_ends_as_usual_is_not_on_a_silent_node(name: str, kind: str) -> None:
    for at_s in sorted({state["at_s"] for state in recording(name)["states"]}):
        assert not any(pod.node_gone for pod in seen(name, kind, at_s).values())


def test_a_sandbox_that_cannot_be_made_is_told() -> None:
    text = pending("no-sandbox", "job", 10.0, 1).reason()
    assert 'FailedCreatePodSandBox: "Failed to create pod sandbox' in text
    assert "failed to find plugin 'bridge' in path [/usr/lib/cni]" in text


@pytest.mark.parametrize(("name", "kind"), [("quota-mpijob", "mpijob"), ("quota-jobset", "jobset")])
def test_a_quota_that_allows_no_pod_is_final(name: str, kind: str) -> None:
    found = pending(name, kind, 30.0, 2)
    assert "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0" in found.reason()
    assert found.final_refusal
    later = pending(name, kind, 60.0, 2)
    # The message holds the random name of a pod.
    assert later.kind_of_reason() == found.kind_of_reason()


def test_pod_security_is_final() -> None:
    found = pending("run-pytorchjob-restricted", "pytorchjob", 10.0, 2)
    assert 'violates PodSecurity "restricted:latest"' in found.final_refusal
    # training-operator warns of the restart policy at each reconcile of a healthy job.
    assert "Restart policy" not in found.warnings.newest


def test_a_suspended_job_is_told() -> None:
    assert suspended(workload_at("suspend-job", "jobs", 7.555))
    workload = workload_at("suspend-job", "jobs", 20.0)
    assert suspended(workload)
    assert is_taken_up(workload)
    assert not is_taken_up(workload_at("suspend-job", "jobs", 7.555))
    waits = PendingPods(pods=(), nodes=1, under_mpi=False, suspended=True)
    assert "the workload is suspended, because a queue (such as Kueue) has not admitted it" in waits.reason()


def test_an_image_that_is_not_there_is_one_wait() -> None:
    """Its reason alternates between ErrImagePull and ImagePullBackOff."""
    found = [pending("image-absent", "job", at_s, 1) for at_s in range(6, 60)]
    assert len({waits.reason() for waits in found}) > 1
    assert len({waits.kind_of_reason() for waits in found}) == 1


@pytest.mark.parametrize(
    ("message", "final"),
    [
        (
            "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=0, limited: "
            "requests.nvidia.com/gpu=4",
            True,
        ),
        (
            "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16, limited: "
            "requests.nvidia.com/gpu=16",
            False,
        ),
        (
            "exceeded quota: q, requested: limits.memory=64Gi,pods=1, used: limits.memory=0,pods=0, limited: "
            "limits.memory=32Gi,pods=10",
            True,
        ),
        ('pods "a" is forbidden: failed quota: q: must specify limits.cpu for: mpi', True),
        ('pods "a" is forbidden: maximum memory usage per Container is 32Gi, but limit is 64Gi', True),
        ('pods "a" is forbidden: error looking up service account ml/a: serviceaccount "a" not found', False),
        ("Internal error occurred: failed calling webhook", False),
    ],
)
def test_what_no_waiting_cures(message: str, final: bool) -> None:
    assert is_final(message) is final
