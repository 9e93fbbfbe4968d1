"""A training whose pods all start again after a failure: only the pods of the newest start are judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from kubernetes.attempted import Cluster, listed_in_turn, running, waiting
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import ended
from kubernetes.test_run_log import training

from seatrial.errors import SeatrialError
from seatrial.targets.kubernetes import attempt as attempt_module

_LABEL = "jobset.sigs.k8s.io/restart-attempt"
_RESULT = "trained 10 of 10 steps"
_ITS_RESULT = (log_of("trial-1-0-start1"), f"echo 2026-01-01T00:06:01Z {_RESULT}")
_FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": "m"}]}
_PREEMPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}


def _of(start: int, *pods: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods of one start: JobSet labels them with its number, and their names are new."""
    made = []
    for pod in pods:
        metadata = pod["metadata"]
        name, labels = metadata["name"][:-1] + f"start{start}", {**metadata["labels"], _LABEL: str(start)}
        created = f"2026-01-01T00:0{start}:00Z"
        metadata = {**metadata, "name": name, "uid": f"u-{name}", "labels": labels, "creationTimestamp": created}
        made.append({**pod, "metadata": metadata})
    return made


def _deleted(pod: dict[str, Any]) -> dict[str, Any]:
    deletion = {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}
    return {**pod, "metadata": {**pod["metadata"], **deletion}}


def _trained(
    lists: list[list[dict[str, Any]]], folder: Path, *, workload: dict[str, Any] | None = None, **limits: float
) -> tuple[str, str]:
    """Return how a training with restarts ended, and by what. ``workload``: the status of its workload."""
    more = [] if workload is None else [("'get job.batch/trial-1 --ignore-not-found'*", f"cat {folder}/status")]
    cluster = Cluster(
        folder,
        lists[-1],
        *more,
        listed_in_turn(lists, folder),
        _ITS_RESULT,
        (LOGS, "echo 2026-01-01T00:00:01Z step 10"),
        reason_s=0.2,
        **limits,
    )
    if workload is not None:
        created = (folder / "workload").read_text().rstrip()
        (folder / "status").write_text(json.dumps({**json.loads(created), "status": workload}))
    detail = replace(cluster.job.detail, workload=replace(cluster.job.detail.workload, max_restarts=2))
    job = replace(training(), target="jobset", nodes=2, detail=detail)
    attempt = cluster.attempt_at(job)
    try:
        attempt.run()
    finally:
        assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    by = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    return outcome["how"], (by or [outcome["text"]])[0]


_BOTH_RUN = [running(0), running(1)]
_EVICTED = ended(1, 137, reason="Evicted")


@pytest.mark.parametrize(
    "earlier",
    by_day(
        [
            [[running(0), ended(1, 1)]],
            [[running(0), ended(1, 137)]],
            [[running(0), _EVICTED]],
            [[running(0), ended(1, 143, is_deleted=True, **_PREEMPTED)]],
            [[ended(0, 1), ended(1, 137)], [ended(0, 1), ended(1, 137)], [ended(0, 1)], []],
            [[ended(0, 1), _EVICTED]],
            [[_deleted(running(0)), _deleted(ended(1, 1))]],
            [[_deleted(running(0)), _deleted(running(1))], [], []],
        ],
        *(0, 2, 4, 7),
    ),
)
def test_a_training_that_started_again_is_judged_by_its_last_start(
    earlier: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    lists = [_of(0, *pods) for pods in ([*_BOTH_RUN], *earlier)]
    lists += [_of(1, *_BOTH_RUN), _of(1, ended(0, 0), ended(1, 0))]
    assert _trained(lists, tmp_path) == ("ended", "all pods have ended")


@pytest.mark.parametrize("other", by_day([_EVICTED, ended(1, 143, is_deleted=True, **_PREEMPTED)]))
@pytest.mark.parametrize("first", by_day([running(0), _deleted(running(0))]))
def test_a_first_pod_that_takes_its_grace_is_waited_for(
    first: dict[str, Any], other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others were stopped, and JobSet starts all again once the first one has ended."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.0)
    lists = [_of(0, *_BOTH_RUN), *[_of(0, first, other)] * 3]
    lists += [_of(1, *_BOTH_RUN), _of(1, ended(0, 0), ended(1, 0))]
    assert _trained(lists, tmp_path) == ("ended", "all pods have ended")


def test_earlier_pods_that_are_still_there_are_not_judged(tmp_path: Path) -> None:
    old = _of(0, _deleted(running(0)), _EVICTED)
    lists = [_of(0, *_BOTH_RUN), old, [*old, *_of(1, *_BOTH_RUN)], [*old, *_of(1, ended(0, 0), ended(1, 0))]]
    assert _trained(lists, tmp_path) == ("ended", "all pods have ended")


def test_the_failure_of_the_last_start_is_named(tmp_path: Path) -> None:
    lists = [_of(0, *_BOTH_RUN), _of(0, running(0), _EVICTED), _of(1, *_BOTH_RUN), _of(1, ended(0, 1), ended(1, 137))]
    how, what = _trained(lists, tmp_path, workload=_FAILED)
    assert how == "failed"
    assert what.startswith("pod trial-1-1-start1 on node gpu-1 ended with exit code 137")


@pytest.mark.parametrize("other", by_day([_EVICTED, ended(1, 143, is_deleted=True, **_PREEMPTED)]))
@pytest.mark.parametrize("workload", [_FAILED, None])
def test_the_last_start_is_interrupted_by_the_cluster(
    workload: dict[str, Any] | None, other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``workload``: its controller says that it has failed, or says nothing for long."""
    monkeypatch.setattr(attempt_module, "_RESTARTED_S", 1.0)
    lists = [_of(0, *_BOTH_RUN), _of(0, running(0), other), _of(0, ended(0, 1), other)]
    how, by = _trained(lists, tmp_path, workload=workload)
    assert how == "interrupted"
    assert by.startswith("the cluster: pod trial-1-1-start0 on node gpu-1 was ")


_FAILED_START = [_of(0, *_BOTH_RUN), _of(0, ended(0, 1), ended(1, 137))]


@pytest.mark.parametrize(
    "new", by_day([[waiting(0), waiting(1)], [waiting(0), running(1)], [running(0), waiting(1)]], 2)
)
@pytest.mark.parametrize("restarted_s", [0.0, 3.0], ids=["meanwhile", "before"])
def test_the_first_pod_of_an_earlier_start_ends_nothing(
    restarted_s: float, new: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new pods wait for longer than a restart takes. ``restarted_s``: whether it has been awaited before."""
    monkeypatch.setattr(attempt_module, "_RESTARTED_S", restarted_s)
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 2.0)
    still = [] if restarted_s else [_of(0, ended(0, 1), running(1))]
    lists = [_FAILED_START[0], *(still or [_FAILED_START[1]]), *[_of(1, *new)] * 5]
    lists += [_of(1, *_BOTH_RUN), _of(1, ended(0, 0), ended(1, 0))]
    assert _trained(lists, tmp_path) == ("ended", "all pods have ended")


@pytest.mark.parametrize("hopeless", [False, True])
def test_pods_that_start_again_are_waited_for_anew(
    hopeless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "_RESTARTED_S", 1.0)
    pulls = [{"name": "seatrial", "ready": False, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
    new = waiting(0, status__containerStatuses=pulls) if hopeless else waiting(0)
    limits: dict[str, Any] = {"hopeless_s": 0.5} if hopeless else {"queue_s": 2.0}
    with pytest.raises(SeatrialError, match="does not start" if hopeless else r"have started within 2 s"):
        _trained([*_FAILED_START, _of(1, new, running(1))], tmp_path, workload=None, **limits)
