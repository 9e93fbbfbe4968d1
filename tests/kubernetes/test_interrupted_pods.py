"""Why a run was interrupted: the conductor knows that it was stopped, and the nodes of the pods say the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_streams import Stream
from fake_checks import fake_load
from kubernetes.attempted import WORKLOAD, Cluster, running
from kubernetes.test_log_reader import lines_of, stamped
from kubernetes.test_run_log import trial

from seatrial.judge.conclude import Conclusion, conclude

_DELETED = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}


def ended(number: int, code: int, *, is_deleted: bool = False, **status: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:05Z"}}
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


def followed(stream: Stream, pods: list[dict[str, Any]], folder: Path) -> tuple[Conclusion, Cluster]:
    events = [{**event, "run": "run-1"} for event in stream.events]
    lines = [line for number, event in enumerate(events) for line in lines_of(number, event, WORKLOAD.token)]
    (folder / "first").write_bytes(stamped(lines))
    cluster = Cluster(folder, pods, ("'logs trial-1-0-x'*", f"cat {folder}/first"), ("logs*", "exit 0"), ended_s=0.5)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load), cluster


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
