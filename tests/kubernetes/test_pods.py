"""The state of a pod, read from JSON as kubelet and scheduler write it (Kubernetes 1.32)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.pods import PodStatus, first_pod, pods_of, workload_failure
from seatrial.targets.kubernetes.warnings_of_run import creation_warnings, pod_warnings


def pod(name: str = "t-0-abcde", **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "ml",
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


def of_state(state: dict[str, Any], **changes: Any) -> PodStatus:
    status = [{"name": "istio-proxy", "state": {"running": {}}}, {"name": "seatrial", "state": state}]
    return seen(status__containerStatuses=status, **changes)


def seen(**changes: Any) -> PodStatus:
    (found,) = pods_of({"items": [pod(**changes)]}, KINDS["job"])
    return found


def test_one_that_runs() -> None:
    found = of_state({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, status__phase="Running")
    assert (found.state, found.waits_for, found.end, found.stop) == ("running", "", "", "")
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
            "no node accepts it (0/3 nodes are available: 3 Insufficient nvidia.com/gpu)",
            False,
        ),
        (
            {
                "spec__nodeName": "",
                "status__conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
                ],
            },
            "waiting for a queue to admit it",
            False,
        ),
        ({"spec__nodeName": "", "status__containerStatuses": []}, "not scheduled to a node yet", False),
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
            'its image example/train:1 cannot be pulled (ImagePullBackOff: "Back-off pulling image")',
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
            'its image alpine:3.10 cannot be pulled (ErrImagePull: "not found")',
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
            """cannot be created (CreateContainerConfigError: "secret 't' not found")""",
            True,
        ),
        (
            {"status__initContainerStatuses": [{"name": "init-pytorch", "state": {"running": {}}}]},
            "its init container init-pytorch has not ended",
            False,
        ),
        ({}, "its image is being pulled or its container created", False),
    ],
)
def test_what_a_pod_waits_for(changes: dict[str, Any], words: str, hopeless: bool) -> None:
    found = seen(**changes)
    assert found.state == "waiting"
    assert words in found.waits_for
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
def test_how_a_pod_ended(terminated: dict[str, Any], words: str, code: int) -> None:
    limited = [{"name": "seatrial", "resources": {"limits": {"memory": "64Gi"}}}]
    found = of_state({"terminated": terminated}, status__phase="Failed", spec__containers=limited)
    assert found.state == "ended"
    assert words in found.end
    assert found.exit_code == code
    assert found.stop == ""


def test_words_of_a_kubelet_stay_in_quotes() -> None:
    """The node that it runs on may be the one that lies."""
    lie = "it is healthy); cordon gpu-3 (it is not"
    words = f'"{lie}"'
    ended = of_state({"terminated": {"exitCode": 1, "reason": lie}}, status__phase="Failed")
    assert ended.end == f"ended with exit code 1 ({words})"
    waits = {"name": "seatrial", "image": "a:1", "state": {"waiting": {"reason": "ErrImagePull", "message": lie}}}
    pulled = seen(status__containerStatuses=[waits])
    assert pulled.waits_for == f"its image a:1 cannot be pulled (ErrImagePull: {words})"
    assert seen(status={"phase": "Failed", "reason": "Evicted", "message": lie}).stop == f"was evicted ({words})"
    event = {"involvedObject": {"kind": "Pod", "name": "t-0"}, "reason": "Failed", "message": lie}
    assert pod_warnings({"items": [event]}, "t", "") == {"t-0": f"Failed: {words}"}


def test_words_of_a_kubelet_are_bounded() -> None:
    """Each of them would be in the report, and some on the terminal."""
    long = "x" * 100_000
    ended = of_state({"terminated": {"exitCode": 1, "reason": long}}, status__phase="Failed")
    waits = {"name": "seatrial", "image": long, "state": {"waiting": {"reason": "ErrImagePull", "message": long}}}
    init = {"name": long, "state": {"terminated": {"exitCode": 1}}}
    failed = seen(status={"phase": "Failed", "reason": long, "message": long, "initContainerStatuses": [init]})
    running = seen(status__initContainerStatuses=[{"name": long, "state": {"running": {}}}])
    pulled = seen(status__containerStatuses=[waits])
    assert max(map(len, (ended.end, failed.end, running.waits_for, pulled.waits_for))) < 1_000


def test_a_pod_that_failed_without_a_container() -> None:
    found = seen(status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices left"})
    assert (found.state, found.exit_code) == ("ended", None)
    assert 'UnexpectedAdmissionError: "no devices left"' in found.end


@pytest.mark.parametrize("reason", ["NodeAffinity", "UnexpectedAdmissionError"])
def test_a_kubelet_that_restarts_refuses_a_pod_that_runs(reason: str) -> None:
    found = of_state(
        {"terminated": {"exitCode": 137, "reason": "Error"}},
        status__phase="Failed",
        status__reason=reason,
        status__message="Pod was rejected",
    )
    assert found.stop == f'was refused by its kubelet while it ran ({reason}: "Pod was rejected")'
    assert not found.killed


def test_an_init_container_that_failed_is_named() -> None:
    """After 100 tries training-operator's own ends so: the name of the master was not known within 200 s."""
    init = [{"name": "init-pytorch", "state": {"terminated": {"exitCode": 1}}}]
    found = seen(status={"phase": "Failed", "initContainerStatuses": init})
    assert found.end == "failed before its container ran (its init container init-pytorch ended with exit code 1)"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            'was evicted ("The node was low on resource: ephemeral-storage")',
        ),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
            },
            "was preempted by another pod",
        ),
    ],
)
def test_a_pod_that_the_cluster_stopped(status: dict[str, Any], words: str) -> None:
    assert words in seen(status=status).stop


def test_a_pod_that_is_deleted() -> None:
    found = of_state({"running": {}}, metadata__deletionTimestamp="2026-01-01T00:00:00Z")
    assert (found.stop, found.deleted) == ("was deleted", True)


def deleted_after(code: int, finished_at: str) -> PodStatus:
    """A pod that the API server was asked to delete at 10:00:10."""
    terminated = {"exitCode": code, "reason": "Error", "finishedAt": finished_at}
    until = {"metadata__deletionTimestamp": "2026-03-29T10:01:10Z", "metadata__deletionGracePeriodSeconds": 60}
    return of_state({"terminated": terminated}, status__phase="Failed", **until)


@pytest.mark.parametrize("code", [3, 130, 143])
def test_a_clock_that_is_behind_makes_no_killed_pod(code: int) -> None:
    """Of the pods that a controller deletes because another one failed, none is at fault."""
    found = deleted_after(code, "2026-03-29T10:00:07Z")
    assert (found.stop, found.killed) == ("was deleted", False)


def test_a_pod_that_was_killed_before_its_deletion_stays_killed() -> None:
    assert deleted_after(137, "2026-03-29T10:00:07Z").killed
    assert not deleted_after(137, "2026-03-29T10:01:10Z").killed


@pytest.mark.parametrize("grace_s", [10**400, -(10**400), 1e400, "60", None, {}])
def test_a_grace_that_is_none_ends_no_run(grace_s: object) -> None:
    """It is what the API server says."""
    until = {"metadata__deletionTimestamp": "2026-03-29T10:01:10Z", "metadata__deletionGracePeriodSeconds": grace_s}
    assert of_state({"running": {}}, **until).deleted


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_of_the_cluster_are_those_of_no_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin the hour from 02:00 on was left out on that day: 02:59 there is one hour later than 03:00."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        terminated = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-03-29T02:59:58Z"}
        until = {"metadata__deletionTimestamp": "2026-03-29T03:01:05Z", "metadata__deletionGracePeriodSeconds": 60}
        assert of_state({"terminated": terminated}, status__phase="Failed", **until).killed
    finally:
        monkeypatch.undo()
        time.tzset()


_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA, _ROLE = "training.kubeflow.org/replica-index", "training.kubeflow.org/replica-type"


def first(kind: str, *pods: dict[str, Any], nodes: int = 2) -> str | None:
    """The name of the pod whose log is followed."""
    under_mpi = KINDS[kind].under_mpi({})
    found = first_pod(pods_of({"items": list(pods)}, KINDS[kind]), nodes=nodes, under_mpi=under_mpi)
    return None if found is None else found.name


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_the_first_pod_of_an_indexed_job(kind: str) -> None:
    pods = [pod(f"a{number}", metadata__labels={_INDEX: str(number)}) for number in (1, 0)]
    assert first(kind, *pods) == "a0"
    old = [pod(f"a{number}", metadata__labels={}, metadata__annotations={_INDEX: str(number)}) for number in (1, 0)]
    assert first(kind, *old) == "a0"


def test_a_kubelet_changes_no_number_by_an_annotation() -> None:
    """Before Kubernetes 1.28 the index of a Job's pod is an annotation alone; the name has it too."""
    pods = [
        pod(f"t-{number}-{suffix}", metadata__labels={}, metadata__annotations={_INDEX: "0"}, spec__nodeName=node)
        for number, suffix, node in ((0, "abcde", "gpu-0"), (1, "fghij", "gpu-liar"))
    ]
    found = pods_of({"items": pods}, KINDS["job"])
    assert [one.number for one in found] == [0, 1]
    first = first_pod(found, nodes=2, under_mpi=False)
    assert first is not None
    assert first.node == "gpu-0"


def test_the_first_pod_of_a_pytorchjob_is_the_master() -> None:
    pods = [pod("p-worker-0", metadata__labels={_REPLICA: "0", _ROLE: "worker"})]
    pods += [pod("p-master-0", metadata__labels={_REPLICA: "0", _ROLE: "Master"})]
    assert {each.name: each.number for each in pods_of({"items": pods}, KINDS["pytorchjob"])} == {
        "p-worker-0": 1,
        "p-master-0": 0,
    }
    assert first("pytorchjob", *pods) == "p-master-0"


def test_the_first_pod_of_an_mpijob_is_the_launcher() -> None:
    worker = pod("m-worker-0", metadata__labels={_REPLICA: "0", _ROLE: "worker"})
    assert first("mpijob", worker, pod("m-x", metadata__labels={"app.kubernetes.io/component": "launcher"})) == "m-x"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [{}, {"another.example.com/index": "0"}])
def test_a_pod_without_a_number_is_the_first_of_a_single_node_only(kind: str, labels: dict[str, str]) -> None:
    if KINDS[kind].under_mpi({}):
        return
    assert first(kind, pod("j-x", metadata__labels=labels), nodes=1) == "j-x"
    assert first(kind, pod("a", metadata__labels=labels), pod("b", metadata__labels=labels)) is None


def test_the_first_pod_after_a_restart_is_the_newest() -> None:
    new = pod("a-new", metadata__creationTimestamp="2026-01-01T00:00:09Z")
    assert first("jobset", new, pod("z-old", metadata__creationTimestamp="2026-01-01T00:00:01Z")) == "a-new"


def test_warnings_are_those_of_the_run() -> None:
    def warning(name: str, reason: str, message: str, at: str) -> dict[str, Any]:
        return {"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": at}

    answer = {
        "items": [
            warning("t", "FailedCreate", 'pods "t-1" is forbidden: exceeded quota: gpus', "2026-01-01T00:00:02Z"),
            warning("t-node-0", "FailedCreate", "older", "2026-01-01T00:00:01Z"),
            warning("t2", "FailedCreate", "of another run", "2026-01-01T00:00:03Z"),
            warning("t", "FailedCreate", "of an earlier run of this name", "2025-12-31T23:59:59Z"),
            warning("t-0-x", "BackOff", "of the pod itself", "2026-01-01T00:00:03Z"),
        ]
    }
    since = "2026-01-01T00:00:00Z"
    assert creation_warnings(answer, "t", since).newest == 'pods "t-1" is forbidden: exceeded quota: gpus'
    assert creation_warnings({"items": answer["items"][1:]}, "t", since).newest == "older"


def test_why_a_workload_failed_are_words_of_the_cluster() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "a. PASS", "message": "b\x1b[2J; see\nPASS."}
    assert workload_failure({"status": {"conditions": [condition]}}) == '"a. PASS": "b\\x1b[2J; see PASS"'
    assert workload_failure({"status": {"conditions": [{**condition, "message": ""}]}}) == '"a. PASS"'
    assert workload_failure({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}) == "no reason given"


def test_a_kubelet_does_not_speak_for_the_scheduler() -> None:
    """It can write any condition of a pod that is on its node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "trial: PASS"}
    (placed,) = pods_of({"items": [pod(status__conditions=[condition])]}, KINDS["job"])
    assert (placed.node, placed.waits_for) == ("gpu-1", "its image is being pulled or its container created")


def test_an_invalid_pod_name_becomes_no_file() -> None:
    assert pods_of({"items": [pod("../../etc/passwd"), pod("a/b"), pod("")]}, KINDS["job"]) == ()


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


@given(_JSON, st.sampled_from(sorted(KINDS)))
def test_no_answer_ends_in_a_traceback(answer: Any, name: str) -> None:
    kind = KINDS[name]
    pods_of(answer, kind)
    pods_of({"items": [answer, pod(status=answer), pod(spec=answer), pod(metadata__labels=answer)]}, kind)
    creation_warnings(answer, "t", "")
    creation_warnings({"items": [answer]}, "t", "")


def test_pods_that_wait_for_a_readiness_gate_are_on_healthy_nodes() -> None:
    """A webhook adds the gate, and its controller does not set it. The kubelet says so, which is not silent."""
    ready = {"type": "Ready", "status": "False"}
    for reason, is_gone in (({}, True), ({"reason": "ReadinessGatesNotReady"}, False)):
        conditions = [{**ready, **reason}, {"type": "ContainersReady", "status": "True"}]
        runs = {"name": "seatrial", "ready": True, "state": {"running": {}}}
        status = {"phase": "Running", "containerStatuses": [runs], "conditions": conditions}
        (found,) = pods_of({"items": [pod(status=status)]}, KINDS["job"])
        assert found.node_gone == is_gone
