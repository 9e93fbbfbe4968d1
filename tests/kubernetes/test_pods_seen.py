"""What the API tells of a pod, in words. The JSON is as kubelet and scheduler write it (Kubernetes 1.32)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.kubernetes.pods import PodSeen, complaints, first_pod, pods_of


def pod(name: str = "t-0-abcde", **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"batch.kubernetes.io/job-completion-index": "0", "app.kubernetes.io/component": "node"},
        },
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "seatrial"}]},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "seatrial", "state": {}}]},
    }
    for path, value in changes.items():
        *folders, last = path.split("__")
        place = made
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return made


def of_state(state: dict[str, Any], **changes: Any) -> PodSeen:
    status = [{"name": "istio-proxy", "state": {"running": {}}}, {"name": "seatrial", "state": state}]
    return seen(status__containerStatuses=status, **changes)


def seen(**changes: Any) -> PodSeen:
    (found,) = pods_of({"items": [pod(**changes)]})
    return found


def test_one_that_runs() -> None:
    found = of_state({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, status__phase="Running")
    assert (found.state, found.waits, found.ended, found.stopped) == ("running", "", "", "")
    assert found.label == "pod t-0-abcde on node gpu-1"


@pytest.mark.parametrize(
    ("changes", "words", "hopeless"),
    [
        (
            {
                "spec__nodeName": "",
                "status__conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                    }
                ],
            },
            "no node takes it (0/3 nodes are available: 3 Insufficient nvidia.com/gpu)",
            False,
        ),
        (
            {
                "spec__nodeName": "",
                "status__conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
                ],
            },
            "held back until a queue lets it in",
            False,
        ),
        ({"spec__nodeName": "", "status__containerStatuses": []}, "no node yet", False),
        (
            {
                "status__containerStatuses": [
                    {
                        "name": "seatrial",
                        "image": "example/train:1",
                        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off\npulling image"}},
                    }
                ]
            },
            "its image example/train:1 cannot be pulled (ImagePullBackOff: Back-off pulling image)",
            True,
        ),
        (
            {
                "status__initContainerStatuses": [
                    {
                        "name": "init-pytorch",
                        "image": "alpine:3.10",
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
                    }
                ]
            },
            "its image alpine:3.10 cannot be pulled (ErrImagePull: not found)",
            True,
        ),
        (
            {
                "status__containerStatuses": [
                    {
                        "name": "seatrial",
                        "state": {
                            "waiting": {"reason": "CreateContainerConfigError", "message": 'secret "t" not found'}
                        },
                    }
                ]
            },
            'cannot be made (CreateContainerConfigError: secret "t" not found)',
            True,
        ),
        (
            {"status__initContainerStatuses": [{"name": "init-pytorch", "state": {"running": {}}}]},
            "its init container init-pytorch has not ended",
            False,
        ),
        ({}, "its image is pulled and its container made", False),
    ],
)
def test_why_one_waits(changes: dict[str, Any], words: str, hopeless: bool) -> None:
    found = seen(**changes)
    assert found.state == "waiting"
    assert words in found.waits
    assert found.hopeless is hopeless


@pytest.mark.parametrize(
    ("terminated", "words", "code"),
    [
        ({"exitCode": 1, "reason": "Error"}, "ended with exit code 1", 1),
        ({"exitCode": 0, "reason": "Completed"}, "ended with exit code 0", 0),
        ({"exitCode": 137, "reason": "OOMKilled"}, "needed more memory than the limit of 64Gi (--memory)", 137),
        ({"exitCode": 128, "reason": "ContainerCannotRun"}, "exit code 128 (ContainerCannotRun)", 128),
    ],
)
def test_how_one_ended(terminated: dict[str, Any], words: str, code: int) -> None:
    limited = [{"name": "seatrial", "resources": {"limits": {"memory": "64Gi"}}}]
    found = of_state({"terminated": terminated}, status__phase="Failed", spec__containers=limited)
    assert found.state == "ended"
    assert words in found.ended
    assert found.exit_code == code
    assert found.stopped == ""


def test_one_that_failed_without_a_container_says_why() -> None:
    found = seen(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices left"})
    assert (found.state, found.exit_code) == ("ended", None)
    assert "UnexpectedAdmissionError: no devices left" in found.ended


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            "was evicted (The node was low on resource: ephemeral-storage)",
        ),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
            },
            "make room for another pod",
        ),
    ],
)
def test_one_that_the_cluster_stopped(status: dict[str, Any], words: str) -> None:
    assert words in seen(status=status).stopped


def test_one_that_is_deleted() -> None:
    found = of_state({"running": {}}, metadata__deletionTimestamp="2026-01-01T00:00:00Z")
    assert (found.stopped, found.deleted) == ("was deleted", True)


def test_the_first_pod_of_each_kind() -> None:
    index, replica = "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"
    of = "training.kubeflow.org/replica-type"
    pods = [
        pod("j-1-x", metadata__labels={index: "1"}),
        pod("j-0-x", metadata__labels={index: "0"}),
    ]
    assert first_pod(pods_of({"items": pods}), under_mpi=False).name == "j-0-x"  # type: ignore[union-attr]
    old = [pod("j-0-x", metadata__labels={}, metadata__annotations={index: "0"})]
    assert first_pod(pods_of({"items": old}), under_mpi=False).name == "j-0-x"  # type: ignore[union-attr]
    single = [pod("j-x", metadata__labels={})]
    assert first_pod(pods_of({"items": single}), under_mpi=False).name == "j-x"  # type: ignore[union-attr]
    kubeflow = [
        pod("p-worker-0", metadata__labels={replica: "0", of: "worker"}),
        pod("p-master-0", metadata__labels={replica: "0", of: "master"}),
    ]
    found = pods_of({"items": kubeflow})
    assert {each.name: each.number for each in found} == {"p-worker-0": 1, "p-master-0": 0}
    assert first_pod(found, under_mpi=False).name == "p-master-0"  # type: ignore[union-attr]
    mpi = [
        pod("m-worker-0", metadata__labels={replica: "0", of: "worker"}),
        pod("m-launcher-x", metadata__labels={"app.kubernetes.io/component": "launcher"}),
    ]
    assert first_pod(pods_of({"items": mpi}), under_mpi=True).name == "m-launcher-x"  # type: ignore[union-attr]


def test_of_pods_that_were_started_again_the_newest_counts() -> None:
    pods = [
        pod("a-new", metadata__creationTimestamp="2026-01-01T00:00:09Z"),
        pod("z-old", metadata__creationTimestamp="2026-01-01T00:00:01Z"),
    ]
    assert first_pod(pods_of({"items": pods}), under_mpi=False).name == "a-new"  # type: ignore[union-attr]


def test_complaints_are_those_of_the_run() -> None:
    def warning(name: str, reason: str, message: str, at: str) -> dict[str, Any]:
        return {"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": at}

    told = {
        "items": [
            warning("t", "FailedCreate", 'pods "t-1" is forbidden: exceeded quota: gpus', "2026-01-01T00:00:02Z"),
            warning("t-node-0", "FailedCreate", "older", "2026-01-01T00:00:01Z"),
            warning("t2", "FailedCreate", "of another run", "2026-01-01T00:00:03Z"),
            warning("t", "FailedCreate", "of an earlier run of this name", "2025-12-31T23:59:59Z"),
            warning("t-0-x", "BackOff", "told by the pod itself", "2026-01-01T00:00:03Z"),
        ]
    }
    assert complaints(told, "t", "2026-01-01T00:00:00Z") == ("older", 'pods "t-1" is forbidden: exceeded quota: gpus')


def test_a_name_that_is_none_of_a_pod_becomes_no_file() -> None:
    assert pods_of({"items": [pod("../../etc/passwd"), pod("a/b"), pod("")]}) == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["items", "metadata", "name", "status", "spec", "containers", "state", "conditions"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_answer_is_borne(answer: Any) -> None:
    pods_of(answer)
    pods_of({"items": [answer, pod(status=answer), pod(spec=answer), pod(metadata__labels=answer)]})
    complaints(answer, "t", "")
    complaints({"items": [answer]}, "t", "")
