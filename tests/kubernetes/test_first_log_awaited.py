"""The log of a first pod that has ended and cannot be fetched for a while, as while its kubelet restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from by_day import by_day
from event_streams import healthy
from kubernetes.attempted import Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import answers_of, ended
from kubernetes.test_run_log import training

from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import log_reader


@pytest.fixture(autouse=True)
def _soon_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_RETRY_S", 0.4)


_RESULT = "echo 2026-01-01T00:00:01Z trained 9 of 9 steps: loss 0.1"
_ITS_LOG = "echo 2026-01-01T00:00:01Z seatrial: rank 1 of 2 on a: cpu"


@pytest.mark.parametrize("comes_back", by_day([True, False]))
def test_a_first_log_that_cannot_be_fetched_for_a_while(
    comes_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server reaches the kubelet of that node no longer, while lists of the pods still come."""
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 0.5)
    monkeypatch.setattr(attempt_module, "_UNREACHED_S", 8.0)
    before, after = [running(0), running(1)], [ended(0, 0), ended(1, 0)]
    for pod in after:
        pod["status"]["phase"] = "Succeeded"
    tries = tmp_path / "tries"
    down = f"echo >> {tries}; [ $(wc -l < {tries}) -gt 3 ] || {{ echo 'dial tcp: i/o timeout' >&2; exit 1; }}"
    cluster = Cluster(
        tmp_path,
        after,
        listed_in_turn([before, after], tmp_path),
        (log_of("trial-1-0-x"), f"{down}; {_RESULT}" if comes_back else "exit 1"),
        (LOGS, _ITS_LOG),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    if comes_back:
        assert (outcome["how"], outcome["code"]) == ("ended", 0)
    else:
        assert outcome["text"].startswith("the log of pod trial-1-0-x on node gpu-0 was not read to its end")


def test_the_first_log_of_a_training_that_missed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pods end with 1, so nothing else is left to wait for."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 1.0)
    tries = tmp_path / "tries"
    down = f"echo >> {tries}; [ $(wc -l < {tries}) -gt 4 ] || {{ echo 'dial tcp: i/o timeout' >&2; exit 1; }}"
    after = [ended(0, 1), ended(1, 1)]
    cluster = Cluster(
        tmp_path,
        after,
        listed_in_turn([[running(0), running(1)], after], tmp_path),
        (log_of("trial-1-0-x"), f"{down}; {_RESULT}"),
        (LOGS, _ITS_LOG),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert (outcome["how"], outcome["code"]) == ("ended", 1)


def test_a_verdict_that_cannot_be_fetched_for_a_while_counts_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet of the first pod is out of reach for longer than a log takes that can be read."""
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 2.0)
    stream = healthy(2, nodes=2)
    tries = tmp_path / "tries"
    down = f"echo >> {tries}; [ $(wc -l < {tries}) -gt 4 ] || {{ echo 'dial tcp: i/o timeout' >&2; exit 1; }}"
    answers = [
        (call, f"{down}; {said}" if "-1-0-x" in call else said) for call, said in answers_of(stream, tmp_path, None)
    ]
    after = [ended(0, 0, phase="Succeeded"), ended(1, 0, phase="Succeeded")]
    cluster = Cluster(
        tmp_path, after, listed_in_turn([[running(0), running(1)], after], tmp_path), *answers, ended_s=0.5
    )
    attempt = cluster.attempt()
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    assert (cluster.run_log.over, attempt.lost) == (True, 0)
