"""Faults in the double of a cluster, as kubectl shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.double.cluster import Cluster, made_cluster

pytestmark = pytest.mark.cluster
_WAIT_S = 20.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with made_cluster({"node-0": {"allocatable": {"nvidia.com/gpu": "1"}}}) as made:
        yield made


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.plant()
    shared.call("delete", "job/one", "--ignore-not-found", timeout_s=20)
    _await_no_pod(shared)


def _await_no_pod(cluster: Cluster) -> None:
    give_up = time.monotonic() + _WAIT_S
    while cluster.get("pods")["items"]:
        assert time.monotonic() < give_up
        time.sleep(0.1)


def _job(*command: str, **spec: Any) -> str:
    main = {"name": "main", "image": "registry.example.com/x:1", "command": list(command)}
    containers = [{**main, **spec.pop("container", {})}]
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": containers, **spec}
    job = {"backoffLimit": 0, "template": {"spec": pod}}
    metadata = {"name": "one", "namespace": "default"}
    return json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job})


def _start(cluster: Cluster, text: str) -> None:
    done = cluster.call("apply", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


def _pod(cluster: Cluster, until: Callable[[Any], Any]) -> Any:
    """The pod of the job, as soon as this is true of it."""
    give_up = time.monotonic() + _WAIT_S
    while True:
        pods = cluster.get("pods", "-l", "job-name=one")["items"]
        if pods and until(pods[0]):
            return pods[0]
        assert time.monotonic() < give_up, pods
        time.sleep(0.1)


def _state(pod: Any) -> Any:
    (status,) = pod["status"].get("containerStatuses") or [{"state": {}}]
    return status["state"]


def test_an_image_that_cannot_be_pulled(cluster: Cluster) -> None:
    cluster.plant({"fault": "image-pull"})
    _start(cluster, _job("true"))
    pod = _pod(cluster, lambda pod: _state(pod).get("waiting", {}).get("reason") == "ImagePullBackOff")
    assert pod["status"]["phase"] == "Pending"
    cluster.plant()
    _pod(cluster, lambda pod: pod["status"]["phase"] == "Succeeded")


def test_a_pod_for_which_there_is_no_node(cluster: Cluster) -> None:
    _start(cluster, _job("true", container={"resources": {"limits": {"nvidia.com/gpu": "2"}}}))
    pod = _pod(cluster, lambda pod: pod["status"].get("conditions"))
    (told,) = pod["status"]["conditions"]
    assert told["reason"] == "Unschedulable"
    assert told["message"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_a_quota_is_in_the_events_of_the_job(cluster: Cluster) -> None:
    cluster.plant({"fault": "quota"})
    _start(cluster, _job("true"))
    give_up = time.monotonic() + _WAIT_S
    while not (found := cluster.get("events", "--field-selector", "reason=FailedCreate")["items"]):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert "exceeded quota" in found[0]["message"]
    assert cluster.get("pods")["items"] == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [("oom-killed", {"reason": "OOMKilled", "exitCode": 137}), ("evicted", {"reason": "Error", "exitCode": 137})],
)
def test_what_kills_a_pod_half_way(fault: str, told: dict[str, Any], cluster: Cluster) -> None:
    cluster.plant({"fault": fault, "after_log": "half way"})
    _start(cluster, _job("sh", "-c", "echo half way; sleep 60"))
    pod = _pod(cluster, lambda pod: pod["status"]["phase"] == "Failed")
    assert {key: _state(pod)["terminated"][key] for key in told} == told
    assert (pod["status"].get("reason") == "Evicted") == (fault == "evicted")
    assert cluster.await_end("job", "one") == "Failed"


def test_a_pod_that_somebody_deletes(cluster: Cluster) -> None:
    cluster.plant({"fault": "deleted", "after_log": "half way"})
    _start(cluster, _job("sh", "-c", "trap 'echo told to end; exit 1' TERM; echo half way; sleep 60 & wait"))
    assert cluster.await_end("job", "one") == "Failed"
    _await_no_pod(cluster)


def test_a_pod_that_is_never_ready(cluster: Cluster) -> None:
    cluster.plant({"fault": "never-ready"})
    _start(cluster, _job("sleep", "60"))
    pod = _pod(cluster, lambda pod: pod["status"]["phase"] == "Running")
    told = {known["type"]: known["status"] for known in pod["status"]["conditions"]}
    assert told["Ready"] == "False"


def test_a_server_that_says_nothing(cluster: Cluster) -> None:
    cluster.plant({"fault": "api-silent", "calls": "get pods*"})
    done = cluster.call("get", "pods", "--request-timeout=1s")
    assert done.returncode == 1
    assert "Unable to connect to the server" in done.stderr
    assert cluster.call("get", "nodes").returncode == 0


def test_a_log_that_breaks_can_be_gone_on_with(cluster: Cluster) -> None:
    cluster.plant({"fault": "logs-break", "lines": 2})
    _start(cluster, _job("sh", "-c", "for i in 1 2 3 4; do echo line $i; done"))
    pod = _pod(cluster, lambda pod: pod["status"]["phase"] == "Succeeded")
    name = pod["metadata"]["name"]
    assert cluster.call("logs", name, "--follow").stdout == "line 1\nline 2\n"
    assert cluster.call("logs", name, "--tail=1").stdout == "line 4\n"
    stamped = cluster.call("logs", name, "--timestamps").stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in stamped] == ["line 1", "line 2", "line 3", "line 4"]


def test_a_log_that_was_rotated_begins_later(cluster: Cluster) -> None:
    cluster.plant({"fault": "log-rotation", "bytes": 130})
    _start(cluster, _job("sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done"))
    pod = _pod(cluster, lambda pod: pod["status"]["phase"] == "Succeeded")
    text = cluster.call("logs", pod["metadata"]["name"]).stdout
    assert "line 1" not in text
    assert text.endswith("line 5\n")


def test_a_container_restarts_by_its_policy(cluster: Cluster) -> None:
    _start(cluster, _job("sh", "-c", "exit 3", restartPolicy="OnFailure"))
    pod = _pod(cluster, lambda pod: _state(pod).get("waiting", {}).get("reason") == "CrashLoopBackOff")
    assert pod["status"]["phase"] == "Running"


def test_root_is_refused_where_the_pod_says_so(cluster: Cluster) -> None:
    _start(cluster, _job("true", securityContext={"runAsNonRoot": True, "runAsUser": 0}))
    _pod(cluster, lambda pod: _state(pod).get("waiting", {}).get("reason") == "CreateContainerConfigError")
