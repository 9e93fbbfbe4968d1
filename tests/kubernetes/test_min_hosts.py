"""A run that may start again with fewer nodes (``--min-hosts``), and ends before all pods run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from event_streams import Stream, healthy
from fake_checks import fake_load
from kubernetes.attempted import Cluster, listed_in_turn, running, waiting
from kubernetes.test_interrupted_pods import answers_of, ended
from kubernetes.test_run_log import trial

from seatrial.errors import SeatrialError
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes.attempt import Attempt

_PULLING = waiting(1, spec__nodeName="gpu-1", status__conditions=[])


def _impostor() -> Stream:
    """The messages of a host that joined as node 1, too, and reports a broken device there."""
    stream = Stream(2, nodes=2).until("collectives")
    stream.error(1, "device", "CUDA error: uncorrectable ECC error encountered", "collectives/all_reduce 8 B")
    stream.exit(1, 1, ours=False)
    stream.trouble({"rank": 1, "how": "dead", "detail": "exit code 1"})
    stream.kill(0)
    stream.close(ranks=False)
    return stream


def _concluded(cluster: Cluster, attempt: Attempt, run: Callable[[], None]) -> Conclusion:
    try:
        run()
    finally:
        assert attempt.cleanup(keep=False) == []
        cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load)


def _notes(cluster: Cluster) -> str:
    return "; ".join(event["text"] for event in cluster.events if event["kind"] == "note")


def _blames_nobody(cluster: Cluster, found: Conclusion) -> bool:
    return "cordon" not in _notes(cluster) and not [one for one in found.findings if one.severity == "fail"]


@pytest.mark.parametrize("first", [[ended(0, 1), _PULLING], [_PULLING]], ids=["ended", "deleted"])
def test_nobody_is_named_whose_pod_never_ran(
    first: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "_GONE_S", 1.0)
    lists = [[running(0), _PULLING]] * 2 + [first]
    answers = answers_of(_impostor(), tmp_path, None)
    cluster = Cluster(tmp_path, lists[-1], listed_in_turn(lists, tmp_path), *answers, ended_s=0.2, reason_s=0.2)
    attempt = cluster.attempt(min_hosts=1)
    found = _concluded(cluster, attempt, attempt.run)
    assert _blames_nobody(cluster, found)
    assert found.verdict.exit_code != 0
    if len(first) == 2:
        assert "has not shown that these pods ran: pod trial-1-1-x on node gpu-1 (node 1)" in _notes(cluster)


def test_nobody_is_named_where_a_wait_ends_the_run(tmp_path: Path) -> None:
    answers = answers_of(_impostor(), tmp_path, None)
    cluster = Cluster(tmp_path, [running(0), _PULLING], *answers, queue_s=3.0)
    attempt = cluster.attempt(min_hosts=2)

    def run() -> None:
        with pytest.raises(SeatrialError, match="not all pods have started within 3 s"):
            attempt.run()

    assert _blames_nobody(cluster, _concluded(cluster, attempt, run))
    assert "has not shown that these pods ran" in _notes(cluster)


def test_nobody_is_named_where_a_signal_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 3.0)
    answers = answers_of(_impostor(), tmp_path, None)
    cluster = Cluster(tmp_path, [running(0), _PULLING], *answers)
    attempt = cluster.attempt(min_hosts=1)

    def run() -> None:
        attempt.submit()
        while attempt._follower.first_log is None or not attempt._follower.first_log._next_number:
            assert not attempt.poll()
        cluster.signals.append(signal.SIGINT)
        attempt.cancel()

    assert _blames_nobody(cluster, _concluded(cluster, attempt, run))
    assert "has not shown that these pods ran" in _notes(cluster)


def test_a_trial_that_ended_before_any_list_showed_all_pods(tmp_path: Path) -> None:
    """The drain of its node has removed a pod that had ended, while the API server was away."""
    lists = [[running(0), waiting(1)]] * 2 + [[ended(0, 0)]]
    answers = answers_of(healthy(), tmp_path, None)
    cluster = Cluster(tmp_path, lists[-1], listed_in_turn(lists, tmp_path), *answers, ended_s=0.2, reason_s=0.2)
    attempt = cluster.attempt(min_hosts=1)
    found = _concluded(cluster, attempt, attempt.run)
    assert cluster.run_log.over
    assert _blames_nobody(cluster, found)
    assert "has not shown that these pods ran" in _notes(cluster)
