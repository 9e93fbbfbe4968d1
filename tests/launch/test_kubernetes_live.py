"""The driver before, besides and after what a first pod tells: in words, in bounded time, and nothing is left."""

from __future__ import annotations

import json
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from kubernetes.test_pods_seen import pod
from kubernetes.workloads import workload
from launch.kubectl_script_double import scripted

from seatrial.errors import RequestError, SeatrialError
from seatrial.kubernetes.manifest import manifest
from seatrial.kubernetes.trainjob import PATCHES
from seatrial.launch import kubernetes_live
from seatrial.launch.job import Job
from seatrial.launch.kubectl import Kubectl
from seatrial.launch.kubernetes import Pods
from seatrial.launch.kubernetes_access import chosen_nodes, see_that_it_may, trainer_version
from seatrial.launch.kubernetes_live import Attempt, Limits, TooFewError
from seatrial.launch.kubernetes_made import Made
from seatrial.launch.kubernetes_told import Told

_WORKLOAD = workload(nproc_per_node=1, gpus_per_node=1)
_OBJECTS = manifest("job", _WORKLOAD)
_INDEX = "batch.kubernetes.io/job-completion-index"
_UNSCHEDULABLE = [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}
]


_ITS_LOG_ENDS = ("'logs trial-1-1-x'*", "echo its last line")


def waiting(number: int, **changes: Any) -> dict[str, Any]:
    told = {"spec__nodeName": "", "status__conditions": _UNSCHEDULABLE, **changes}
    return pod(f"trial-1-{number}-x", metadata__labels={_INDEX: str(number)}, **told)


def running(number: int) -> dict[str, Any]:
    status = {"phase": "Running", "containerStatuses": [{"name": "seatrial", "ready": True, "state": {"running": {}}}]}
    return pod(f"trial-1-{number}-x", metadata__labels={_INDEX: str(number)}, status=status)


class Cluster:
    """What the script that stands in for kubectl answers, and what it was asked."""

    def __init__(self, folder: Path, pods: list[dict[str, Any]], *more: tuple[str, str], **limits: float) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.caught: list[int] = []
        self.events: list[dict[str, Any]] = []
        for name, content in (("pods", {"items": pods}), ("none", {"items": []})):
            (folder / name).write_text(json.dumps(content))
        uid = {"items": [{**thing, "metadata": {**thing["metadata"], "uid": "u-1"}} for thing in _OBJECTS]}
        (folder / "made").write_text(json.dumps(uid))
        at = shlex.quote(str(folder))
        program = scripted(
            folder,
            *more,
            ("'apply -f - -o json'*", f"cat > {at}/applied; cat {at}/made"),
            ("apply*", f"cat > {at}/owned"),
            ("delete*", f"touch {at}/deleted"),
            ("'get pods'*", f"if [ -e {at}/deleted ]; then cat {at}/none; else cat {at}/pods; fi"),
            ("'get events'*", f"cat {at}/none"),
            ("'get job'*", "echo '{}'"),
            ("logs*", "sleep 20"),
        )
        self.kubectl = Kubectl(program=program, namespace=None)
        detail = Pods(
            workload=_WORKLOAD,
            kubectl=self.kubectl,
            under_mpi=False,
            min_hosts=None,
            queue_timeout_s=60.0,
            keep=False,
        )
        self.job = Job(
            run="run-1",
            target="job",
            nodes=2,
            nproc_per_node=1,
            device="cpu",
            backend="gloo",
            python="python3",
            env={},
            plan=Stream().plan,
            detail=detail,
        )
        self.limits = Limits(**{"queue_s": 60.0, **limits})

    def attempt(self, min_hosts: int | None = None) -> Attempt:
        run = {"kind": "run", "run": "run-1", "src": "conductor", "seq": 0, "t": 1.0, "job": {}}
        self.told = Told(run, self.folder, self.events.append, lambda message: None)
        return Attempt(
            kubectl=self.kubectl,
            made=Made(self.kubectl, "job", _OBJECTS),
            job=replace(self.job, detail=replace(self.job.detail, min_hosts=min_hosts)),
            limits=self.limits,
            told=self.told,
            folder=self.folder,
            caught=self.caught,
            say=self.said.append,
        )

    def failure(self, min_hosts: int | None = None) -> SeatrialError:
        """Of an attempt that cannot come to its end; all is deleted after it."""
        attempt = self.attempt(min_hosts)
        try:
            with pytest.raises(SeatrialError) as raised:
                attempt.hold()
        finally:
            assert attempt.end(keep=False) == []
        assert self.deletes()
        return raised.value

    def deletes(self) -> list[str]:
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith("delete")]


def test_all_is_made_at_once_and_owned_by_the_workload(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0), waiting(1)], queue_s=0.1)
    cluster.failure()
    assert json.loads((tmp_path / "applied").read_text())["items"] == _OBJECTS
    owned = json.loads((tmp_path / "owned").read_text())["items"]
    assert [thing["kind"] for thing in owned] == [thing["kind"] for thing in _OBJECTS[:-1]]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "trial-1", "uid": "u-1"}
    assert all(thing["metadata"]["ownerReferences"] == [owner] for thing in owned)
    named = cluster.deletes()[0].split()
    for thing in _OBJECTS:
        assert any(
            word.startswith(thing["kind"].lower()) and word.endswith(thing["metadata"]["name"]) for word in named
        )


def test_no_node_takes_them(tmp_path: Path) -> None:
    told = str(Cluster(tmp_path, [running(0), waiting(1)], queue_s=3.0).failure())
    assert "not all pods have started within 3 s (--queue-timeout)" in told
    assert "1 of 2 pods wait: no node takes it (0/3 nodes are available)" in told


def test_an_image_that_cannot_be_pulled(tmp_path: Path) -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    status = [{"name": "seatrial", "image": "example/train:1", "state": state}]
    stuck = waiting(1, spec__nodeName="gpu-1", status__conditions=[], status__containerStatuses=status)
    told = str(Cluster(tmp_path, [running(0), stuck], hopeless_s=0.5).failure())
    assert "pod trial-1-1-x on node gpu-1 does not start: its image example/train:1 cannot be pulled" in told
    assert "manifest unknown" in told


def test_a_quota(tmp_path: Path) -> None:
    message = 'Error creating: pods "trial-1-0-x" is forbidden: exceeded quota: gpus, requested: 8, used: 0, limited: 4'
    warning = {"involvedObject": {"name": "trial-1"}, "reason": "FailedCreate", "message": message}
    (tmp_path / "events").write_text(json.dumps({"items": [warning]}))
    told = str(Cluster(tmp_path, [], ("'get events'*", f"cat {tmp_path}/events"), queue_s=3.0).failure())
    assert "2 of 2 pods are not made: Error creating" in told
    assert "exceeded quota: gpus" in told


def test_with_fewer_hosts_it_begins_again(tmp_path: Path) -> None:
    found = Cluster(tmp_path, [running(0), waiting(1)], fewer_s=0.5).failure(min_hosts=1)
    assert isinstance(found, TooFewError)
    assert (found.running, found.absent) == (1, ("trial-1-1-x: no node takes it (0/3 nodes are available)",))


def test_fewer_than_the_least_is_no_beginning(tmp_path: Path) -> None:
    found = Cluster(tmp_path, [waiting(0), waiting(1)], fewer_s=0.1, queue_s=1.0).failure(min_hosts=1)
    assert not isinstance(found, TooFewError)


def test_a_server_that_has_fallen_silent(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    once = tmp_path / "once"
    code = f"if [ -e {once} ]; then echo 'Unable to connect to the server: EOF' >&2; exit 1; fi; cat {tmp_path}/pods"
    gone = f"if [ -e {tmp_path}/deleted ]; then cat {tmp_path}/none; else {code}; touch {once}; fi"
    cluster = Cluster(tmp_path, [running(0), running(1)], ("'get pods'*", gone), silent_s=3.0)
    told = str(cluster.failure())
    assert "API server has given no answer for 3 s (Unable to connect to the server: EOF)" in told


def test_ctrl_c_deletes_what_was_made(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0), waiting(1)])
    attempt = cluster.attempt()
    cluster.caught.append(signal.SIGINT)
    attempt.hold()
    assert attempt.end(keep=False) == []
    assert "job.batch/trial-1" in cluster.deletes()[0]
    assert [event["by"] for event in cluster.events if event["kind"] == "interrupted"] == ["SIGINT"]


def test_somebody_deletes_it_before_it_runs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [], ("'get job'*", "exit 0"))
    assert "job.batch/trial-1 is gone: somebody has deleted it" in str(cluster.failure())
    assert cluster.told.interrupted


@pytest.fixture
def soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way from the script comes at once."""
    monkeypatch.setattr(kubernetes_live, "_GONE_S", 0.3)


def test_a_pod_that_is_evicted_before_the_first_one_runs(tmp_path: Path, soon_gone: None) -> None:
    evicted = waiting(1, spec__nodeName="gpu-1", status__phase="Failed", status__reason="Evicted")
    cluster = Cluster(tmp_path, [waiting(0), evicted], _ITS_LOG_ENDS)
    attempt = cluster.attempt()
    attempt.hold()
    assert attempt.end(keep=False) == []
    assert cluster.told.interrupted
    (by,) = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    assert by == "the cluster: pod trial-1-1-x on node gpu-1 was evicted"


def test_a_pod_that_fails_before_the_first_one_runs(tmp_path: Path, soon_gone: None) -> None:
    state = {"terminated": {"exitCode": 3, "reason": "Error"}}
    failed = waiting(1, status__phase="Failed", status__containerStatuses=[{"name": "seatrial", "state": state}])
    told = str(Cluster(tmp_path, [waiting(0), failed], _ITS_LOG_ENDS).failure())
    assert "pod trial-1-1-x ended with exit code 3 before the first pod has run; its log is in" in told
    assert (tmp_path / "trial-1-1-x.log").read_text() == "its last line\n"


def test_a_workload_that_is_given_up_before_a_pod_was_seen(tmp_path: Path, soon_gone: None) -> None:
    why = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "the limit is reached"}
    (tmp_path / "job").write_text(json.dumps({"status": {"conditions": [why]}}))
    told = str(Cluster(tmp_path, [], ("'get job'*", f"cat {tmp_path}/job")).failure())
    assert "has failed before its first pod ran (BackoffLimitExceeded: the limit is reached)" in told


def test_what_is_refused_half_way_is_deleted_too(tmp_path: Path) -> None:
    said = 'echo "Error from server (Forbidden): jobs.batch is forbidden" >&2; exit 1'
    found = Cluster(tmp_path, [], ("'apply -f - -o json'*", said)).failure()
    assert isinstance(found, RequestError)


def test_what_cannot_be_deleted_is_told_with_the_command(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [], ("delete*", "echo 'Unable to connect to the server' >&2; exit 1"))
    made = Made(cluster.kubectl, "job", _OBJECTS)
    made.apply()
    (left,) = made.delete(patient=lambda: True)
    assert "Unable to connect" in left
    assert "kubectl-double delete job.batch/trial-1" in left


def test_keep_deletes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0)], queue_s=0.1)
    attempt = cluster.attempt()
    with pytest.raises(SeatrialError):
        attempt.hold()
    assert attempt.end(keep=True) == []
    assert not cluster.deletes()
    assert "--keep" in cluster.said[-1]


def access(folder: Path, *cases: tuple[str, str]) -> Kubectl:
    return Kubectl(program=scripted(folder, *cases, ("*", "cat > /dev/null; exit 0")), namespace="ml")


def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    kubectl = access(tmp_path, ("*subresource=log*", "echo no; exit 1"), ("*can-i*", "echo yes"))
    with pytest.raises(RequestError, match="you may not get pods/log in ml"):
        see_that_it_may(kubectl, "job", _OBJECTS)
    see_that_it_may(access(tmp_path, ("*can-i*", "echo yes")), "job", _OBJECTS)


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    kubectl = access(tmp_path, ("*'get job.batch/trial-1'*", "echo job.batch/trial-1"), ("*can-i*", "echo yes"))
    with pytest.raises(RequestError, match=r"--name trial-1: job\.batch/trial-1 is there already; delete it"):
        see_that_it_may(kubectl, "job", _OBJECTS)


def nodes(folder: Path, *unfit: str) -> Kubectl:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    items: list[Any] = [{"metadata": {"name": f"gpu-{number}"}, "spec": {}, **ready} for number in range(3)]
    for item in items:
        if item["metadata"]["name"] in unfit:
            item["spec"]["unschedulable"] = True
    (folder / "nodes").write_text(json.dumps({"items": items}))
    return access(folder, ("*", f"cat {folder}/nodes"))


def test_all_nodes_are_counted_and_none_is_left_out_unasked(tmp_path: Path) -> None:
    assert chosen_nodes(nodes(tmp_path), "pool=a", None) == (3, ())
    assert chosen_nodes(nodes(tmp_path, "gpu-1"), "pool=a", 2) == (2, ("gpu-1: it is cordoned",))
    with pytest.raises(RequestError, match=r"1 of 3 nodes can take no pod \(gpu-1: it is cordoned\).*--min-hosts 2"):
        chosen_nodes(nodes(tmp_path, "gpu-1"), "pool=a", None)
    with pytest.raises(RequestError, match="no node of the cluster has these labels"):
        chosen_nodes(access(tmp_path, ("*", """echo '{"items": []}'""")), "pool=b", None)


@pytest.mark.parametrize("field", ["podSpecOverrides", "podTemplateOverrides", "runtimePatches"])
def test_the_release_of_trainer_is_read_from_the_cluster(field: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"properties": {"spec": {"properties": {"runtimeRef": {}, field: {}}}}}
    definition = {"spec": {"versions": [{"name": "v1alpha1", "schema": {"openAPIV3Schema": spec}}]}}
    (tmp_path / "crd").write_text(json.dumps(definition))
    kubectl = access(
        tmp_path, ("*'get customresourcedefinition trainjobs.trainer.kubeflow.org'*", f"cat {tmp_path}/crd")
    )
    assert PATCHES[trainer_version(kubectl)] == field


def test_a_release_that_cannot_be_read_must_be_said(tmp_path: Path) -> None:
    forbidden = "echo 'Error from server (Forbidden): you may not' >&2; exit 1"
    with pytest.raises(RequestError, match=r"cannot be read \(Error from server.*say --trainer-version"):
        trainer_version(access(tmp_path, ("*", forbidden)))
    with pytest.raises(RequestError, match="no patches that we know"):
        trainer_version(access(tmp_path, ("*", "echo '{}'")))
