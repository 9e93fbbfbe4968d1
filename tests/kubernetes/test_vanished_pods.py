"""Pods that a list no longer has, and of which no list shows when their deletion was requested."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_checks import fake_load
from kubernetes.attempted import Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import log_of
from kubernetes.test_interrupted_pods import answers_of, ended, missed, mpi_pods
from kubernetes.test_run_log import trial

from seatrial.judge.conclude import Conclusion, conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import follower as follower_module

_BOTH_RUN = [running(0), running(1)]
_ORDER_UNKNOWN = "nothing shows whether that was before the end of pod "


def _found(folder: Path, lists: list[list[dict[str, Any]]], *, under_mpi: bool = False) -> tuple[Conclusion, list[str]]:
    """Return the conclusion of a trial that missed node 1, and what the report says about cordoning."""
    answers = answers_of(missed(), folder, None)
    cluster = Cluster(folder, lists[-1], listed_in_turn(lists, folder), *answers, ended_s=0.1, reason_s=0.1)
    job = cluster.job
    if under_mpi:
        job = replace(job, target="mpijob", detail=replace(job.detail, under_mpi=True))
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(replace(trial(), detail=replace(trial().detail, under_mpi=under_mpi)))
    cordons = [str(event["text"]) for event in cluster.events if "cordon" in str(event)]
    return conclude(cluster.events, load=fake_load), cordons


def _names_nobody(found: Conclusion, cordons: list[str]) -> bool:
    fails = [finding for finding in found.findings if finding.severity == "fail"]
    return (found.verdict.status, found.verdict.exit_code, fails, cordons) == ("INCONCLUSIVE", 130, [], [])


def test_a_pod_that_vanishes_with_the_end_of_the_first_is_not_named(tmp_path: Path) -> None:
    """Somebody may have deleted it by force, of which the run ended; or a controller has, when the run had ended."""
    found, cordons = _found(tmp_path, [_BOTH_RUN, [ended(0, 1)]])
    assert _names_nobody(found, cordons)
    by = "the cluster: pod trial-1-1-x on node gpu-1 was deleted; " + _ORDER_UNKNOWN + "trial-1-0-x on node gpu-0"
    assert found.trial.interrupted == by


def test_nor_is_one_that_vanished_before(tmp_path: Path) -> None:
    found, cordons = _found(tmp_path, [_BOTH_RUN, [running(0)], [ended(0, 1)]])
    assert _names_nobody(found, cordons)
    assert found.trial.interrupted == "the cluster: pod trial-1-1-x on node gpu-1 was deleted"


def test_a_pod_that_was_listed_after_its_loss_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conductor missed it before anybody deleted it."""
    monkeypatch.setattr(follower_module, "_CHANGING_POLL_S", 0.2)
    found, cordons = _found(tmp_path, [*[_BOTH_RUN] * 8, [ended(0, 1)]])
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    (finding,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert finding.culprit.nodes[0].startswith("gpu-1")
    assert cordons


def test_an_end_without_a_time_is_no_earlier_than_a_deletion(tmp_path: Path) -> None:
    first, deletion = ended(0, 1), {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}
    del first["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    other = {**running(1), "metadata": {**running(1)["metadata"], **deletion}}
    found, cordons = _found(tmp_path, [_BOTH_RUN, [first, other]])
    assert _names_nobody(found, cordons)
    assert _ORDER_UNKNOWN in (found.trial.interrupted or "")


def test_a_worker_that_vanishes_with_the_launcher_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "_REPORTED_S", 0.2)
    launcher, *workers = mpi_pods(1, running(1))
    runs = {**running(0), "metadata": launcher["metadata"]}
    found, cordons = _found(tmp_path, [[runs, *workers], [launcher]], under_mpi=True)
    assert _names_nobody(found, cordons)


def test_news_that_come_while_a_list_is_awaited_ask_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That list may be older than the news."""
    until = time.monotonic() + 10
    log_ends, answers, calls = (tmp_path / name for name in ("log_ends", "answers", "calls"))

    def asked() -> int:
        return sum("/pods?" in line for line in calls.read_text().splitlines()) if calls.exists() else 0

    def wait(condition: Any) -> None:
        while not condition():
            assert time.monotonic() < until
            follower.poll()
            time.sleep(0.01)

    listed = f"[ $(grep -c '/pods?' {calls}) = 2 ] && while [ ! -e {answers} ]; do sleep 0.02; done"
    log = (
        log_of("trial-1-0-x"),
        f"mkdir {tmp_path}/once || exec sleep 60; while [ ! -e {log_ends} ]; do sleep 0.02; done",
    )
    call, lists = listed_in_turn([_BOTH_RUN], tmp_path)
    attempt = Cluster(tmp_path, _BOTH_RUN, log, (call, f"{listed}; {lists}")).attempt()
    follower = attempt._follower
    attempt.submit()
    try:
        wait(lambda: follower.first_log is not None and follower.first_log.is_open)
        monkeypatch.setattr(follower_module, "_POLL_S", 0.0)
        wait(lambda: asked() == 2)
        monkeypatch.setattr(follower_module, "_POLL_S", 1_000.0)
        log_ends.touch()
        wait(lambda: follower.first_log is not None and not follower.first_log.is_open)
        for _ in range(5):
            follower.poll_pods()
        answers.touch()
        wait(lambda: asked() == 3)
    finally:
        assert attempt.cleanup(keep=False) == []
