"""A copy of a log that lacks lines says as little as a log that was not read: nobody is named for what is missing."""

from __future__ import annotations

import contextlib
import io
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_day import by_day
from event_streams import Stream
from fake_checks import fake_load
from kubernetes.attempted import Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import LOGS, log_of
from kubernetes.test_interrupted_pods import answers_of, ended, mpi_pods
from kubernetes.test_log_copies import POD
from kubernetes.test_pod_failures import _MET, _lost, _stamped
from kubernetes.test_run_log import Heard, ended_pod, training, trial
from slow_disk import SlowDisk

from seatrial.errors import SeatrialError
from seatrial.judge.conclude import conclude
from seatrial.targets.kubernetes import attempt as attempt_module
from seatrial.targets.kubernetes import log_copies, log_reader
from seatrial.targets.kubernetes.log_copies import CopiedPart, LogCopies
from seatrial.targets.kubernetes.pod_words import PodWords, RanksThatMet
from seatrial.targets.kubernetes.pods import PodStatus
from seatrial.util import disk_writer


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
    assert copies.end(POD, 100) == CopiedPart(b"before\n", is_whole=True)
    disk.is_full = True
    copies.write(file, b"said why\n")
    assert copies.end(POD, 100) == CopiedPart(b"before\n", is_whole=False)
    disk.is_full = False
    copies.write(file, b"ended with exit code 1\n")
    assert copies.end(POD, 100) == CopiedPart(b"before\n", is_whole=False)
    copies.write(copies.open(other), b"of another pod\n")
    assert copies.end(other, 100) == CopiedPart(b"of another pod\n", is_whole=True)
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


def _refuse(monkeypatch: pytest.MonkeyPatch, name: str, *, is_end: bool) -> None:
    """Have the end, or the beginning, of the copy of a pod's log be unreadable."""
    real = log_copies._read

    def refused(path: Path, start: int, *words: Any) -> Any:
        if (start < 0) == is_end and path.name.startswith(name):
            raise OSError(11, os.strerror(11))
        return real(path, start, *words)

    monkeypatch.setattr(log_copies, "_read", refused)


@pytest.mark.parametrize(("is_end", "with_met"), [(True, True), (True, False), (False, True)])
def test_a_part_of_a_log_that_cannot_be_read(
    is_end: bool, with_met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor who takes all processes at that moment, or a slow disk, leaves a log that says nothing."""
    _refuse(monkeypatch, "t-1", is_end=is_end)
    heard = Heard(tmp_path, None)
    for number in (0, 1):
        lines = (*(_MET if with_met else ()), *([] if number and not is_end else [_lost(number)]))
        heard.says(ended_pod(number, 1), "".join(f"{line}\n" for line in lines))
    heard.run_log.end_by_exit_codes([ended_pod(0, 1), ended_pod(1, 1)], under_mpi=False)
    assert "pod t-1 on node gpu-1 was not read to its end; nothing shows which" in heard.outcome(training())["text"]


def test_under_mpi_the_log_of_the_launcher_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning has up to 16 MiB, and there may be hundreds of workers that were killed."""
    asked: list[str] = []

    def met(words: PodWords, pod: PodStatus) -> RanksThatMet:
        asked.append(pod.name)
        return RanksThatMet(ranks=frozenset({0}), is_whole=True)

    monkeypatch.setattr(PodWords, "ranks_that_met", met)
    heard = Heard(tmp_path, None)
    workers = [ended_pod(number, 137) for number in range(9)]
    launcher = replace(ended_pod(9, 1), is_launcher=True)
    heard.says(launcher, "mpirun ended\n")
    heard.run_log.end_by_exit_codes([launcher, *workers], under_mpi=True, nodes=9)
    assert asked == [launcher.name]


class _LateDisk:
    """A disk that has taken a part of a log when the log is read first, and all of it right after that."""

    def __init__(self, copies: LogCopies, monkeypatch: pytest.MonkeyPatch) -> None:
        self._copies, self._disk, self._real = copies, SlowDisk(monkeypatch), log_copies._read
        monkeypatch.setattr(log_copies, "LAST_ANSWER_S", 1.0)
        monkeypatch.setattr(log_copies, "_read", self._read)

    def takes(self, pod: PodStatus, before: str, later: str) -> None:
        """Have the copy of a log hold the first text before it is read, and the second text later."""
        file = self._copies.open(pod)
        self._copies.write(file, before.encode())
        assert self._copies._disk.finish(time.monotonic() + 20)
        self._disk.freeze()
        self._copies.write(file, later.encode())

    def _read(self, *words: Any) -> Any:
        answer = self._real(*words)
        self._disk.thaw()
        assert self._copies._disk.finish(time.monotonic() + 20)
        return answer


def test_a_disk_that_catches_up_after_the_end_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(tmp_path, None)
    lost = ["".join(f"{_lost(3 * number + rank)}\n" for rank in (0, 1)) for number in (0, 1)]
    heard.says(ended_pod(0, 4), lost[0])
    _LateDisk(heard.run_log.copies, monkeypatch).takes(ended_pod(1, 4), "NCCL INFO\n", lost[1])
    heard.run_log.end_by_exit_codes([ended_pod(1, 4), ended_pod(0, 4)], under_mpi=False)
    assert [*heard.run_log.copies.finish(lambda: False)] == []
    assert "pod t-1 on node gpu-1 was not read to its end; nothing shows which" in heard.outcome(training())["text"]


def test_a_launcher_of_which_the_disk_has_the_last_words_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_log, launcher = Heard(tmp_path, None).run_log, replace(ended_pod(0, 137), is_launcher=True)
    _LateDisk(run_log.copies, monkeypatch).takes(launcher, "", "mpirun noticed that process rank 1 exited\n")
    assert not run_log.launcher_was_killed(launcher, is_read=True)
    assert [*run_log.copies.finish(lambda: False)] == []


def test_a_lost_daemon_of_which_the_disk_hears_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, launcher = Heard(tmp_path, None), replace(ended_pod(0, 0), is_launcher=True)
    disk = _LateDisk(heard.run_log.copies, monkeypatch)
    disk.takes(launcher, "", "ORTE has lost communication with a remote daemon.\n")
    heard.run_log.end_by_exit_codes([launcher], under_mpi=True, prints_result=False)
    assert [*heard.run_log.copies.finish(lambda: False)] == []
    outcome = heard.outcome(training())
    assert (outcome["how"], "was not read to its end" in outcome["text"]) == ("failed", True)


def test_memory_of_a_worker_where_the_launcher_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says whether ranks had met."""
    _refuse(monkeypatch, "t-9", is_end=False)
    heard, launcher = Heard(tmp_path, None), replace(ended_pod(9, 1), is_launcher=True)
    worker = replace(ended_pod(1, 137), out_of_memory=True)
    heard.says(launcher, f"{_MET[0]}\n")
    heard.says(worker, "")
    heard.run_log.end_by_exit_codes([launcher, worker], under_mpi=True, nodes=2)
    assert "was not read to its end; nothing shows which node" in heard.outcome(training())["text"]


@pytest.mark.parametrize("content", ["lost its peers\n", "NCCL INFO\nlost its peers\nand more\n", None])
def test_a_copy_that_is_not_as_it_was_written(content: str | None, tmp_path: Path) -> None:
    """Its folder was moved, and another one made there, or somebody has changed the file."""
    heard = Heard(tmp_path, None)
    for number in (0, 1):
        heard.says(ended_pod(number, 4), f"NCCL INFO\n{_lost(number)}\n")
    changed = tmp_path / f"{ended_pod(1, 4).name}.log"
    if content is None:
        changed.unlink()
    else:
        changed.write_text(content)
    heard.run_log.end_by_exit_codes([ended_pod(number, 4) for number in (0, 1)], under_mpi=False)
    assert "pod t-1 on node gpu-1 was not read to its end; nothing shows which" in heard.outcome(training())["text"]


def test_a_disk_of_the_network_that_says_at_the_end_that_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of NFS takes what a client holds when the file is closed."""

    class Refused(io.FileIO):
        def close(self) -> None:
            is_first = not self.closed
            super().close()
            if is_first:
                raise OSError(122, os.strerror(122))

    monkeypatch.setattr(disk_writer, "create", lambda path, **words: Refused(path, "x"))
    heard = Heard(tmp_path, None)
    heard.run_log.copies.write(file := heard.run_log.copies.open(ended_pod(1, 4)), b"NCCL INFO\n")
    heard.run_log.copies.close(file)
    assert heard.run_log.copies._disk.finish(time.monotonic() + 20)
    monkeypatch.undo()
    heard.run_log.copies.write(heard.run_log.copies.open(ended_pod(0, 4)), f"{_lost(0)}\n".encode())
    heard.run_log.end_by_exit_codes([ended_pod(1, 4), ended_pod(0, 4)], under_mpi=False)
    assert "was not read to its end" in heard.outcome(training())["text"]
    (missing,) = heard.run_log.copies.finish(lambda: False)
    assert missing == f"lines of a log may be missing in {ended_pod(1, 4).name}.log (Disk quota exceeded)"


@pytest.mark.parametrize("met", [True, False])
def test_memory_of_a_worker_whose_own_log_was_never_fetched(met: bool, tmp_path: Path) -> None:
    """Its sshd says nothing; the launcher says whether ranks had met."""
    heard, launcher = Heard(tmp_path, None), replace(ended_pod(9, 1), is_launcher=True)
    heard.says(launcher, f"{_MET[0] if met else 'Open MPI'}\n")
    worker = replace(ended_pod(1, 137), out_of_memory=True)
    heard.run_log.end_by_exit_codes([launcher, worker], under_mpi=True, nodes=2)
    said = heard.outcome(training())["text"]
    how = "ended with exit code 137" if met else "crashed or ran out of memory while connecting to the ranks of other"
    assert said.startswith(f"pod t-1 on node gpu-1 {how}")


@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("why", ["no stream is free", "its kubelet does not answer", ""])
def test_a_log_whose_beginning_is_gone_names_nobody(
    why: str, met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet keeps only the newest part of it. The last pod ends as it does where all digests differ."""
    monkeypatch.setattr(attempt_module, "_OTHERS_END_S", 0.5)
    monkeypatch.setattr(log_reader, "_MAX_STREAMS", 1 if why.startswith("no") else 32)
    lists = [*[[running(number) for number in range(3)]] * 4, [ended(number, 1) for number in range(3)]]
    go = f"while ! [ $(cat {tmp_path}/turn 2>/dev/null || echo 0) -ge {len(lists) - 1} ]; do sleep 0.1; done"
    first, last = (_stamped(line) for line in (_MET[0], "gpu-2:1:9 [0] NCCL TRACE x"))
    begins = first if met else ":"
    follows = "echo connection refused >&2; exit 1" if why.startswith("its") else f"{begins}; {go}; {last}"
    cluster = Cluster(
        tmp_path,
        lists[-1],
        listed_in_turn(lists, tmp_path),
        (log_of("trial-1-0-x"), f"{first}; {go}; {_stamped(_lost(0))}"),
        (log_of("trial-1-2-x"), f'case "$*" in *follow=true*) {follows};; *) {last};; esac'),
        (LOGS, f"{first}; {go}"),
        reason_s=0.2,
    )
    attempt = cluster.attempt_at(replace(training(), nodes=3, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    names_it = not (met or why)
    assert (outcome["text"] == "pod trial-1-2-x on node gpu-2 ended with exit code 1") == names_it
    assert outcome["text"].endswith("nothing shows which node is at fault") == (not names_it)
