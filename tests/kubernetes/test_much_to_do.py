"""Pods that give the controller much to do: each turn is short, and its work makes no limit longer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kubernetes.attempted import INDEX, ITS_LOG_ENDS, OWNED, Cluster, running
from kubernetes.kubectl_script_double import LOGS, scripted
from kubernetes.test_log_reader import Listener, finish
from kubernetes.test_pods import pod

from seatrial.targets.kubernetes import log_reader, run_progress
from seatrial.targets.kubernetes.kinds import KINDS
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.log_reader import PodLogs
from seatrial.targets.kubernetes.pods import pods_of
from seatrial.targets.kubernetes.wait_limits import AwakeTime

_EMPTY_LINES = (LOGS, "exec yes ''")
_LINE_BYTES = 33


def test_work_counts_and_a_pause_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, worked_s = 0.0, 5.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "process_time", lambda: worked_s)
    awake = AwakeTime(1.0)
    now, worked_s = 8.0, 12.5  # It decoded a list.
    assert awake.now_s() == 8.0
    awake.observe(now)
    now += 3_600.0  # The machine slept.
    assert awake.now_s() == 9.0
    worked_s += 2.0
    awake.observe(now)
    assert awake.total_s == 11.0
    now, worked_s = now + 0.5, worked_s + 2.0  # Several threads worked.
    awake.observe(now)
    assert awake.total_s == 11.5


def test_a_call_reads_few_empty_lines(tmp_path: Path) -> None:
    """A kubelet that sent newlines kept the controller busy for ten seconds, which it took for a pause."""
    listener = Listener(tmp_path, _EMPTY_LINES)
    most, until = log_reader._MAX_READ_BYTES // _LINE_BYTES, time.monotonic() + 20
    try:
        while len(listener.texts) <= most:
            before = len(listener.texts)
            assert time.monotonic() < until
            list(listener.log.read(container_ended=False))
            assert len(listener.texts) - before <= most + log_reader._LEAST_READ_BYTES
    finally:
        listener.close()


def test_all_other_logs_share_the_lines_of_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_READ_BYTES", 1 << 18)
    copies = LogCopies(tmp_path)
    logs = PodLogs(Kubectl(program=scripted(tmp_path, _EMPTY_LINES), namespace=None), copies)
    logs.take_pods(list(pods_of({"items": [running(number) for number in range(4)]}, KINDS["job"])))
    for _ in range(10):
        logs.poll()
        time.sleep(0.02)
    for log in logs._logs.values():
        log.close()
    finish(copies)
    read = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert 0 < read <= 10 * ((1 << 18) // _LINE_BYTES + 4 * log_reader._LEAST_READ_BYTES)


def test_pods_that_have_not_ended_in_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "JOIN_TIMEOUT_S", 0)
    monkeypatch.setattr(run_progress, "_SPARE_S", -100_000)
    about = {"metadata__labels": {INDEX: "1"}, "metadata__ownerReferences": OWNED}
    ended = pod("trial-1-1-x", status__phase="Succeeded", **about)
    error = str(Cluster(tmp_path, [running(0), ended], ITS_LOG_ENDS).error())
    assert error.startswith("pod trial-1-0-x on node gpu-1 has not ended within ")
