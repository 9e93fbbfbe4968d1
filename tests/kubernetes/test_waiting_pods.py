"""Pods of a training that have not ended, or lost their peers, when the others have gone: they may wait for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.attempted import Cluster, listed_in_turn, running, waiting
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import ended
from kubernetes.test_pod_failures import _lost
from kubernetes.test_run_log import Heard, ended_pod, training

from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes.pods import PodStatus

_RESULT = "trained 9 of 9 steps: loss 0.1"
_NOBODY = "; nothing shows which node is at fault"
_SILENT = f"ended with exit code 1, and no rank there says that it failed{_NOBODY}"
_ENDED = "on node gpu-1 ended with exit code 1"


def _hanging(number: int) -> PodStatus:
    return replace(ended_pod(number, 0), state="running", exit_code=None, end="")


def test_a_pod_that_hangs_after_the_result_is_not_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have kept the last block of the last exchange from it, and ended with 0."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    after = [ended(0, 0, phase="Succeeded"), running(1), ended(2, 0, phase="Succeeded")]
    cluster = Cluster(
        tmp_path,
        after,
        listed_in_turn([[running(number) for number in range(3)], after], tmp_path),
        (log_of("trial-1-0-x"), f"echo '2026-01-01T00:00:01Z {_RESULT}'"),
        (LOGS, "echo '2026-01-01T00:00:01Z seatrial: rank 1 of 3 on a: cpu'; sleep 20"),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=3, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], outcome["text"]) == ("failed", f"pod trial-1-1-x on node gpu-1 has not ended{_NOBODY}")


@pytest.mark.parametrize(("said", "max_restarts"), [(_RESULT, 0), (_RESULT, 1), ("seatrial: rank 0 of 3 on a", 0)])
def test_a_first_pod_that_stays_when_all_others_have_ended(
    said: str, max_restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rank shares the last exchange with the others, and only prints after it."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    before = [running(number) for number in range(3)]
    one = [running(0), ended(1, 0, phase="Succeeded"), running(2)]
    after = [running(0), *(ended(number, 0, phase="Succeeded") for number in (1, 2))]
    cluster = Cluster(
        tmp_path,
        after,
        listed_in_turn([before, one, after], tmp_path),
        (log_of("trial-1-0-x"), f"echo '2026-01-01T00:00:01Z {said}'; sleep 20"),
        (LOGS, "echo '2026-01-01T00:00:01Z seatrial: rank 1 of 3 on a: cpu'"),
    )
    detail = cluster.job.detail
    detail = replace(detail, workload=replace(detail.workload, max_restarts=max_restarts))
    attempt = cluster.attempt_at(replace(training(), nodes=3, detail=detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], outcome["text"]) == ("failed", f"pod trial-1-0-x on node gpu-1 has not ended{_NOBODY}")


@pytest.mark.parametrize("code", [0, 130])
@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("lines", [[_RESULT], []])
def test_one_that_has_not_ended_may_wait_for_the_other(lines: list[str], waits: int, code: int, tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(lines)
    pods = [_hanging(number) if number == waits else ended_pod(number, code) for number in range(2)]
    heard.run_log.end_by_exit_codes(pods, under_mpi=False)
    asked = f"; pod t-{1 - waits} on node gpu-1 ended with exit code 130, as if somebody had asked for it"
    assert heard.outcome(training())["text"] == (
        f"pod t-{waits} on node gpu-1 has not ended{asked if code else ''}{_NOBODY}"
    )


def test_the_only_pod_of_a_training_is_named(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.run_log.end_by_exit_codes([_hanging(0)], under_mpi=False)
    assert heard.outcome(training())["text"] == "pod t-0 on node gpu-1 has not ended"


def test_a_pod_whose_peer_was_never_listed_is_not_named(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path,
        [ended(0, 1)],
        listed_in_turn([[running(0)], [ended(0, 1)]], tmp_path),
        (log_of("trial-1-0-x"), f"echo '2026-01-01T00:00:01Z {_lost(0)}'"),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert outcome["text"] == f"the connection to others of pod trial-1-0-x on node gpu-0 was lost{_NOBODY}"


@pytest.mark.parametrize(
    ("logs", "codes", "text"),
    [
        # Rank 0 lacks the last block, and the rank that has all digests ends with 1, as they differ.
        ([_lost(0), "", ""], [1, 1, 0], f"the connection to others of pod t-0 on node gpu-1 was lost{_NOBODY}"),
        ([_lost(0), "", ""], [1, 1, 1], f"the connection to others of pod t-0 on node gpu-1 was lost{_NOBODY}"),
        (["", "", ""], [130, 1, 0], f"pod t-1 on node gpu-1 {_SILENT}"),
        # Both are in pod 0, whose parent has killed the one that waits.
        (["", ""], [1, 0], f"pod t-0 on node gpu-1 {_SILENT}"),
        (["", ""], [1, 1], f"pods t-0 on node gpu-1 and t-1 on node gpu-1 {_SILENT}"),
        # An error is another matter.
        ([_lost(0), "Traceback (most recent call last):\nOSError: x"], [1, 1], f"pod t-1 {_ENDED}"),
        ([_lost(0), "seatrial: rank 1 of 3 failed in load data: OSError: x"], [1, 1], f"pod t-1 {_ENDED}"),
    ],
    ids=range(7),
)
def test_a_pod_that_has_done_its_work_is_not_named_for_its_code(
    logs: list[str], codes: list[int], text: str, tmp_path: Path
) -> None:
    heard = Heard(tmp_path, None)
    pods = [ended_pod(number, code) for number, code in enumerate(codes)]
    for pod, said in zip(pods, logs, strict=True):
        heard.says(pod, f"seatrial: rank {pod.number} of 3 on a: cpu\n{said}\n")
    heard.run_log.end_by_exit_codes(pods, under_mpi=False)
    assert heard.outcome(training())["text"] == text


def test_a_pod_whose_ranks_never_met_the_others_has_done_no_work(tmp_path: Path) -> None:
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(0, 1), f"{_lost(0)}\n")
    heard.says(ended_pod(1, 1), "no space left\n")
    heard.run_log.end_by_exit_codes([ended_pod(0, 1), ended_pod(1, 1)], under_mpi=False)
    assert heard.outcome(training())["text"] == f"pod t-1 {_ENDED}"


@pytest.mark.parametrize("stays", [False, True])
def test_a_pod_in_the_place_of_a_preempted_one_begins_another_wait(
    stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator made another pod: a training that ended well was "interrupted" by the old preemption.

    ``stays``: whether that one is still in the lists, with a name that differs; else the other pod has its name.
    """
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 1.5)
    preempted = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
    gone = ended(1, 143, is_deleted=True, **preempted)
    new = {"uid": "u-new", **({"name": "trial-1-1-y"} if stays else {})}
    runs, done = (
        {**pod, "metadata": {**pod["metadata"], **new, "creationTimestamp": "2026-01-01T00:01:00Z"}}
        for pod in (running(1), ended(1, 0, phase="Succeeded"))
    )
    still = [gone] if stays else []
    lists = [
        *([running(0), running(1)], [running(0), gone]),
        *([[running(0), *still, runs]] * 8),
        *([running(0), *still, done], [ended(0, 0, phase="Succeeded"), *still, done]),
    ]
    result = (log_of("trial-1-0-x"), "echo '2026-01-01T00:00:01Z trained 9 of 9 steps'")
    others = (LOGS, "echo 2026-01-01T00:00:01Z step 9")
    cluster = Cluster(tmp_path, lists[-1], listed_in_turn(lists, tmp_path), result, others)
    job = replace(training(), nodes=2, detail=cluster.job.detail)
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], outcome["text"]) == ("ended", "all pods have ended")


@pytest.mark.parametrize("place", ["another name", "same name", "nobody"])
def test_a_place_that_nobody_takes_ends_the_run(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drained node: the pod in the place of its pod never got room, and the first one hung for ever."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    drained = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
    gone = ended(1, 143, is_deleted=True, **drained)
    waits = waiting(1)
    new = {"uid": "u-new", "creationTimestamp": "2026-01-01T00:01:00Z"}
    if place == "another name":
        new["name"] = "trial-1-1-y"
    waits["metadata"] |= new
    last = {"another name": [running(0), gone, waits], "same name": [running(0), waits], "nobody": [running(0)]}[place]
    lists = [[running(0), running(1)], [running(0), gone], last]
    logs = (LOGS, "echo 2026-01-01T00:00:01Z step 9")
    cluster = Cluster(tmp_path, last, listed_in_turn(lists, tmp_path), logs, queue_s=1000.0, replaced_s=1.5)
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    assert cluster.run_log.interrupted
    assert any("evict" in line for line in cluster.printed)
