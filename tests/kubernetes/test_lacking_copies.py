"""A copy of a log that lacks lines says as little as a log that was not read: nobody is named for what is missing."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
from by_day import by_day
from event_streams import Stream
from fake_checks import fake_load
from kubernetes.attempted import Cluster, running
from kubernetes.kubectl_script_double import log_of
from kubernetes.test_interrupted_pods import answers_of, ended, mpi_pods
from kubernetes.test_log_copies import POD
from kubernetes.test_pod_failures import _MET, _lost, _stamped
from kubernetes.test_run_log import Heard, ended_pod, training, trial
from slow_disk import SlowDisk

from seatrial.errors import SeatrialError
from seatrial.judge.conclude import conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import log_copies, log_reader
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.pod_words import PodWords
from seatrial.targets.kubernetes.pods import PodStatus


@pytest.fixture(autouse=True)
def _reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "_REPORTED_S", 0.5)


_LOST_ITS_PEER = "; ".join(_stamped(line) for line in (_MET[0], _lost(0)))
_FAILED = "seatrial: rank 0 of 2 failed in step 7: AcceleratorError: CUDA error: uncorrectable ECC error"


class _FullDisk:
    """Takes nothing while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        monkeypatch.setattr(SlowDisk(monkeypatch), "wait", self._wait)

    def _wait(self) -> None:
        if self.is_full:
            raise OSError(28, os.strerror(28))


def _outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, log: str, exit_code: int = 1) -> str:
    """Return the outcome of a training whose first pod has ended with this log; the other one hangs."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    answers = (log_of("trial-1-0-x"), log), (log_of("trial-1-1-x"), "sleep 20")
    cluster = Cluster(folder, [ended(0, exit_code), running(1)], *answers, reason_s=0.2)
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    return str(outcome["text"])


_NOBODY = (
    "the log of pod trial-1-0-x on node gpu-0 was not read to its end; pod trial-1-1-x on node gpu-1 has not ended;"
)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FullDisk(monkeypatch)
    assert _outcome(tmp_path, monkeypatch, _LOST_ITS_PEER).startswith(_NOBODY)


def test_a_full_disk_hides_no_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FullDisk(monkeypatch)
    assert "pod trial-1-0-x on node gpu-0 ended with exit code 137" in _outcome(tmp_path, monkeypatch, "true", 137)


def test_a_silent_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copies, "LAST_ANSWER_S", 0.5)
    monkeypatch.setattr(log_copies, "_LAST_WRITE_S", 0.5)
    disk = SlowDisk(monkeypatch)
    disk.freeze()
    try:
        assert _outcome(tmp_path, monkeypatch, _LOST_ITS_PEER).startswith(_NOBODY)
    finally:
        disk.thaw()


def test_a_disk_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object) -> bytes:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(log_copies, "_read", refuse)
    assert _outcome(tmp_path, monkeypatch, _LOST_ITS_PEER).startswith(_NOBODY)


@pytest.mark.parametrize(("first", "says"), [("NCCL INFO", _NOBODY), (_FAILED, "pod trial-1-0-x on node gpu-0 ended")])
def test_a_log_longer_than_its_copy(first: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copy has still counts."""
    monkeypatch.setattr(log_reader, "_MAX_COPY_BYTES", 1000)
    chatter = "; ".join(_stamped(f"NCCL INFO {number} {'x' * 80}") for number in range(20))
    assert _outcome(tmp_path, monkeypatch, f"{_stamped(first)}; {chatter}; {_LOST_ITS_PEER}").startswith(says)


def test_only_lines_before_a_gap_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, disk = LogCopies(tmp_path), _FullDisk(monkeypatch)
    disk.is_full = False
    file, other = copies.open(POD), replace(POD, uid="other")
    copies.write(file, b"before\n")
    assert copies.end(POD, 100) == b"before\n"
    assert not copies.lacks(POD)
    disk.is_full = True
    copies.write(file, b"said why\n")
    assert copies.end(POD, 100) == b"before\n"
    disk.is_full = False
    copies.write(file, b"ended with exit code 1\n")
    assert copies.end(POD, 100) == b"before\n"
    assert copies.lacks(POD)
    copies.write(copies.open(other), b"of another pod\n")
    assert copies.end(other, 100) == b"of another pod\n"
    assert not copies.lacks(other)
    assert len([*copies.finish(lambda: False)]) == 1


def _blamed(folder: Path, first: tuple[str, str] | None, *, says: bytes, reason: str = "Error") -> list[str]:
    """Return the findings of a trial whose launcher has ended with 137."""
    pods = mpi_pods(137, {**running(1), "spec": {**running(1)["spec"], "nodeName": "gpu-1"}})
    pods[0]["spec"]["nodeName"] = "cpu-9"
    pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = reason
    answers = answers_of(Stream(2, nodes=2).until("collectives"), folder, None)
    with (folder / "first").open("ab") as file:
        file.write(says)
    cluster = Cluster(folder, pods, *([first] if first else []), *answers, ended_s=0.2, reason_s=0.2)
    attempt = cluster.attempt_at(
        replace(cluster.job, target="mpijob", detail=replace(cluster.job.detail, under_mpi=True))
    )
    cluster.run_log._run["job"] = {"world_size": 2}
    with contextlib.suppress(SeatrialError):  # it ended with 137, and the conductor of the run was in it
        attempt.run()
    attempt.cleanup(keep=False)
    cluster.run_log.close(replace(trial(), detail=replace(trial().detail, under_mpi=True)))
    findings = conclude(cluster.events, load=fake_load).findings
    return [finding.what for finding in findings if finding.severity == "fail"]


_NOTICED = b"2026-01-01T00:00:05.5Z mpirun noticed that process rank 1 with PID 7 on node gpu-1 exited on signal 9.\n"


def test_a_launcher_whose_copy_lacks_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FullDisk(monkeypatch)
    assert _blamed(tmp_path, None, says=_NOTICED) == []


@pytest.mark.parametrize(("reason", "num_blamed"), by_day([("Error", 0), ("OOMKilled", 1)]))
def test_a_launcher_whose_log_was_not_read(
    reason: str, num_blamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "_UNREACHED_S", 1.0)
    once = (
        f"if [ -e {tmp_path}/once ]; then echo 'connection refused' >&2; exit 1; fi;"
        f" touch {tmp_path}/once; cat {tmp_path}/first"
    )
    assert len(_blamed(tmp_path, (log_of("trial-1-launcher-x"), once), says=b"", reason=reason)) == num_blamed


def test_a_launcher_that_was_killed(tmp_path: Path) -> None:
    assert len(_blamed(tmp_path, None, says=b"")) == 1


@pytest.mark.parametrize("with_met", [True, False])
def test_a_log_whose_end_cannot_be_read_is_asked_for_that_afterwards(
    with_met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor who takes all processes at that moment, or a slow disk, leaves a log that says nothing."""
    real = log_copies._read

    def refused(path: Path, start: int, most_bytes: int) -> bytes:
        if start < 0 and path.name.startswith("t-1"):
            raise OSError(11, os.strerror(11))
        return real(path, start, most_bytes)

    monkeypatch.setattr(log_copies, "_read", refused)
    heard = Heard(tmp_path, None)
    for number in (0, 1):
        lines = (*(_MET if with_met else ()), _lost(3 * number), _lost(3 * number + 1))
        heard.says(ended_pod(number, 4), "".join(f"{line}\n" for line in lines))
    heard.run_log.end_by_exit_codes([ended_pod(0, 4), ended_pod(1, 4)], under_mpi=False)
    said = heard.outcome(training())["text"]
    assert "was not read to its end; nothing shows which node is at fault" in said


def test_under_mpi_the_log_of_the_launcher_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning has up to 16 MiB, and there may be hundreds of workers that were killed."""
    asked: list[str] = []

    def met(words: PodWords, pod: PodStatus) -> set[int]:
        asked.append(pod.name)
        return {0}

    monkeypatch.setattr(PodWords, "ranks_that_met", met)
    heard = Heard(tmp_path, None)
    workers = [ended_pod(number, 137) for number in range(9)]
    launcher = replace(ended_pod(9, 1), is_launcher=True)
    heard.says(launcher, "mpirun ended\n")
    heard.run_log.end_by_exit_codes([launcher, *workers], under_mpi=True, nodes=9)
    assert asked == [launcher.name]
