"""The end of an attempt: all objects are deleted, whatever happened, and the report names what is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from kubernetes.attempted import OBJECTS, Cluster, running, waiting

from seatrial.errors import SeatrialError
from seatrial.targets.kubernetes.applied_objects import AppliedObjects
from seatrial.targets.kubernetes.follower import PodFollower
from seatrial.util import memory_file


def test_objects_that_stay_are_named_with_the_command(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [], ("delete*", "echo 'Unable to connect to the server' >&2; exit 1"))
    objects = AppliedObjects(cluster.kubectl, "job", list(OBJECTS))
    objects.apply()
    (left,) = objects.delete(keep_waiting=lambda: True)
    assert "Unable to connect" in left
    assert "kubectl-double delete job.batch/trial-1" in left


def test_objects_are_named_where_this_machine_starts_no_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (cluster := Cluster(tmp_path, [running(0), running(1)])).attempt()
    made.submit()

    def refused(content: bytes = b"") -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(memory_file, "create", refused)
    with pytest.raises(SeatrialError, match="Too many open files"):
        made.poll()
    (left,) = made.cleanup(keep=False)
    assert "may still exist" in left
    assert "Too many open files" in left
    assert "kubectl-double delete job.batch/trial-1" in left
    assert cluster.deletes() == []


def test_no_container_starts_without_a_policy_that_was_refused(tmp_path: Path) -> None:
    """``kubectl create`` goes on after a refusal, and containers start when the Secret and the ConfigMaps exist."""
    said = "Error from server (Forbidden): networkpolicies.networking.k8s.io is forbidden: exceeded quota: policies"
    script = (
        f"cat > {tmp_path}/sent; cat {tmp_path}/sent >> {tmp_path}/all-sent; if grep -q NetworkPolicy {tmp_path}/sent;"
        f" then echo '{said}' >&2; exit 1; fi; cat {tmp_path}/workload"
    )
    cluster = Cluster(tmp_path, [], ("create*", script))
    with pytest.raises(SeatrialError, match="exceeded quota"):
        AppliedObjects(cluster.kubectl, "job", OBJECTS).apply()
    sent = (tmp_path / "all-sent").read_text()
    assert '"kind": "Job"' in sent
    assert '"kind": "Secret"' not in sent


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left on device"), SeatrialError("a flood")])
def test_objects_are_deleted_where_no_log_can_be_kept(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(follower: PodFollower) -> None:
        raise problem

    made = (cluster := Cluster(tmp_path, [running(0)], ("delete*", "echo 'no answer' >&2; exit 1"))).attempt()
    made.submit()
    monkeypatch.setattr(PodFollower, "close", refused)
    (left,) = made.cleanup(keep=False)
    assert "kubectl-double delete job.batch/trial-1" in left
    assert cluster.deletes()
    assert [event["text"] for event in cluster.events if event["kind"] == "note"] == [
        f"the logs of some pods are missing ({problem})"
    ]


def test_keep_deletes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [waiting(0)], queue_s=0.1)
    attempt = cluster.attempt()
    with pytest.raises(SeatrialError):
        attempt.run()
    assert attempt.cleanup(keep=True) == []
    assert not cluster.deletes()
    assert "--keep" in cluster.printed[-1]
