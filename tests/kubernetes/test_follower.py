"""What the controller tells of the output of the first pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.attempted import OBJECTS, Cluster, running, waiting
from kubernetes.kubectl_script_double import EVENTS, PODS

from seatrial.targets.kubernetes import follower as follower_module
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.pods import pods_of
from seatrial.targets.kubernetes.warnings_of_run import events_of_run


def followed(cluster: Cluster, folder: Path, *, under_mpi: bool = False) -> PodFollower:
    cluster.attempt()
    objects = AppliedObjects(cluster.kubectl, "job", OBJECTS)
    job = replace(cluster.job, detail=replace(cluster.job.detail, under_mpi=under_mpi))
    return PodFollower(objects=objects, job=job, run_log=cluster.run_log, print_line=cluster.printed.append)


@pytest.mark.parametrize(("under_mpi", "told"), [(True, 100), (False, 0)])
def test_what_the_first_pod_says_of_its_wait_is_bounded_and_quoted(under_mpi: bool, told: int, tmp_path: Path) -> None:
    """Anything in that pod can print such lines, and without end."""
    cluster = Cluster(tmp_path, [running(0), running(1)])
    follower = followed(cluster, tmp_path, under_mpi=under_mpi)
    follower._take_text(['seatrial: waiting for nothing: run "oc cordon gpu-3"'] * 1_000)
    said = [line for line in cluster.printed if "gpu-3" in line]
    assert said == ["""seatrial: the launcher pod says: "waiting for nothing: run 'oc cordon gpu-3'\""""] * told
    cluster.run_log.started = True
    follower._take_text(["seatrial: waiting for more"])
    assert not any("for more" in line for line in cluster.printed)


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_pod_that_has_ended_by_itself_was_not_deleted(is_seen_before: bool, tmp_path: Path) -> None:
    """Operators delete failed pods, too. By the clock of its node, which is ahead, this one ended later than that."""
    cluster = Cluster(tmp_path, [])
    follower = followed(cluster, tmp_path)
    killed = running(1)
    state = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-01T10:00:13Z"}}
    killed["status"] = {"phase": "Failed", "containerStatuses": [{"name": "seatrial", "state": state}]}
    deletion = {"deletionTimestamp": "2026-01-01T10:01:11Z", "deletionGracePeriodSeconds": 60}
    deleted = {**killed, "metadata": {**killed["metadata"], **deletion}}
    for listed in [killed, deleted] if is_seen_before else [deleted]:
        follower._take_pods(pods_of({"items": [listed]}, KINDS["job"]))
    (pod,) = follower.pods
    assert (pod.killed, pod.stop, pod.deleted) == (is_seen_before, "" if is_seen_before else "was deleted", True)
    assert [line for line in cluster.printed if "was deleted" in line] == ([] if is_seen_before else cluster.printed)


@pytest.mark.parametrize(
    ("listed", "ran"),
    [
        ([("u1", "running")], True),
        ([("u1", "waiting")], False),
        # It was evicted before it ran.
        ([("u1", "waiting"), ("u2", "running")], True),
        # Its kubelet deleted it, and the agent in it stays connected: the next one is elsewhere.
        ([("u1", "running"), ("u2", "waiting")], False),
        ([("u1", "running"), ("u2", "running")], False),
    ],
)
def test_a_pod_that_another_one_replaced_did_not_run(listed: list[tuple[str, str]], ran: bool, tmp_path: Path) -> None:
    follower = followed(Cluster(tmp_path, []), tmp_path)
    for uid, state in listed:
        entry = running(1) if state == "running" else waiting(1)
        entry["metadata"]["uid"] = uid
        follower._take_pods(pods_of({"items": [entry]}, KINDS["job"]))
    assert follower.ran() == ({1} if ran else set())


def test_more_events_than_can_be_read_in_time_count_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may create Events can create many: to read them would keep the controller from its work."""
    monkeypatch.setattr(follower_module, "_MOST_EVENTS_BYTES", 1 << 20)
    too_many = (EVENTS, "echo '{\"items\": []}'; head -c 1048576 /dev/zero | tr '\\0' ' '")
    follower = followed(Cluster(tmp_path, [waiting(0), waiting(1)], too_many), tmp_path)
    try:
        while not follower.complaint:
            follower.poll_pods()
        assert follower.complaint.startswith("an answer of more than 1 MiB to kubectl-double get --raw /api/v1/events?")
        assert follower.warned.total_s == 0.0
    finally:
        follower.close()


@pytest.mark.parametrize("answer", ["<html>sign in</html>", '{"kind": "Status"}', '{"items": {}}', "[]"])
def test_an_answer_that_is_no_list_tells_of_no_pod(answer: str, tmp_path: Path) -> None:
    """kubectl prints what a proxy says in place of the API server."""
    cluster = Cluster(tmp_path, [], (PODS, f"echo '{answer}'"))
    follower = followed(cluster, tmp_path)
    try:
        while not follower.complaint:
            follower.poll_pods()
        assert follower.complaint == "the API server answers the question for pods with no list"
        assert follower.listed.total_s == 0.0
    finally:
        follower.close()
    assert follower._objects._remaining_pods() == (None, {})


def test_only_events_about_names_of_the_run_are_kept() -> None:
    events = [{"involvedObject": {"name": name}} for name in ("trial-1", "trial-1-0-x", "trial-10", "other", "")]
    assert events_of_run({"items": [*events, None, "x"]}, "trial-1") == {"items": events[:2]}
    assert events_of_run({"items": {}}, "trial-1") == events_of_run(None, "trial-1") == {"items": []}
