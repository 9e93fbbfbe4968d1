"""An attempt around the events of its first pod: reasons in words, bounded time, nothing left."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from by_day import by_day
from event_streams import Stream
from kubernetes.attempted import INDEX, ITS_LOG_ENDS, JOB_PATH, OBJECTS, OWNED, WORKLOAD, Cluster, running, waiting
from kubernetes.kubectl_script_double import EVENTS, PODS, log_of, scripted
from kubernetes.workloads import workload

from seatrial.errors import JobNotStartedError, RequestError
from seatrial.targets.job import ProgramJob
from seatrial.targets.kubernetes import applied_objects, attempt, kubernetes_target, run_progress
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kinds.trainjob import PATCHES
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.manifest.render import manifest
from seatrial.targets.kubernetes.manifest.workload import Patch
from seatrial.targets.kubernetes.permissions import chosen_nodes, require_permission, spec_fields
from seatrial.targets.kubernetes.pods import pods_of
from seatrial.targets.kubernetes.run_progress import TooFewNodesError


def test_all_objects_are_created_with_an_owner_and_none_is_changed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0), waiting(1)], queue_s=0.1)
    cluster.error()
    (workload_sent,) = json.loads((tmp_path / "sent-1").read_text())["items"]
    assert workload_sent["spec"] == OBJECTS[-1]["spec"]
    before, awaited = (json.loads((tmp_path / f"sent-{number}").read_text())["items"] for number in (2, 3))
    owned = [*before, *awaited]
    assert {thing["kind"] for thing in owned} == {thing["kind"] for thing in OBJECTS[:-1]}
    # Containers start once the last object, a ConfigMap, is mounted.
    assert [thing["kind"] for thing in awaited][:: len(awaited) - 1] == ["Secret", "ConfigMap"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "trial-1", "uid": "u-Job"}
    assert all(thing["metadata"]["ownerReferences"] == [owner] for thing in owned)
    # Not: apply, patch, replace, label, annotate. The rights are those of docs/kubernetes.md.
    assert {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()} <= {
        *("create", "get", "delete", "logs"),
    }
    paths = [line.split()[2] for line in cluster.deletes()]
    assert paths[0] == JOB_PATH
    names = {thing["metadata"]["name"] for thing in OBJECTS}
    assert {path.rpartition("/")[2] for path in paths} == names
    assert "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies/trial-1" in paths


def test_objects_are_deleted_by_their_uids(tmp_path: Path) -> None:
    """Between the look and the deletion a neighbor may put his own object in the place of ours."""
    cluster = Cluster(tmp_path, [waiting(0)], queue_s=0.1)
    cluster.error()
    decoder, text, uids = json.JSONDecoder(), (tmp_path / "options").read_text(), list[str]()
    while text:
        options, end = decoder.raw_decode(text)
        assert options["propagationPolicy"] == "Background"
        uids.append(options["preconditions"]["uid"])
        text = text[end:]
    assert uids[0] == "u-Job"
    assert set(uids) == {f"u-{thing['kind']}" for thing in OBJECTS}


def test_no_node_accepts_them(tmp_path: Path) -> None:
    text = str(Cluster(tmp_path, [running(0), waiting(1)], queue_s=1.0).error())
    assert "not all pods have started within 1 s (--queue-timeout)" in text
    assert "1 of 2 pods wait: no node accepts it (0/3 nodes are available)" in text


def test_an_image_that_cannot_be_pulled(tmp_path: Path) -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    status = [{"name": "seatrial", "image": "example/train:1", "state": state}]
    stuck = waiting(1, spec__nodeName="gpu-1", status__conditions=[], status__containerStatuses=status)
    text = str(Cluster(tmp_path, [running(0), stuck], hopeless_s=0.5).error())
    assert "pod trial-1-1-x on node gpu-1 does not start: its image example/train:1 cannot be pulled" in text
    assert "manifest unknown" in text


def test_an_obstacle_that_went_and_came_back_counts_anew(tmp_path: Path) -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    status = [{"name": "seatrial", "image": "example/train:1", "state": state}]
    stuck = waiting(1, spec__nodeName="gpu-1", status__conditions=[], status__containerStatuses=status)
    pulling = waiting(1, spec__nodeName="gpu-1", status__conditions=[])
    attempt = Cluster(tmp_path, [], hopeless_s=0.5).attempt()
    for entry in (stuck, pulling, stuck):
        attempt._follower.listed.observe(time.monotonic())
        attempt._follower._take_pods(pods_of({"items": [running(0), entry]}, KINDS["job"]))
        attempt._progress._require_pods()
        time.sleep(0.4)
    time.sleep(0.2)
    attempt._follower.listed.observe(time.monotonic())
    with pytest.raises(JobNotStartedError):
        attempt._progress._require_pods()
    assert attempt.cleanup(keep=True) == []


def test_a_quota(tmp_path: Path) -> None:
    message = 'Error creating: pods "trial-1-0-x" is forbidden: exceeded quota: gpus, requested: 8, used: 0, limited: 4'
    warning = {"involvedObject": {"name": "trial-1"}, "reason": "FailedCreate", "message": message}
    (tmp_path / "events").write_text(json.dumps({"items": [warning]}))
    text = str(Cluster(tmp_path, [], (EVENTS, f"cat {tmp_path}/events"), queue_s=1.0).error())
    assert '2 of 2 pods cannot be created: "Error creating' in text
    assert "exceeded quota: gpus" in text


def test_what_pod_security_never_admits_ends_at_once(tmp_path: Path) -> None:
    message = 'Error creating: pods "trial-1-0-x" is forbidden: violates PodSecurity "baseline:latest": hostNetwork'
    warning = {"involvedObject": {"name": "trial-1", "kind": "Job"}, "reason": "FailedCreate", "message": message}
    (tmp_path / "events").write_text(json.dumps({"items": [warning]}))
    found = Cluster(tmp_path, [], (EVENTS, f"cat {tmp_path}/events")).error()
    assert isinstance(found, JobNotStartedError)
    assert "pods will never be created: \"Error creating: pods 'trial-1-0-x' is forbidden: violates" in str(found)


def test_an_operator_that_does_not_run_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "_UNATTENDED_S", 0.5)
    cluster = Cluster(tmp_path, [], queue_s=1.5)
    cluster.error()
    assert [line for line in cluster.printed if "nobody has taken it up; is the operator running" in line]


def test_a_first_pod_whose_node_is_silent_ends_the_run(tmp_path: Path) -> None:
    """The conductor was in it, and nobody else would miss it (the recording kubelet-stop-job)."""
    silent = running(0)
    marked = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    silent["status"]["conditions"] = marked
    cluster = Cluster(tmp_path, [silent, running(1)], node_gone_s=0.5)
    text = str(cluster.error())
    assert "pod trial-1-0-x on node gpu-1 is lost: its node no longer reports to the cluster (NodeNotReady)" in text
    assert sum("NodeNotReady" in line for line in cluster.printed) == 1


def test_a_pod_whose_agent_does_not_join_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for 15 minutes for a name that it is not allowed to ask for."""
    monkeypatch.setattr(run_progress, "_REPORT_JOINING_S", 0.5)
    says = "echo '2026-01-01T00:00:00Z seatrial: node 1 waits for trial-1-0.trial-1:1 for 10 s (no name)'; sleep 20"
    cluster = Cluster(tmp_path, [running(0), running(1)], (log_of("trial-1-1-x"), says), node_gone_s=0.5)
    made = cluster.attempt()
    made.submit()
    copy = tmp_path / "trial-1-1-x.log"
    while not (copy.exists() and copy.read_text()):
        assert not made.poll()
    for event in Stream(2, nodes=2).events[:2]:
        cluster.run_log.take(event)
    until = time.monotonic() + 30
    while not (told := [line for line in cluster.printed if "have not joined" in line]):
        assert time.monotonic() < until
        made.poll()
    assert made.cleanup(keep=False) == []
    assert "1 of 2 pods run and have not joined for 0 s, pod trial-1-1-x on node gpu-1 among them" in told[0]
    assert '("seatrial: node 1 waits for trial-1-0.trial-1:1 for 10 s (no name)")' in told[0]


def test_min_hosts_starts_again_with_fewer(tmp_path: Path) -> None:
    found = Cluster(tmp_path, [running(0), waiting(1)], fewer_s=0.5).error(min_hosts=1)
    assert isinstance(found, TooFewNodesError)
    assert (found.running, found.absent) == (1, ("trial-1-1-x: no node accepts it (0/3 nodes are available)",))


def test_a_start_with_fewer_has_another_token(tmp_path: Path) -> None:
    """Pods of the start before it may still run for a while, and know that one's."""
    before = Cluster(tmp_path, []).job
    after = kubernetes_target._with_fewer_nodes(before, 1, ("trial-1-1-x: no node accepts it",))
    tokens = []
    for job in (before, after):
        (command,) = kubernetes_target._render(job, control="", token="", keep="")
        assert command.feed is not None
        objects = yaml.safe_load_all(command.feed.content)
        (secret,) = [thing for thing in objects if thing["kind"] == "Secret"]
        tokens.append(secret["stringData"]["token"])
    assert tokens[0] == WORKLOAD.token
    assert tokens[1] == after.detail.workload.token != tokens[0]
    assert len(tokens[1]) >= 32


def test_fewer_than_min_hosts_do_not_start(tmp_path: Path) -> None:
    found = Cluster(tmp_path, [waiting(0), waiting(1)], fewer_s=0.1, queue_s=1.0).error(min_hosts=1)
    assert not isinstance(found, TooFewNodesError)


def test_a_server_that_stops_answering(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    once = tmp_path / "once"
    code = f"if [ -e {once} ]; then echo 'Unable to connect to the server: EOF' >&2; exit 1; fi; cat {tmp_path}/pods"
    gone = f"if [ -e {tmp_path}/deleted ]; then cat {tmp_path}/none; else {code}; touch {once}; fi"
    cluster = Cluster(tmp_path, [running(0), running(1)], (PODS, gone), no_answer_s=2.0)
    text = str(cluster.error())
    assert "API server has not answered for 2 s (Unable to connect to the server: EOF)" in text


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ('(NotFound): jobs.batch "trial-1" not found', 1),
        # Somebody has put another object there since the look; the next look shows it.
        ('(Conflict): Operation cannot be fulfilled on jobs.batch "trial-1": the UID does not match', 2),
    ],
)
def test_what_is_gone_needs_no_deletion(said: str, calls: int, tmp_path: Path) -> None:
    code = f"""echo >> {tmp_path}/deleted; cat > /dev/null; echo 'Error from server {said}' >&2; exit 1"""
    theirs = json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "trial-1", "uid": "u-theirs"}})
    seen = f"if [ -e {tmp_path}/deleted ]; then echo {shlex.quote(theirs)}; else cat {tmp_path}/workload; fi"
    cluster = Cluster(tmp_path, [], ("delete*", code), ("'get job.batch/trial-1 '*", seen))
    objects = AppliedObjects(cluster.kubectl, "job", list(OBJECTS))
    objects.apply()
    assert objects.delete(keep_waiting=lambda: True) == []
    gets = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("get job.batch/")]
    assert (len(cluster.deletes()), len(gets)) == (1, calls)


def test_ctrl_c_deletes_all_objects(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0), waiting(1)])
    attempt = cluster.attempt()
    cluster.signals.append(signal.SIGINT)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    assert JOB_PATH in cluster.deletes()[0]
    assert [event["by"] for event in cluster.events if event["kind"] == "interrupted"] == ["SIGINT"]


def test_a_workload_deleted_before_it_runs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [], ("'get job.batch/trial-1 --ignore-not-found'*", "exit 0"))
    assert "job.batch/trial-1 was deleted by somebody before its pods ran" in str(cluster.error())
    assert cluster.run_log.interrupted


def test_another_workload_of_the_same_name_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(json.dumps({"metadata": {"uid": "u-theirs"}, "status": {"active": 2}}))
    cluster = Cluster(tmp_path, [], ("'get job.batch/trial-1 --ignore-not-found'*", f"cat {tmp_path}/job"))
    assert "job.batch/trial-1 was deleted by somebody before its pods ran" in str(cluster.error())


@pytest.mark.parametrize(
    "owners", by_day([[], [{**OWNED[0], "uid": "u-theirs"}], [{**OWNED[0], "controller": False}]], 1)
)
def test_pods_of_others_with_our_labels_are_left_alone(owners: list[Any], tmp_path: Path) -> None:
    """They do not start the run, and no waiting one of them is deleted."""
    theirs = [running(0, "theirs", owners), waiting(1, metadata__name="theirs-1", metadata__ownerReferences=owners)]
    code = f"if [ -e {tmp_path}/deleted ]; then cat {tmp_path}/left; else cat {tmp_path}/pods; fi"
    (tmp_path / "left").write_text(json.dumps({"items": theirs}))
    cluster = Cluster(tmp_path, [waiting(0), *theirs], (PODS, code), queue_s=2.5)
    text = str(cluster.error())
    assert "2 of 2 pods wait: no node accepts it" in text
    assert "theirs" not in " ".join(cluster.deletes())
    assert [line for line in cluster.printed if "of this run, but" in line] == [
        f"seatrial: pod {name} has the labels of this run, but job.batch/trial-1 does not own it; it is left alone"
        for name in ("theirs-1", "trial-1-0-theirs")
    ]


def test_no_newer_pod_replaces_the_first_one_while_it_runs(tmp_path: Path) -> None:
    """A neighbor that may read a pod can copy all that is in it, its owner too."""
    cluster = Cluster(tmp_path, [running(0), running(1)])
    cluster.attempt()
    objects = AppliedObjects(cluster.kubectl, "job", OBJECTS)
    objects.apply()
    follower = PodFollower(
        objects=objects,
        job=cluster.job,
        run_log=cluster.run_log,
        print_line=cluster.printed.append,
    )
    newer = running(0, "y")
    newer["metadata"]["creationTimestamp"] = "2099-01-01T00:00:00Z"
    try:
        for pods in ([running(0), running(1)], [running(0), running(1), newer]):
            listed = tmp_path / "listed"
            listed.write_text(json.dumps({"items": pods}))
            listed.rename(tmp_path / "pods")
            until = time.monotonic() + 30
            while len(follower.pods) < len(pods):
                assert time.monotonic() < until
                follower.poll()
                time.sleep(0.02)
            assert follower.first_log is not None
            assert follower.first_log.pod.name == "trial-1-0-x"
    finally:
        follower.close()
        assert [*cluster.run_log.copies.finish(lambda: False)] == []


@pytest.fixture
def soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for data that is on its way."""
    monkeypatch.setattr(attempt, "_GONE_S", 0.3)


def test_a_pod_evicted_before_the_first_pod_runs(tmp_path: Path, soon_gone: None) -> None:
    evicted = waiting(1, spec__nodeName="gpu-1", status__phase="Failed", status__reason="Evicted")
    cluster = Cluster(tmp_path, [waiting(0), evicted], ITS_LOG_ENDS)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    assert cluster.run_log.interrupted
    (by,) = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    assert by == "the cluster: pod trial-1-1-x on node gpu-1 was evicted"


@pytest.mark.parametrize("is_suspended", [True, False])
def test_pods_that_a_queue_has_taken_back(is_suspended: bool, tmp_path: Path, soon_gone: None) -> None:
    """Kueue suspends the workload for one of a higher priority, and its controller deletes the pods."""
    (tmp_path / "job").write_text(json.dumps({"spec": {"suspend": is_suspended}, "status": {"active": 0}}))
    deleted = waiting(1, spec__nodeName="gpu-1", metadata__deletionTimestamp="2026-01-01T00:00:10Z")
    asked = ("'get job.batch/trial-1 --ignore-not-found'*", f"cat {tmp_path}/job")
    cluster = Cluster(tmp_path, [waiting(0), deleted], ITS_LOG_ENDS, asked)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (by,) = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    why = "; the workload is suspended: a queue (such as Kueue) has taken its place back, or somebody has suspended it"
    assert by == "the cluster: pod trial-1-1-x on node gpu-1 was deleted" + (why if is_suspended else "")


def test_a_pod_that_fails_before_the_first_one_runs(tmp_path: Path, soon_gone: None) -> None:
    state = {"terminated": {"exitCode": 3, "reason": "Error"}}
    failed = waiting(1, status__phase="Failed", status__containerStatuses=[{"name": "seatrial", "state": state}])
    text = str(Cluster(tmp_path, [waiting(0), failed], ITS_LOG_ENDS).error())
    assert "pod trial-1-1-x ended with exit code 3 before the first pod ran; its log is in" in text
    assert (tmp_path / "trial-1-1-x.log").read_text() == "its last line\n"


def test_a_workload_that_fails_before_its_pods(tmp_path: Path, soon_gone: None) -> None:
    why = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "the limit is reached"}
    failed = {"metadata": {"uid": "u-Job"}, "status": {"conditions": [why]}}
    (tmp_path / "job").write_text(json.dumps(failed))
    text = str(Cluster(tmp_path, [], ("'get job.batch/trial-1 --ignore-not-found'*", f"cat {tmp_path}/job")).error())
    assert 'failed before its first pod ran (BackoffLimitExceeded: "the limit is reached")' in text


def test_of_pods_that_failed_beside_one_that_hangs_the_cause_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one only lost its peer; the first pod waits for both for ever."""
    monkeypatch.setattr(attempt, "_OTHERS_END_S", 1.0)

    def failed(number: int, code: int) -> dict[str, Any]:
        state = {"terminated": {"exitCode": code, "reason": "Error"}}
        status = {"phase": "Failed", "containerStatuses": [{"name": "seatrial", "state": state}]}
        return {**running(number), "status": status}

    lost = (log_of("trial-1-1-x"), "echo '2026-01-01T00:00:00.5Z RuntimeError: [gloo] Connection closed by peer'")
    killed = (log_of("trial-1-2-x"), "echo 2026-01-01T00:00:00.5Z its last line")
    cluster = Cluster(tmp_path, [running(0), failed(1, 1), failed(2, 137)], lost, killed)
    values: dict[str, Any] = {"argv": (), "watched": True, "output": "all", "max_restarts": 0, "stop_grace_s": 1.0}
    place = {field: getattr(cluster.job, field) for field in ("run", "target", "nproc_per_node", "device", "backend")}
    training = ProgramJob(**place, nodes=3, python="python3", env={}, detail=cluster.job.detail, cwd="/", **values)
    following = cluster.attempt_at(training)
    following.run()
    assert following.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], outcome["text"]) == ("failed", "pod trial-1-2-x on node gpu-1 ended with exit code 137")


def _refused(folder: Path, complaint: str) -> tuple[str, str]:
    """The workload is created, the objects after it are refused."""
    code = f"if [ -e {folder}/once ]; then echo {shlex.quote(complaint)} >&2; exit 1; fi; touch {folder}/once"
    return "'create -f - -o json'*", f"{code}; cat {folder}/workload"


def test_what_was_created_before_a_refusal_is_deleted(tmp_path: Path) -> None:
    said = 'Error from server (Forbidden): secrets is forbidden: User "me" cannot create resource "secrets"'
    cluster = Cluster(tmp_path, [], _refused(tmp_path, said))
    assert isinstance(cluster.error(), RequestError)
    assert JOB_PATH in cluster.deletes()[0]


def test_an_object_of_somebody_else_is_neither_changed_nor_deleted(tmp_path: Path) -> None:
    """Somebody created a Secret of this name between the look and the creation."""
    said = 'Error from server (AlreadyExists): error when creating "STDIN": secrets "trial-1" already exists'
    cluster = Cluster(tmp_path, [], _refused(tmp_path, said))
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "trial-1", "uid": "u-theirs"}}
    ours = json.loads((tmp_path / "workload").read_text())
    (tmp_path / "all").write_text(json.dumps({"kind": "List", "items": [ours, theirs]}))
    text = str(cluster.error())
    assert 'secrets "trial-1" already exists' in text
    assert "choose another --name" in text
    assert [line.split()[2] for line in cluster.deletes()] == [JOB_PATH]


def test_what_was_created_although_the_answer_was_lost_is_deleted(tmp_path: Path) -> None:
    """The API server creates the workload, and the connection breaks before the answer."""
    said = f"cat > {tmp_path}/sent; echo 'Unable to connect to the server: EOF' >&2; exit 1"
    marked = f"""sed 's/"metadata": {{/&"uid": "u-new", "namespace": "ml", /' {tmp_path}/sent"""
    cluster = Cluster(tmp_path, [], ("'create -f - -o json'*", said), ("'get job.batch/trial-1 '*'-o json'*", marked))
    cluster.error()
    assert [line.split()[2] for line in cluster.deletes()] == [JOB_PATH]


def test_trainers_webhook_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache learns of the runtime only after a while (NVIDIA/aicr #1669)."""
    monkeypatch.setattr(applied_objects, "_POLL_S", 0.01)
    objects = manifest("trainjob", WORKLOAD)
    said = (
        'Error from server (Forbidden): error when creating "STDIN": admission webhook'
        ' "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: Invalid value: TrainingRuntime'
        ' "trial-1" not found: specified trainingRuntime must be created before the TrainJob is created'
    )
    at = tmp_path
    script = (
        f"cat > {at}/sent; if grep -q TrainJob {at}/sent && [ ! -e {at}/refused ]; then touch {at}/refused;"
        f" echo {shlex.quote(said)} >&2; exit 1; fi; cat {at}/sent"
    )
    made = AppliedObjects(
        Kubectl(program=scripted(tmp_path, ("create*", script), ("*", "exit 0")), namespace=None), "trainjob", objects
    )
    made.apply()
    assert (tmp_path / "refused").exists()
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls.count("create") == 5


@pytest.mark.parametrize("comes", [True, False])
def test_pods_wait_for_the_pull_secret_of_a_new_account(
    comes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that was created before never gets it (openshift/origin #20225). Without a registry there is none."""
    monkeypatch.setattr(applied_objects, "_POLL_S", 0.01)
    monkeypatch.setattr(applied_objects, "_PULL_SECRET_S", 60.0 if comes else 0.05)
    objects = manifest("job", workload(openshift="custom-scc", namespace="ml"))
    bare = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trial-1"}}
    (tmp_path / "bare").write_text(json.dumps(bare))
    (tmp_path / "whole").write_text(json.dumps({**bare, "imagePullSecrets": [{"name": "trial-1-dockercfg-x"}]}))
    at = tmp_path
    # The first answers have none.
    answer = f"echo >> {at}/asked; [ $(wc -l < {at}/asked) -lt 3 ] && cat {at}/bare || cat {at}/whole"
    program = scripted(
        tmp_path,
        ("*'create -f -'*", "cat"),
        ("*'get serviceaccount/trial-1 '*", answer if comes else f"cat {at}/bare"),
        ("*", "exit 0"),
    )
    AppliedObjects(Kubectl(program=program, namespace="ml"), "job", objects).apply()
    calls = [line.split()[2:4] for line in (tmp_path / "calls").read_text().splitlines()]
    created = [number for number, call in enumerate(calls) if call[0] == "create"]
    asked = [number for number, call in enumerate(calls) if call == ["get", "serviceaccount/trial-1"]]
    assert len(asked) == 3 if comes else asked
    # The account, then the workload, then the rest.
    assert len(created) == 4
    assert created[0] < asked[0]
    assert asked[-1] < created[1]


def test_hundreds_of_waiting_pods_are_deleted_a_few_at_once(tmp_path: Path) -> None:
    """With one kubectl for each of them at the same time there were no descriptors left, and not one was waited for."""
    names = [f"trial-1-{number}-x" for number in range(200)]
    left = tmp_path / "left"
    left.write_text(json.dumps({"items": [waiting(number) for number in range(200)]}))
    at = shlex.quote(str(tmp_path))
    gone = f"if grep -qs '/pods/{names[-1]} ' {at}/calls; then cat {at}/none; else cat {at}/left; fi"
    cluster = Cluster(tmp_path, [], (PODS, gone))
    objects = AppliedObjects(cluster.kubectl, "job", OBJECTS)
    objects.apply()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        assert objects.delete(keep_waiting=lambda: True) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert {line.split()[2].rpartition("/")[2] for line in cluster.deletes() if "/pods/" in line} == set(names)


def test_the_command_deletes_nothing_of_others(tmp_path: Path) -> None:
    refuses = f"[ -e {tmp_path}/workload-sent ] || {{ touch {tmp_path}/workload-sent; cat {tmp_path}/workload; exit; }}"
    taken = "echo 'Error from server (AlreadyExists): secrets \"trial-1\" already exists' >&2; exit 1"
    cluster = Cluster(tmp_path, [], ("'create -f - -o json'*", f"{refuses}; {taken}"))
    objects = AppliedObjects(cluster.kubectl, "job", OBJECTS)
    with pytest.raises(RequestError, match="already exist"):
        objects.apply()
    assert objects.delete_command().endswith("kubectl-double delete job.batch/trial-1")


def test_pods_without_a_first_one_end_the_attempt(tmp_path: Path) -> None:
    pods = [running(0), running(1)]
    for each in pods:
        each["metadata"]["labels"] = {"another.example.com/index": "0"}
    text = str(Cluster(tmp_path, pods, no_first_pod_s=0.3).error())
    assert f"by the label {INDEX} none of them is the first node" in text
    assert "--on job supports" in text


def access(folder: Path, *cases: tuple[str, str]) -> Kubectl:
    return Kubectl(program=scripted(folder, *cases, ("*", "cat > /dev/null; exit 0")), namespace="ml")


def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    kubectl = access(tmp_path, ("*subresource=log*", "echo no; exit 1"), ("*can-i*", "echo yes"))
    with pytest.raises(RequestError, match="you may not get pods/log in ml"):
        require_permission(kubectl, "job", OBJECTS)
    require_permission(access(tmp_path, ("*can-i*", "echo yes")), "job", OBJECTS)


def test_a_name_in_use_is_refused(tmp_path: Path) -> None:
    kubectl = access(tmp_path, ("*'get job.batch/trial-1'*", "echo job.batch/trial-1"), ("*can-i*", "echo yes"))
    with pytest.raises(RequestError, match=r"--name trial-1: job\.batch/trial-1 already exists; delete it"):
        require_permission(kubectl, "job", OBJECTS)


def test_a_name_of_any_object_in_use_is_refused(tmp_path: Path) -> None:
    """A Secret, Service or NetworkPolicy of the user's application, which a run of that name would change."""
    found = "echo networkpolicy.networking.k8s.io/trial-1; echo secret/trial-1"
    kubectl = access(tmp_path, ("*'get job.batch/trial-1 '*secret/trial-1*'-o name'*", found), ("*can-i*", "echo yes"))
    with pytest.raises(RequestError) as raised:
        require_permission(kubectl, "job", OBJECTS)
    text = str(raised.value)
    assert "--name trial-1: networkpolicy.networking.k8s.io/trial-1 already exists (and 1 more objects)" in text
    assert "delete it" not in text


_WARNED = (
    'Warning: would violate PodSecurity "restricted:latest": host namespaces (hostNetwork=true)',
    "job.batch/trial-1 created (server dry run)",
)


@pytest.mark.parametrize(
    ("enforced", "refused"), [(None, True), ("restricted", True), ("baseline", False), ("privileged", False)]
)
def test_pods_that_pod_security_will_refuse(enforced: str | None, refused: bool, tmp_path: Path) -> None:
    """The dry run warns by the level `warn`; only the level `enforce` refuses pods."""
    labels = {} if enforced is None else {"pod-security.kubernetes.io/enforce": enforced}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": labels}}
    (tmp_path / "namespace").write_text(json.dumps(namespace))
    kubectl = access(
        tmp_path,
        ("*create*", f"echo {shlex.quote(_WARNED[0])} >&2; echo {shlex.quote(_WARNED[1])}"),
        ("*'get namespace ml'*", f"cat {tmp_path}/namespace"),
        ("*can-i*", "echo yes"),
    )
    if not refused:
        require_permission(kubectl, "job", OBJECTS)
        return
    with pytest.raises(RequestError, match=r"Pod Security level of the namespace does not admit.*hostNetwork=true"):
        require_permission(kubectl, "job", OBJECTS)


def nodes(folder: Path, *unfit: str) -> Kubectl:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    items: list[Any] = [{"metadata": {"name": f"gpu-{number}"}, "spec": {}, **ready} for number in range(3)]
    for item in items:
        if item["metadata"]["name"] in unfit:
            item["spec"]["unschedulable"] = True
    (folder / "nodes").write_text(json.dumps({"items": items}))
    return access(folder, ("*", f"cat {folder}/nodes"))


def test_all_nodes_are_counted_and_none_is_left_out_silently(tmp_path: Path) -> None:
    assert chosen_nodes(nodes(tmp_path), "pool=a", None) == (3, ())
    assert chosen_nodes(nodes(tmp_path, "gpu-1"), "pool=a", 2) == (2, ("gpu-1: it is cordoned",))
    with pytest.raises(RequestError, match=r"1 of 3 nodes accept no pods \(gpu-1: it is cordoned\).*--min-hosts 2"):
        chosen_nodes(nodes(tmp_path, "gpu-1"), "pool=a", None)
    with pytest.raises(RequestError, match="no node of the cluster has these labels"):
        chosen_nodes(access(tmp_path, ("*", """echo '{"items": []}'""")), "pool=b", None)


def test_all_nodes_need_the_permission_to_list_nodes(tmp_path: Path) -> None:
    said = 'Error from server (Forbidden): nodes is forbidden: User "me" cannot list resource "nodes" in API group ""'
    with pytest.raises(RequestError, match=r"--all-nodes pool=a: you may not list nodes \(.*cannot list.*--nodes"):
        chosen_nodes(access(tmp_path, ("*", f"echo '{said}' >&2; exit 1")), "pool=a", None)


def trainer_version(kubectl: Kubectl, **changes: Any) -> str:
    """The release that a workload with a patch of the runtime is rendered for."""
    kind = KINDS["trainjob"]
    patched = workload(**{"patch": Patch(workload={"spec": {"runtimePatches": []}}), **changes})
    found = kind.resolve(kind.with_defaults(patched), partial(spec_fields, kubectl)).kind_options["trainer_version"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("field", ["podSpecOverrides", "podTemplateOverrides", "runtimePatches"])
def test_the_release_of_trainer_is_read_from_the_cluster(field: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"properties": {"spec": {"properties": {"runtimeRef": {}, field: {}}}}}
    definition = {"spec": {"versions": [{"name": "v1alpha1", "schema": {"openAPIV3Schema": spec}}]}}
    (tmp_path / "crd").write_text(json.dumps(definition))
    kubectl = access(
        tmp_path, ("*'get customresourcedefinition trainjobs.trainer.kubeflow.org'*", f"cat {tmp_path}/crd")
    )
    assert PATCHES[trainer_version(kubectl)] == field
    assert trainer_version(kubectl, patch=Patch()) == "2.2+"
    assert trainer_version(kubectl, kind_options={"trainer_version": "2.0"}) == "2.0"


def test_an_unreadable_release_must_be_given(tmp_path: Path) -> None:
    forbidden = "echo 'Error from server (Forbidden): you may not' >&2; exit 1"
    with pytest.raises(RequestError, match=r"cannot be read \(Error from server.*give it with --trainer-version"):
        trainer_version(access(tmp_path, ("*", forbidden)))
    with pytest.raises(RequestError, match="none of the known patch fields"):
        trainer_version(access(tmp_path, ("*", "echo '{}'")))
