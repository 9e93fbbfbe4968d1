"""Lists of the pods that are old when a wait for them ends: the API server is silent, or something has paused us."""

from __future__ import annotations

import json
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from fake_checks import fake_load
from kubernetes.attempted import Cluster, running
from kubernetes.kubectl_script_double import EVENTS, LOGS, PODS, log_of
from kubernetes.test_interrupted_pods import answers_of, ended, missed
from kubernetes.test_run_log import training, trial

from seatrial.judge.conclude import Conclusion, conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import run_progress
from seatrial.targets.kubernetes.attempt import Attempt
from seatrial.targets.kubernetes.wait_limits import Lasting, ObservedTime

_BOTH_RUN = [running(0), running(1)]
_NO_REASON_YET = ended(1, 137)
_NO_REASON_YET["status"]["phase"] = "Running"
_EVICTED = ended(1, 137, reason="Evicted")
_SAID = "error: You must be logged in to the server (Unauthorized)"
_FOR_EVER = 10_000


def _lists(folder: Path, shown: list[list[dict[str, Any]]], *, silent_s: int) -> tuple[str, str]:
    """Return the answer of a cluster that lists its pods so in turn; before the last list it is silent for a while."""
    for number, pods in enumerate(shown):
        (folder / f"list{number}").write_text(json.dumps({"items": pods}))
    at, last = shlex.quote(str(folder)), len(shown) - 1
    first = "".join(
        f"elif [ ! -e {at}/turn{number} ]; then date +%s > {at}/turn{number}; cat {at}/list{number}; "
        for number in range(last)
    )
    silent = f"[ $(($(date +%s) - $(cat {at}/turn{last - 1}))) -lt {silent_s} ]"
    return PODS, (
        f"if [ -e {at}/deleted ]; then cat {at}/none; {first}"
        f"elif {silent}; then echo {shlex.quote(_SAID)} >&2; exit 1; else cat {at}/list{last}; fi"
    )


def _concluded(cluster: Cluster, attempt: Attempt) -> Conclusion:
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(trial())
    return conclude(cluster.events, load=fake_load)


def _names_nobody(found: Conclusion, cluster: Cluster) -> bool:
    cordons = [event for event in cluster.events if "cordon" in str(event)]
    return not cordons and not any(finding.severity == "fail" for finding in found.findings)


def test_time_counts_by_what_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    observed = ObservedTime(3.0)
    lasting = Lasting(observed)
    observed.observe(1.0)
    now = 1.5
    assert not lasting.lasts("a", 0.0)
    observed.observe(1.4)  # It was asked for before, and answered after that.
    assert not lasting.lasts("a", 0.0)
    observed.observe(2.5)
    assert lasting.lasts("a", 0.9)
    assert not lasting.lasts("a", 1.1)
    # An hour without news counts as three seconds, of one that begins in it as nothing.
    now = 3_000.0
    assert not lasting.lasts("b", 0.0)
    observed.observe(3_600.0)
    assert lasting.lasts("a", 3.9)
    assert not lasting.lasts("a", 4.1)
    assert not lasting.lasts("b", 0.0)
    observed.observe(3_601.0)
    assert lasting.lasts("b", 0.9)


@pytest.mark.parametrize("silent_s", [4, _FOR_EVER])
@pytest.mark.parametrize("shown", by_day([[_BOTH_RUN], [_BOTH_RUN, [ended(0, 1), _NO_REASON_YET]]], 1))
def test_an_evicted_node_is_not_named_by_old_lists(
    shown: list[list[dict[str, Any]]], silent_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login expires in a long run, or the API server is silent just then."""
    monkeypatch.setattr(attempt_module, "_LAST_OUTPUT_S", 1.0)
    answers = answers_of(missed(), tmp_path, None)
    if len(shown) == 1:
        # The stream of the first log was opened before.
        answers = [(call, said + "; sleep 60" if "-1-0-x" in call else said) for call, said in answers]
    limits = {"ended_s": 0.2, "reason_s": 1.5, "no_answer_s": 2.0 if silent_s == _FOR_EVER else 30.0}
    lists = _lists(tmp_path, [*shown, [ended(0, 1), _EVICTED]], silent_s=silent_s)
    cluster = Cluster(tmp_path, [], lists, *answers, **limits)
    found = _concluded(cluster, cluster.attempt())
    assert (found.verdict.status, found.verdict.exit_code) == ("INCONCLUSIVE", 130)
    assert _names_nobody(found, cluster)
    by = found.trial.interrupted or ""
    if silent_s == _FOR_EVER:
        assert by.startswith("the cluster: nothing shows why pod trial-1-1-x on node gpu-1 ")
        assert _SAID in by
    else:
        assert by.endswith("pod trial-1-1-x on node gpu-1 was evicted")


def test_a_pause_of_this_process_is_no_wait(tmp_path: Path) -> None:
    """Its machine is suspended for longer than the kubelet takes to tell the reason."""
    lists = _lists(tmp_path, [_BOTH_RUN, *[[ended(0, 1), _NO_REASON_YET]] * 4, [ended(0, 1), _EVICTED]], silent_s=0)
    cluster = Cluster(tmp_path, [], lists, *answers_of(missed(), tmp_path, None), ended_s=0.2, reason_s=3.5)
    attempt = cluster.attempt()
    polls = attempt._follower.poll

    turns = 0

    def paused() -> None:
        nonlocal turns
        polls()
        log = attempt._follower.first_log
        turns += log is not None and log.complete
        if turns == 2:
            time.sleep(6.0)

    attempt._follower.poll = paused  # type: ignore[method-assign]
    found = _concluded(cluster, attempt)
    assert (found.trial.interrupted or "").endswith("pod trial-1-1-x on node gpu-1 was evicted")
    assert _names_nobody(found, cluster)


@pytest.mark.parametrize(
    ("events", "is_evicted"),
    [
        ("sleep 2; cat {at}/warnings", True),
        ('echo "Error from server (Forbidden): events is forbidden" >&2; exit 1', False),
    ],
)
def test_events_that_are_slow_are_waited_for(events: str, is_evicted: bool, tmp_path: Path) -> None:
    """Controllers delete the pod before its status tells the reason. ``is_evicted``: whether anything can tell it."""
    event = {
        "reason": "Evicted",
        "message": "m",
        "involvedObject": {"kind": "Pod", **{key: running(1)["metadata"][key] for key in ("name", "uid")}},
    }
    (tmp_path / "warnings").write_text(json.dumps({"items": [event]}))
    lists = _lists(tmp_path, [_BOTH_RUN, [running(0), _NO_REASON_YET], [ended(0, 1)]], silent_s=0)
    answers = [(EVENTS, events.format(at=tmp_path)), *answers_of(missed(), tmp_path, None)]
    cluster = Cluster(tmp_path, [], lists, *answers, ended_s=0.2, reason_s=0.2)
    found = _concluded(cluster, cluster.attempt())
    assert found.verdict.status == ("INCONCLUSIVE" if is_evicted else "FAIL")
    assert _names_nobody(found, cluster) == is_evicted


def test_ctrl_c_before_the_reason_is_known_names_nobody(tmp_path: Path) -> None:
    lists = _lists(tmp_path, [_BOTH_RUN, [running(0), _NO_REASON_YET]], silent_s=0)
    cluster = Cluster(tmp_path, [], lists, *answers_of(missed(), tmp_path, None))
    attempt = cluster.attempt()
    polls = attempt._follower.poll

    def signaled() -> None:
        polls()
        if cluster.run_log.lost_at(1, any_node=False) is not None and not cluster.signals:
            cluster.signals.append(signal.SIGINT)

    attempt._follower.poll = signaled  # type: ignore[method-assign]
    found = _concluded(cluster, attempt)
    assert (found.trial.interrupted, found.verdict.exit_code) == ("SIGINT", 130)
    assert _names_nobody(found, cluster)


@pytest.mark.parametrize("silent_s", [4, _FOR_EVER])
def test_a_good_training_whose_end_is_not_listed_has_not_failed(
    silent_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 1.0)
    shown = [_BOTH_RUN, [ended(0, 0), running(1)], [ended(0, 0), ended(1, 0)]]
    its_log = (LOGS, "echo 2026-01-01T00:00:01Z trained 10 of 10 steps")
    no_answer_s = 2.0 if silent_s == _FOR_EVER else 30.0
    cluster = Cluster(tmp_path, [], _lists(tmp_path, shown, silent_s=silent_s), its_log, no_answer_s=no_answer_s)
    job = replace(training(), nodes=2, detail=cluster.job.detail)
    attempt = cluster.attempt_at(job)
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    cluster.run_log.close(job)
    (how,) = [event["how"] for event in cluster.events if event["kind"] == "outcome"]
    assert how == ("interrupted" if silent_s == _FOR_EVER else "ended")
    by = [event["by"] for event in cluster.events if event["kind"] == "interrupted"]
    said = "the cluster: nothing shows how pod trial-1-1-x on node gpu-1 ended, since the API server does not answer"
    assert [text.startswith(said) for text in by] == [True] * (silent_s == _FOR_EVER)


def test_lists_that_fail_beside_a_log_that_goes_on_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on: its log is what tells how it ends. What that says twice is no news."""
    monkeypatch.setattr(run_progress, "_REPORT_NO_ANSWER_S", 1.0)
    its_log = "for n in 1 2 3 4; do echo 2026-01-01T00:00:0${n}Z step $n; sleep 1; done"
    log = (log_of("trial-1-0-x"), f"[ -e {tmp_path}/read ] || {{ touch {tmp_path}/read; {its_log}; }}")
    lists = _lists(tmp_path, [_BOTH_RUN, _BOTH_RUN], silent_s=_FOR_EVER)
    cluster = Cluster(tmp_path, [], lists, log, no_answer_s=2.0)
    began = time.monotonic()
    assert "API server has not answered for 2 s" in str(cluster.error())
    assert time.monotonic() - began > 5.0
    (said,) = [line for line in cluster.printed if "listed no pods" in line]
    assert said.startswith(f"seatrial: the cluster's API server has listed no pods for 1 s ({_SAID}); still trying")
