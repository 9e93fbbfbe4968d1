"""Why a run was interrupted: the conductor knows that it was stopped, and the nodes of the pods say the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from event_streams import RUN, Stream
from fake_checks import fake_load
from kubernetes.attempted import WORKLOAD, Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import EVENTS, LOGS, PODS, log_of
from kubernetes.test_log_reader import lines_of, stamped
from kubernetes.test_run_log import Heard, training, trial

from seatrial.judge.conclude import Conclusion, conclude
from seatrial.targets.kubernetes import attempt as attempt_module

FIRST_OF_MPI = "trial-1-launcher-x"
_DELETED = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


def ended(number: int, code: int, *, is_deleted: bool = False, **status: Any) -> dict[str, Any]:
    # The first pod ends of the end of the others.
    at = "2026-01-01T00:00:12Z" if number else "2026-01-01T00:00:15Z"
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}}
    said = {"phase": "Failed", "containerStatuses": [{"name": "seatrial", "state": state}], **status}
    pod = running(number)
    metadata = {**pod["metadata"], **(_DELETED if is_deleted else {})}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": f"gpu-{number}"}, "status": said}


_FIRST = ended(0, 130, is_deleted=True)


def interrupted(*, lost: str = "") -> Stream:
    """The first pod got SIGTERM. ``lost``: whether the conductor missed node 1 ``before`` that, or ``after``."""
    stream = Stream(2, nodes=2).until("collectives")
    missed = {"node": 1, "how": "lost", "detail": "the control connection was closed"}
    if lost == "before":
        stream.trouble(missed)
    stream.send("conductor", "interrupted", by="SIGTERM")
    stream.kill(0)
    if lost == "after":
        stream.trouble(missed)
    return stream.close(ranks=False, nodes=(0,))


def followed(
    stream: Stream, pods: list[dict[str, Any]], folder: Path, *, before: list[dict[str, Any]] | None = None
) -> tuple[Conclusion, Cluster]:
    """Follow a trial whose first pod sent these events. ``before``: the first list of its pods."""
    cluster = Cluster(folder, pods, *answers_of(stream, folder, before), ended_s=0.1, reason_s=0.1)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load), cluster


def _followed_through(
    stream: Stream, lists: list[list[dict[str, Any]]], folder: Path, *more: tuple[str, str]
) -> tuple[Conclusion, Cluster]:
    """Follow a trial whose pods are listed so, one list after the other."""
    cluster = Cluster(
        folder, lists[-1], *more, listed_in_turn(lists, folder), *answers_of(stream, folder, None), ended_s=0.2
    )
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load), cluster


def answers_of(stream: Stream, folder: Path, before: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    events = [{**event, "run": "run-1"} for event in stream.events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (folder / "first").write_bytes(stamped(lines))
    (folder / "before").write_text(json.dumps({"items": before}))
    once = f"if [ -e {folder}/listed ]; then cat {folder}/pods; else touch {folder}/listed; cat {folder}/before; fi"
    lists = f"if [ -e {folder}/deleted ]; then cat {folder}/none; else {once}; fi"
    return [
        *([] if before is None else [(PODS, lists)]),
        (log_of(f"{FIRST_OF_MPI}"), f"cat {folder}/first"),
        (log_of("trial-1-0-x"), f"cat {folder}/first"),
        (LOGS, "exit 0"),
    ]


@pytest.mark.parametrize(
    ("other", "lost", "by"),
    [
        (ended(1, 1), "", "the cluster: pod trial-1-1-x on node gpu-1 ended with exit code 1; other pods were deleted"),
        (ended(1, 1), "after", "the cluster: pod trial-1-1-x on node gpu-1 ended with exit code 1; other pods were"),
        (ended(1, 137, reason="Evicted"), "", "the cluster: pod trial-1-1-x on node gpu-1 was evicted"),
        (ended(1, 137, reason="Evicted"), "after", "the cluster: pod trial-1-1-x on node gpu-1 was evicted"),
        (ended(1, 3, is_deleted=True), "", "the cluster: pod trial-1-1-x on node gpu-1 was deleted"),
    ],
)
def test_a_pod_that_the_conductor_did_not_miss_leaves_a_run_interrupted(
    other: dict[str, Any], lost: str, by: str, tmp_path: Path
) -> None:
    """The kubelet of a pod can say what it likes about it."""
    found, cluster = followed(interrupted(lost=lost), [_FIRST, other], tmp_path)
    assert (found.trial.interrupted or "").startswith(by)
    assert found.verdict.exit_code == 130
    assert not [finding for finding in found.findings if finding.severity == "fail"]
    # What came after the signal to the conductor follows from it.
    assert [event["src"] for event in cluster.events if event["kind"] == "interrupted"] == ["conductor"]


def test_a_pod_that_was_deleted_at_once_is_missed_before_others_stop(tmp_path: Path) -> None:
    other = ended(1, 3, is_deleted=True)
    found, cluster = followed(interrupted(lost="before"), [_FIRST, other], tmp_path)
    assert (found.trial.interrupted or "").startswith("the cluster: pod trial-1-1-x on node gpu-1 was deleted")
    assert found.verdict.exit_code == 130
    assert not [finding for finding in found.findings if finding.severity == "fail"]
    assert [event["src"] for event in cluster.events if event["kind"] == "interrupted"] == ["controller"]


@pytest.mark.parametrize(("code", "lost"), [(1, "before"), (137, ""), (137, "after")])
def test_a_pod_that_failed_interrupts_nothing(code: int, lost: str, tmp_path: Path) -> None:
    """The controllers delete all pods when one has failed."""
    found, _ = followed(interrupted(lost=lost), [_FIRST, ended(1, code)], tmp_path)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    assert "gpu-1" in {node for finding in found.findings for node in finding.culprit.nodes}


def test_an_evicted_pod_that_the_conductor_missed_first_is_not_blamed(tmp_path: Path) -> None:
    found, _ = followed(interrupted(lost="before"), [_FIRST, ended(1, 137, reason="Evicted")], tmp_path)
    assert (found.trial.interrupted or "").endswith("was evicted")
    assert found.verdict.exit_code == 130
    assert not [finding for finding in found.findings if finding.severity == "fail"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_pod_that_its_kubelet_refuses_explains_an_interruption(is_replaced: bool, tmp_path: Path) -> None:
    """Its Job fails, and the controller deletes the first pod, whose conductor waits for the agent of this one."""
    message = "Allocate failed due to no healthy devices present"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    refused = {**running(1), "status": status}
    others = [refused, *([running(1, suffix="y")] if is_replaced else [])]
    stream = Stream(2, nodes=2)
    stream.send("conductor", "interrupted", by="SIGTERM")
    lists = [[running(0)], [running(0), *others], [_FIRST, *others]]
    found, cluster = _followed_through(stream.close(ranks=False, nodes=(0,)), lists, tmp_path)
    told = f'pod trial-1-1-x on node gpu-1 failed before its container ran (UnexpectedAdmissionError: "{message}")'
    by = "SIGTERM" if is_replaced else f"the cluster: {told}; other pods were deleted"
    assert (found.trial.interrupted, found.verdict.exit_code) == (by, 130)
    assert cluster.printed.count(f"seatrial: {told}") == 1
    assert not [finding for finding in found.findings if finding.severity == "fail"]


def test_a_conductor_that_somebody_stops_is_no_lost_node(tmp_path: Path) -> None:
    """Nobody deletes its pod: the signal comes from within, or from its node."""
    found, _ = followed(interrupted(), [ended(0, 130), running(1)], tmp_path)
    assert (found.trial.interrupted, found.verdict.exit_code) == ("SIGTERM", 130)
    assert not [finding for finding in found.findings if finding.severity == "fail"]


_TOO_LONG: dict[str, Any] = {
    "reason": "DeadlineExceeded",
    "message": "Pod was active on the node longer than the specified deadline",
}


@pytest.mark.parametrize(
    ("lost", "pods"),
    [
        ("", [ended(0, 130, **_TOO_LONG), ended(1, 3, **_TOO_LONG)]),
        ("", [ended(0, 130, **_TOO_LONG), ended(1, 137, **_TOO_LONG)]),
        ("before", [_FIRST, ended(1, 3, **_TOO_LONG)]),
    ],
)
def test_the_deadline_of_the_pods_blames_no_node(lost: str, pods: list[dict[str, Any]], tmp_path: Path) -> None:
    found, cluster = followed(interrupted(lost=lost), pods, tmp_path)
    assert "ran longer than its activeDeadlineSeconds" in (found.trial.interrupted or "")
    assert found.verdict.exit_code == 130
    assert not [finding for finding in found.findings if finding.severity == "fail"]
    assert not [event for event in cluster.events if "cordon" in str(event)]


@pytest.mark.parametrize("code", [3, 130, 143])
def test_a_pod_that_somebody_asked_to_end_is_no_lost_node(code: int, tmp_path: Path) -> None:
    found, _ = followed(interrupted(), [_FIRST, ended(1, code)], tmp_path)
    assert found.verdict.exit_code == 130
    assert not [finding for finding in found.findings if finding.severity == "fail"]


def missed(*, interrupted: bool = False) -> Stream:
    """The conductor missed node 1 and came to its end. ``interrupted``: whether mpirun sent it SIGTERM after that."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.trouble({"node": 1, "how": "lost", "detail": "the control connection was closed"})
    if interrupted:
        stream.send("conductor", "interrupted", by="SIGTERM")
    stream.kill(0)
    return stream.close(ranks=False, nodes=(0,))


def _disrupted(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}]}


_DRAINED, _PREEMPTED = _disrupted("EvictionByEvictionAPI"), _disrupted("PreemptionByScheduler")


def _names_nobody(found: Conclusion, cluster: Cluster) -> bool:
    cordons = [event for event in cluster.events if "cordon" in str(event)]
    return not cordons and not any(finding.severity == "fail" for finding in found.findings)


@pytest.mark.parametrize("code", by_day([0, 1, 3], 1))
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (ended(1, 137, is_deleted=True, **_DRAINED), "was evicted on request (its node is being drained)"),
        (ended(1, 137, is_deleted=True, **_PREEMPTED), "was preempted by another pod"),
        (ended(1, 3, is_deleted=True), "was deleted"),
        (ended(1, 137, reason="Evicted"), "was evicted"),
    ],
)
def test_a_conductor_that_missed_a_stopped_pod_blames_nobody(
    other: dict[str, Any], words: str, code: int, tmp_path: Path
) -> None:
    """Its own exit code is that of its verdict, and no reason for which somebody stopped the other pod before."""
    found, cluster = followed(missed(), [ended(0, code), other], tmp_path)
    assert (found.trial.interrupted or "").startswith(f"the cluster: pod trial-1-1-x on node gpu-1 {words}")
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert _names_nobody(found, cluster)


_GOES_ON = {**running(1), "metadata": {**running(1)["metadata"], **_DELETED}}


def _ended_at(pod: dict[str, Any], at: str) -> dict[str, Any]:
    (status,) = pod["status"]["containerStatuses"]
    state = {"terminated": {**status["state"]["terminated"], "finishedAt": at}}
    return {**pod, "status": {**pod["status"], "containerStatuses": [{**status, "state": state}]}}


@pytest.mark.parametrize(
    "other",
    [
        _GOES_ON,
        _ended_at(ended(1, 137, is_deleted=True), "2026-01-01T00:00:40Z"),
        _ended_at(ended(1, 3, is_deleted=True), "2026-01-01T00:00:11Z"),
        _ended_at(ended(1, 3, is_deleted=True), "2026-01-01T00:00:02Z"),
        _ended_at(ended(1, 137, is_deleted=True), "2026-01-01T00:00:05Z"),
    ],
    ids=["hangs", "hung", "was cut off", "was cut off by a clock that is behind", "was killed"],
)
@pytest.mark.parametrize(
    "at", by_day(["2026-01-01T00:00:05Z", "2026-01-01T00:00:10Z"], 1), ids=["before", "in that second"]
)
@pytest.mark.parametrize("before", [None, [ended(0, 1), running(1)]])
def test_a_missed_pod_that_is_deleted_after_the_verdict_is_blamed(
    other: dict[str, Any], at: str, before: list[dict[str, Any]] | None, tmp_path: Path
) -> None:
    """The conductor fails by its verdict, so that the controllers delete the others, also what was at fault."""
    found, _ = followed(missed(), [_ended_at(ended(0, 1), at), other], tmp_path, before=before)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-1",)


def test_no_pod_hides_its_end_behind_a_later_deletion(tmp_path: Path) -> None:
    """The time of its end is the word of its node; the lists are not."""
    found, _ = followed(
        missed(), [ended(0, 1), ended(1, 3, is_deleted=True)], tmp_path, before=[ended(0, 1), running(1)]
    )
    assert (found.trial.interrupted, found.verdict.status) == (None, "FAIL")


@pytest.mark.parametrize("at", ["2026-01-01T00:00:40Z", "2026-01-01T00:00:05Z"], ids=["in time", "behind"])
@pytest.mark.parametrize(
    "first_at", by_day(["2026-01-01T00:00:15Z", "2026-01-01T00:00:05Z"], 1), ids=["in time", "behind"]
)
@pytest.mark.parametrize("has_signal", [False, True])
def test_lists_tell_what_clocks_do_not(has_signal: bool, first_at: str, at: str, tmp_path: Path) -> None:
    """A list shows that a pod is deleted before it has ended, and before the first one has: no clock undoes that."""
    late, first = _ended_at(ended(1, 137, is_deleted=True), at), _ended_at(ended(0, 130 if has_signal else 1), first_at)
    stream = interrupted() if has_signal else missed()
    found, cluster = followed(stream, [first, late], tmp_path, before=[running(0), _GOES_ON])
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert _names_nobody(found, cluster)


def test_a_deleted_pod_out_of_memory_is_blamed(tmp_path: Path) -> None:
    killed = ended(1, 137, is_deleted=True)
    killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    found, _ = followed(missed(), [ended(0, 1), killed], tmp_path, before=[running(0), _GOES_ON])
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)


_NO_REASON_YET = ended(1, 137)
_NO_REASON_YET["status"]["phase"] = "Running"
_EVICTED = ended(1, 137, reason="Evicted")


@pytest.mark.parametrize("late", by_day([[running(1)], [_NO_REASON_YET], [running(1), _NO_REASON_YET]], 1))
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_reason_that_the_kubelet_tells_late_is_waited_for(
    is_interrupted: bool, late: list[dict[str, Any]], tmp_path: Path
) -> None:
    """It tells the phase and the reason after the end of all containers (``mergePodStatus`` of its status manager)."""
    stream, first = (interrupted(lost="before"), _FIRST) if is_interrupted else (missed(), ended(0, 1))
    lists = [[running(0), running(1)], *([first, pod] for pod in late), [first, _EVICTED]]
    found, cluster = _followed_through(stream, lists, tmp_path)
    assert (found.trial.interrupted or "").endswith("pod trial-1-1-x on node gpu-1 was evicted")
    assert found.verdict.exit_code == 130
    assert _names_nobody(found, cluster)


@pytest.mark.parametrize("last", [[], [{**_NO_REASON_YET, "metadata": {**_NO_REASON_YET["metadata"], **_DELETED}}]])
def test_an_eviction_is_announced_by_an_event(last: list[dict[str, Any]], tmp_path: Path) -> None:
    """Controllers delete the pod when the first one has ended, and it disappears before its status tells the reason."""
    about = {"kind": "Pod", **{key: _NO_REASON_YET["metadata"][key] for key in ("name", "uid")}}
    event = {"reason": "Evicted", "message": "low on memory", "involvedObject": about}
    (tmp_path / "warnings").write_text(json.dumps({"items": [event]}))
    lists = [[running(0), running(1)], [running(0), _NO_REASON_YET], [ended(0, 1), *last]]
    found, cluster = _followed_through(missed(), lists, tmp_path, (EVENTS, f"cat {tmp_path}/warnings"))
    assert (found.trial.interrupted or "").endswith('pod trial-1-1-x on node gpu-1 was evicted ("low on memory")')
    assert found.verdict.exit_code == 130
    assert _names_nobody(found, cluster)


def test_a_reason_that_nobody_tells_is_not_waited_for_long(tmp_path: Path) -> None:
    found, _ = followed(missed(), [ended(0, 1), _NO_REASON_YET], tmp_path)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)


def test_a_deleted_pod_is_not_forgotten_for_the_next_of_its_name(tmp_path: Path) -> None:
    """The operators for PyTorch and MPI make another one at once."""
    newer = {**running(1), "metadata": {**running(1)["metadata"], "uid": "newer"}}
    found, cluster = followed(missed(), [ended(0, 1), newer], tmp_path, before=[running(0), _GOES_ON])
    assert (found.trial.interrupted or "").startswith("the cluster: pod trial-1-1-x on node gpu-1 was deleted")
    assert found.verdict.exit_code == 130
    assert _names_nobody(found, cluster)


@pytest.mark.parametrize("why", [{}, _PREEMPTED])
def test_a_pod_out_of_memory_is_blamed_beside_one_that_was_deleted(why: dict[str, Any], tmp_path: Path) -> None:
    killed = ended(1, 137)
    killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    first = ended(0, 130, is_deleted=True, **why)
    found, _ = followed(interrupted(), [first, killed], tmp_path)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    (blamed,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert blamed.culprit.nodes == ("gpu-1",)


# Under MPI


def mpi_pods(code: int, worker: dict[str, Any]) -> list[dict[str, Any]]:
    """The launcher, which ended with this code, a worker that runs on, and this one."""
    replica = "training.kubeflow.org/replica-index"
    launcher, pods = ended(0, code), [{**running(0), "spec": {**running(0)["spec"], "nodeName": "gpu-0"}}, worker]
    labels = {"app.kubernetes.io/component": "launcher"}
    made = [{**launcher, "metadata": {**launcher["metadata"], "name": FIRST_OF_MPI, "uid": "l", "labels": labels}}]
    for number, pod in enumerate(pods):
        labels = {"app.kubernetes.io/component": "node", replica: str(number)}
        made.append({**pod, "metadata": {**pod["metadata"], "name": f"trial-1-worker-{number}", "labels": labels}})
    return made


def _followed_under_mpi(stream: Stream, pods: list[dict[str, Any]], folder: Path) -> tuple[Conclusion, Cluster]:
    cluster = Cluster(folder, pods, *answers_of(stream, folder, None), ended_s=0.1, reason_s=0.1)
    job = replace(cluster.job, target="mpijob", detail=replace(cluster.job.detail, under_mpi=True))
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(replace(trial(), detail=replace(trial().detail, under_mpi=True)))
    return conclude(cluster.events, load=fake_load), cluster


@pytest.mark.parametrize(
    ("code", "has_signal"), by_day([(0, False), (1, False), (1, True), (143, True), (255, True)], 1, 3)
)
@pytest.mark.parametrize(
    ("status", "words"),
    [(_DRAINED, "was evicted on request"), (_PREEMPTED, "was preempted by another pod"), ({}, "was deleted")],
)
def test_a_worker_of_mpi_that_was_stopped_is_not_blamed(
    status: dict[str, Any], words: str, code: int, has_signal: bool, tmp_path: Path
) -> None:
    """Its sshd is process 1 and ends with 0 at SIGTERM, before any agent can tell its signal; mpirun ends of that."""
    pods = mpi_pods(code, ended(1, 0, is_deleted=True, **status))
    found, cluster = _followed_under_mpi(missed(interrupted=has_signal), pods, tmp_path)
    assert (found.trial.interrupted or "").startswith(f"the cluster: pod trial-1-worker-1 on node gpu-1 {words}")
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert _names_nobody(found, cluster)


@pytest.mark.parametrize("code", by_day([0, 1, 255], 0, 2))
@pytest.mark.parametrize(
    "worker",
    [
        _ended_at(ended(1, 0, is_deleted=True), "2026-01-01T00:00:11Z"),
        {**_GOES_ON, "spec": {**_GOES_ON["spec"], "nodeName": "gpu-1"}},
        _ended_at(ended(1, 137, is_deleted=True), "2026-01-01T00:00:05Z"),
    ],
    ids=["was cut off", "hangs", "was killed"],
)
@pytest.mark.parametrize(
    "at", by_day(["2026-01-01T00:00:05Z", "2026-01-01T00:00:10Z"], 1), ids=["before", "in that second"]
)
def test_a_worker_that_the_operator_deletes_at_the_end_is_blamed(
    worker: dict[str, Any], at: str, code: int, tmp_path: Path
) -> None:
    launcher, *workers = mpi_pods(code, worker)
    pods = [_ended_at(launcher, at), *workers]
    found, _ = _followed_under_mpi(missed(interrupted=code == 255), pods, tmp_path)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    assert {node for finding in found.findings if finding.severity == "fail" for node in finding.culprit.nodes} == {
        "gpu-1"
    }


@pytest.mark.parametrize("reason", by_day([_DRAINED, _PREEMPTED]))
def test_a_stopped_worker_hides_no_loss_of_another_one(reason: dict[str, Any], tmp_path: Path) -> None:
    """The pod of the lost agent goes on; the other one is stopped while the conductor comes to its end."""
    launcher, worker, lost = mpi_pods(1, {**running(1), "spec": {**running(1)["spec"], "nodeName": "gpu-1"}})
    metadata, status = {**worker["metadata"], **_DELETED}, {**worker["status"], **reason}
    pods = [launcher, {**worker, "metadata": metadata, "status": status}, lost]
    found, _ = _followed_under_mpi(missed(), pods, tmp_path)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    assert {node for finding in found.findings if finding.severity == "fail" for node in finding.culprit.nodes} == {
        "gpu-1"
    }


def test_a_launcher_of_mpi_that_somebody_deletes_is_named(tmp_path: Path) -> None:
    launcher, *workers = mpi_pods(255, running(1))
    pods = [{**pod, "metadata": {**pod["metadata"], **_DELETED}} for pod in (launcher, *workers)]
    found, cluster = _followed_under_mpi(interrupted(lost="after"), pods, tmp_path)
    assert (found.trial.interrupted or "").startswith(f"the cluster: pod {FIRST_OF_MPI} on node gpu-0 was deleted")
    assert _names_nobody(found, cluster)


# Without a conductor


@pytest.mark.parametrize("survivor", by_day([1, 130], 1))
@pytest.mark.parametrize(
    "other",
    [
        ended(1, 143, is_deleted=True, **_PREEMPTED),
        ended(1, 130, is_deleted=True, **_DRAINED),
        ended(1, 137, reason="Evicted"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_training_that_lost_a_stopped_pod_is_interrupted(
    is_first: bool, other: dict[str, Any], survivor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``is_first``: whether the one that ended of that is the first pod; else that one hangs."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    pods = [ended(0, survivor), other] if is_first else [running(0), other, ended(2, survivor)]
    cluster = Cluster(tmp_path, pods, (LOGS, "echo 2026-01-01T00:00:01Z step 10"))
    job = replace(training(), nodes=len(pods), detail=cluster.job.detail)
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    assert [event["how"] for event in cluster.events if event["kind"] == "outcome"] == ["interrupted"]
    (by,) = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    assert by.startswith("the cluster: pod trial-1-1-x on node gpu-1 was ")


_LOST: dict[str, Any] = {"node": 1, "how": "lost"}


@pytest.mark.parametrize(
    ("seen", "generation", "how"),
    [(_LOST, 0, "interrupted"), ({"rank": 0, "how": "dead"}, 0, "failed"), (_LOST, 1, "failed")],
)
def test_a_script_that_only_lost_a_stopped_pod_is_interrupted(
    seen: dict[str, Any], generation: int, how: str, tmp_path: Path
) -> None:
    """``seen``: what its conductor saw before all else; ``generation``: that of its outcome."""
    heard = Heard(tmp_path, None)
    ending = {"restarts": 0, "how": "failed", "text": "node gpu-1 was lost", "last_lines": []}
    sent: list[dict[str, Any]] = [
        {"kind": "trouble", "gen": 0, "step": -1, "seen": [seen], "waiting": []},
        {"kind": "trouble", "gen": 0, "step": -1, "seen": [_LOST], "waiting": []},
        {"kind": "outcome", "gen": generation, **ending},
    ]
    for number, event in enumerate(sent, start=5):
        heard.run_log.take({"run": RUN, "src": "conductor", "seq": number, "t": 1.0, **event})
    heard.run_log.interrupt("the cluster: pod t-1 was deleted", heard.run_log.lost_at(1, any_node=False))
    heard.run_log.close(training())
    assert [event["how"] for event in heard.events if event["kind"] == "outcome"][-1] == how
    assert heard.run_log.damaged == 0


def _out_of_memory(number: int) -> dict[str, Any]:
    pod = ended(number, 137)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    return pod


def _cordoned(cluster: Cluster) -> list[str]:
    """Return the nodes that the report says how to cordon."""
    texts = [event["text"] for event in cluster.events if event["kind"] == "note"]
    return [text.split()[-1] for text in texts if text.startswith("to keep other work off ")]


@pytest.mark.parametrize(("check", "scope"), [("bootstrap", "bootstrap"), ("links", "pairs")])
def test_memory_that_runs_out_while_ranks_meet_names_no_node(check: str, scope: Any, tmp_path: Path) -> None:
    """Each rank can fill the store in the first pod, and the kernel ends the conductor there, too."""
    stream = Stream(2, nodes=2)
    stream.begin(check, scope)
    found, _ = followed(stream, [_out_of_memory(0), ended(1, 3)], tmp_path)
    (finding,) = [finding for finding in found.findings if finding.severity in ("fail", "error")]
    assert finding.culprit.nodes == ()
    assert "pod trial-1-0-x on node gpu-0 was killed because it needed more memory" in finding.what
    assert finding.what.endswith("while connecting to other nodes: what it runs, or what came from them, is at fault")
    assert found.verdict.status != "PASS"


@pytest.mark.parametrize(("check", "named"), [("bootstrap", ()), ("collectives", ("gpu-1",))])
def test_nor_does_that_of_a_pod_that_the_conductor_misses(check: str, named: tuple[str, ...], tmp_path: Path) -> None:
    stream = Stream(2, nodes=2)
    stream.begin(check, "world")
    stream.trouble({"node": 1, "how": "lost", "detail": "the control connection was closed"})
    stream.kill(0)
    stream.close(ranks=False, nodes=(0,))
    found, cluster = followed(stream, [ended(0, 1), _out_of_memory(1)], tmp_path)
    failures = [finding for finding in found.findings if finding.severity == "fail"]
    assert [finding.culprit.nodes for finding in failures if finding.culprit.kind == "node"] == [named] * bool(named)
    assert found.verdict.status == "FAIL"
    assert _cordoned(cluster) == [*named]


def test_another_pod_that_was_killed_meanwhile_is_named(tmp_path: Path) -> None:
    stream = Stream(2, nodes=2)
    stream.begin("bootstrap", "bootstrap")
    found, cluster = followed(stream, [_out_of_memory(0), ended(1, 137)], tmp_path)
    assert _cordoned(cluster) == ["gpu-1"]
    assert any(finding.culprit.nodes == ("gpu-1",) for finding in found.findings if finding.severity == "fail")


@pytest.mark.parametrize("last", ["links", ""])
def test_memory_that_runs_out_after_a_good_end_changes_no_verdict(last: str, tmp_path: Path) -> None:
    stream = Stream(2, nodes=2)
    for name in (*stream.plan.checks, *filter(None, [last])):
        stream.check(name)
    stream.close()
    first, other = ended(0, 0, phase="Succeeded"), ended(1, 137)
    plain, _ = followed(stream, [first, other], tmp_path)
    (tmp_path / "again").mkdir()
    found, _ = followed(stream, [first, _out_of_memory(1)], tmp_path / "again")
    assert (found.verdict.status, len(found.findings)) == (plain.verdict.status, len(plain.findings))
