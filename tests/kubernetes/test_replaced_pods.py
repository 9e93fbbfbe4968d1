"""Pods that were stopped before they ran, and in whose place an operator made others: those decide how a run ends."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from event_streams import node_lost
from fake_checks import fake_load
from kubernetes.attempted import Cluster, listed_in_turn, running, waiting
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import answers_of, ended
from kubernetes.test_pod_failures import _lost, _stamped
from kubernetes.test_run_log import ended_pod, training, trial

from seatrial.judge.conclude import conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import pod_order
from seatrial.targets.kubernetes.pod_order import PodOrder

_PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}
_OLD = waiting(1, spec__nodeName="gpu-9", status__conditions=[])
_MET = _stamped("seatrial: rank 1 of 2 on a: cpu")
_BROKEN = _stamped("seatrial: rank 1 of 2 failed in step 7: AcceleratorError: CUDA error: uncorrectable ECC error")


def _stopped(pod: dict[str, Any], how: str) -> dict[str, Any]:
    pod = copy.deepcopy(pod)
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}
    if how == "preempted":
        pod["status"]["conditions"] = [_PREEMPTED]
    return pod


def _new(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "uid": "new"}}


def _lists(how: str, end: list[dict[str, Any]], *, old: dict[str, Any] = _OLD) -> list[list[dict[str, Any]]]:
    """Return lists of the pods: the second one is stopped, and another one runs in its place before these ends."""
    stopped = [] if how == "vanished" else [[running(0), _stopped(old, how)]]
    both_run = [running(0), _new(running(1))]
    return [[running(0), old], *stopped, [running(0)], both_run, both_run, [end[0], _new(end[1])]]


def _until_last(folder: Path, lists: list[list[dict[str, Any]]]) -> str:
    return f"while ! [ $(cat {folder}/turn 2>/dev/null || echo 0) -ge {len(lists) - 1} ]; do sleep 0.1; done"


def _trained(folder: Path, lists: list[list[dict[str, Any]]], first: str, other: str) -> list[Any]:
    """Return how a training ended whose pods are listed so, and what their logs say in the end."""
    go = _until_last(folder, lists)
    answers = (log_of("trial-1-1-x"), f"{_MET}; {go}; {other}"), (LOGS, f"{go}; {first}")
    cluster = Cluster(folder, lists[-1], listed_in_turn(lists, folder), *answers, reason_s=0.2, ended_s=0.2)
    job = replace(training(), nodes=2, detail=cluster.job.detail)
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    return [event["how"] + " " + event["text"] for event in cluster.events if event["kind"] == "outcome"]


@pytest.fixture(autouse=True)
def _others_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)


_STOPS = pytest.mark.parametrize("how", ["preempted", "deleted", "vanished"])


@_STOPS
def test_a_training_whose_new_pod_fails_has_failed(how: str, tmp_path: Path) -> None:
    lists = _lists(how, [ended(0, 1), ended(1, 1)])
    (said,) = _trained(tmp_path, lists, _stamped(_lost(0)), _BROKEN)
    assert said == "failed pod trial-1-1-x on node gpu-1 ended with exit code 1"


def test_one_that_misses_its_target_has_ended(tmp_path: Path) -> None:
    lists = _lists("preempted", [ended(0, 1), ended(1, 1)])
    (said,) = _trained(tmp_path, lists, _stamped("trained 9 of 9 steps: loss 0.1"), ":")
    assert said == "ended all pods have ended"


@pytest.mark.parametrize("how", ["preempted", "deleted"])
def test_one_whose_pod_had_run_is_interrupted(how: str, tmp_path: Path) -> None:
    """The others miss it, and may hang for a while before they end of that."""
    lists = _lists(how, [ended(0, 1), ended(1, 1)], old=running(1))
    (said,) = _trained(tmp_path, lists, _stamped(_lost(0)), _BROKEN)
    assert said.startswith("interrupted")


def test_one_whose_pod_may_have_run_unseen_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list came for a while."""
    monkeypatch.setattr(pod_order, "_SEEN_S", -1.0)
    lists = _lists("vanished", [ended(0, 1), ended(1, 1)])
    (said,) = _trained(tmp_path, lists, _stamped(_lost(0)), _BROKEN)
    assert said.startswith("interrupted")


@_STOPS
def test_a_trial_that_loses_the_new_pod_names_its_node(how: str, tmp_path: Path) -> None:
    lists = _lists(how, [ended(0, 1), ended(1, 137)])
    go = _until_last(tmp_path, lists[:-1])
    answers = [
        (call, f"{go}; {said}" if "-1-0-x" in call else said) for call, said in answers_of(node_lost(), tmp_path, None)
    ]
    cluster = Cluster(tmp_path, lists[-1], listed_in_turn(lists, tmp_path), *answers, ended_s=0.2, reason_s=0.2)
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    found = conclude(cluster.events, load=fake_load)
    assert (found.trial.interrupted, found.verdict.status, found.verdict.exit_code) == (None, "FAIL", 1)
    (finding,) = [finding for finding in found.findings if finding.severity == "fail"]
    assert finding.culprit.nodes[0].startswith("gpu-1")


def test_only_a_pod_that_runs_later_takes_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    order = PodOrder()
    going = replace(ended_pod(1, 0), state="running", exit_code=None, end="")
    before, new = (replace(going, uid=uid) for uid in ("before", "new"))
    old = replace(going, uid="old", state="waiting")
    gone = replace(old, stop="was deleted", deleted=True)
    for number, pods in enumerate([[before], [old], [gone], [new]]):
        assert order.replaced_at(gone) is None
        now = 100.0 + number
        order.take(pods, asked_at=now)
    assert order.replaced_at(gone) == now
    assert order.replaced_at(replace(gone, number=2)) is None
    order.take([replace(old, state="running")], asked_at=now)
    assert order.replaced_at(gone) is None
