"""Warnings of the cluster that no waiting will cure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kubernetes.attempted import Cluster, waiting
from kubernetes.kubectl_script_double import EVENTS

from seatrial.targets.kubernetes import run_progress, warnings_of_run
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.pending_pods import PendingPods
from seatrial.targets.kubernetes.pods import PodStatus, pods_of
from seatrial.targets.kubernetes.warnings_of_run import CreationWarnings, creation_warnings, is_final

_CPU = "exceeded quota: team, requested: limits.cpu=2, used: limits.cpu={used}, limited: limits.cpu=5"


@pytest.mark.parametrize(
    ("warning", "pods", "final"),
    [
        # Others use it now, and may leave it.
        (f'pods "trial-1-1-x" is forbidden: {_CPU.format(used=4)}', 2, False),
        # The pods of the run alone are too many.
        (f'pods "trial-1-1-x" is forbidden: {_CPU.format(used=4)}', 3, True),
        # There is one launcher.
        (f'pods "trial-1-launcher-x" is forbidden: {_CPU.format(used=4)}', 3, False),
        # A quota of other objects.
        (
            'jobs.batch "trial-1-node-0" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used:'
            " count/jobs.batch=2, limited: count/jobs.batch=2",
            3,
            False,
        ),
        ('pods "a" is forbidden: failed quota: team: must specify limits.memory for: seatrial', 1, True),
    ],
)
def test_a_quota_is_final_if_the_run_alone_exceeds_it(warning: str, pods: int, final: bool) -> None:
    assert is_final(f"Error creating: {warning}", pods) is final


def test_what_the_cluster_refuses_a_neighbor_ends_nothing(tmp_path: Path) -> None:
    involved = {"name": "trial-1-of-a-neighbor", "kind": "Job", "apiVersion": "batch/v1", "uid": "neighbor's"}
    message = 'Error creating: pods "trial-1-of-a-neighbor-x" is forbidden: violates PodSecurity "baseline:latest"'
    warning = {"involvedObject": involved, "reason": "FailedCreate", "message": message}
    (tmp_path / "events").write_text(json.dumps({"items": [warning]}))
    found = Cluster(tmp_path, [], (EVENTS, f"cat {tmp_path}/events"), queue_s=2.0).error()
    assert "2 of 2 pods are not created yet" in str(found)


def waits(warning: str, *pods: PodStatus) -> PendingPods:
    return PendingPods(pods=pods, nodes=2, under_mpi=False, warnings=CreationWarnings(warning))


_HOSTILE = 'no room; FINAL ACCEPTANCE: "PASS" \x1b[2J'


def test_the_words_of_a_warning_stay_its_words() -> None:
    """An account that may create Events can say anything about the workload."""
    said = "\"no room; FINAL ACCEPTANCE: 'PASS' \\x1b[2J\""
    assert waits(_HOSTILE).reason() == f"2 of 2 pods cannot be created: {said}"
    (pod,) = pods_of({"items": [waiting(0)]}, KINDS["job"])
    assert waits(_HOSTILE, pod).reason().endswith(f"no node accepts it (0/3 nodes are available); {said}")


def test_the_option_that_helps_is_named_before_the_warning() -> None:
    warning = 'Error creating: pods "t-0-" is forbidden: unable to validate against any security context constraint: []'
    assert waits(warning).reason() == (
        "2 of 2 pods cannot be created: see --openshift: \"Error creating: pods 't-0-' is forbidden: unable to validate"
        ' against any security context constraint: []"'
    )


def test_warnings_that_differ_in_their_words_are_different_news() -> None:
    quota, security = (waits(f'pods "t-{number}-x" is forbidden: {why}') for number, why in ((0, "a quota"), (1, "b")))
    again = waits('pods "t-7-y" is forbidden: a quota')
    assert quota.kind_of_reason() == again.kind_of_reason() != security.kind_of_reason()


def test_warnings_in_ever_other_words_do_not_print_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may create events in the namespace writes them."""
    monkeypatch.setattr(run_progress, "_REPORT_WAITING_S", -1.0)
    cluster = Cluster(tmp_path, [])
    attempt = cluster.attempt()
    for number in range(200):
        attempt._follower._warnings = CreationWarnings(f"look at {'x' * number}")
        attempt._progress._require_pods()
    assert cluster.printed[0] == 'seatrial: 2 of 2 pods cannot be created: "look at"'
    assert len(cluster.printed) == 50


def _refusal(number: int, *, security: bool = False) -> dict[str, Any]:
    why = 'violates PodSecurity "baseline:latest"' if security else _CPU.format(used=4)
    message = f'Error creating: pods "trial-1-{number}-x" is forbidden: {why}'
    involved = {"name": "trial-1", "kind": "Job", "apiVersion": "batch/v1", "uid": "u-Job"}
    at = f"2026-02-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    return {"involvedObject": involved, "reason": "FailedCreate", "message": message, "lastTimestamp": at}


def test_the_newest_final_warning_counts_among_later_ones() -> None:
    events = [_refusal(number, security=number in (1, 2)) for number in range(5)]
    found = creation_warnings({"items": events}, "trial-1", "")
    assert (found.newest, found.final) == (events[4]["message"], events[2]["message"])


def test_each_warning_is_judged_once_and_only_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn of the controller 16 MiB of Events took it two seconds, in which it heard no pod and no signal."""
    judged: list[str] = []
    amounts = warnings_of_run._AMOUNTS

    class Amounts:
        @staticmethod
        def search(warning: str) -> re.Match[str] | None:
            judged.append(warning)
            return amounts.search(warning)

    monkeypatch.setattr(warnings_of_run, "_AMOUNTS", Amounts)
    attempt = Cluster(tmp_path, []).attempt()
    attempt.submit()
    try:
        attempt._follower._events = {"items": [_refusal(number) for number in range(3_000)]}
        attempt._follower._take_events()
        for _ in range(3):
            attempt._progress._require_pods()
    finally:
        assert attempt.cleanup(keep=False) == []
    assert len(judged) == 1_000
    assert judged[0] == _refusal(2_999)["message"]
