"""The work over one pod's log at the verdict: it grows as the log does, whatever a hostile pod prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from kubernetes.attempted import Cluster, running
from kubernetes.kubectl_script_double import LOGS, log_of, scripted
from kubernetes.test_interrupted_pods import ended
from kubernetes.test_pod_failures import _MET, _lost
from kubernetes.test_run_log import Heard, ended_pod, training

from seatrial.conductor.program_failures import Exit, fabric_error
from seatrial.protocol.connecting import may_come_from_others
from seatrial.protocol.own_errors import message_at
from seatrial.targets.kubernetes import pod_failures
from seatrial.targets.kubernetes.kubectl import Kubectl
from seatrial.targets.kubernetes.log_copies import LogCopies
from seatrial.targets.kubernetes.log_reader import PodLogs
from seatrial.targets.kubernetes.pods import DELETED, PodStatus

_WHY = "watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error"


def _judged_chars(log: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the characters of all messages that were judged at the end of a training of which one pod printed this."""
    judged = 0

    def counted(ended: Exit) -> str:
        nonlocal judged
        judged += sum(map(len, ended.last_lines))
        return fabric_error(ended)

    monkeypatch.setattr(pod_failures, "fabric_error", counted)
    folder.mkdir()
    heard = Heard(folder, None)
    for number, lines in enumerate([[*_MET, _lost(0)], [*_MET, *log]]):
        heard.says(ended_pod(number, 1), "".join(f"{line}\n" for line in lines))
    heard.run_log.end_by_exit_codes([ended_pod(number, 1) for number in range(2)], under_mpi=False)
    assert heard.outcome(training())["how"] == "failed"
    return judged


def _marked(ranks: int, why_lines: int) -> list[str]:
    """Return a log in which each of these lines is marked with every second rank, and all ranks were aborted."""
    why = [
        f"[{''.join(f'rank{rank}]' for rank in range(number % 2, ranks, 2))}:[E ProcessGroupNCCL.cpp:2068] {_WHY}"
        for number in range(why_lines)
    ]
    return [*why, *(f"seatrial: rank {rank} was killed by SIGABRT" for rank in range(ranks))]


@pytest.mark.parametrize("why_lines", [1, 40])
def test_a_message_is_judged_once_for_all_ranks_that_it_marks(
    why_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks in (50, 400):
        log = _marked(ranks, why_lines)
        judged = _judged_chars(log, tmp_path / f"{ranks}", monkeypatch)
        assert 0 < judged <= 2 * sum(map(len, log))


def test_the_lines_of_a_log_are_judged_once_for_each_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has room for 20,000 ranks that crashed, and each question reads its last lines."""
    asked: list[int] = []

    def counted(phase: str, code: int, lines: Sequence[str], *, is_oom: bool) -> bool:
        asked.append(code)
        return may_come_from_others(phase, code, lines, is_oom=is_oom)

    monkeypatch.setattr(pod_failures, "may_come_from_others", counted)
    crashes = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGABRT")
    log = [f"seatrial: rank {1 + rank} was killed by {crashes[rank % 4]}" for rank in range(400)]
    heard = Heard(tmp_path, None)
    for number, lines in enumerate([[_lost(0)], log]):
        heard.says(ended_pod(number, 1), "".join(f"{line}\n" for line in lines))
    heard.run_log.end_by_exit_codes([ended_pod(number, 1) for number in range(2)], under_mpi=False)
    assert 0 < len(asked) == len(set(asked)) <= len(crashes)


class _Compared(PodStatus):
    """A pod that counts how often any of them is compared with another one, which takes all their fields."""

    times = 0

    def __eq__(self, other: object) -> bool:
        type(self).times += 1
        return PodStatus.__eq__(self, other)

    __hash__ = PodStatus.__hash__


def _compared(pod: PodStatus) -> PodStatus:
    _Compared.times = 0
    return _Compared(**{field.name: getattr(pod, field.name) for field in fields(PodStatus)})


def test_the_logs_of_many_pods_are_found_without_comparing_the_pods(tmp_path: Path) -> None:
    pods = [_compared(ended_pod(number, 1)) for number in range(40)]
    gone = [(log_of(pod.name), f"echo 'Error: pods \"{pod.name}\" not found' >&2; exit 1") for pod in pods]
    kubectl = Kubectl(program=scripted(tmp_path, *gone), namespace=None)
    copies = LogCopies(tmp_path)
    assert len(PodLogs(kubectl, copies).read_to_end(pods, 20.0)) == len(pods)
    assert [*copies.finish(lambda: False)] == []
    assert _Compared.times == 0


def test_the_end_of_a_training_compares_no_pods(tmp_path: Path) -> None:
    """Operators delete all other pods, which may be thousands, when the first one has ended."""
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(["trained 4 of 4 steps: loss 0.1"])
    others = [replace(ended_pod(number, 143), stop=DELETED, deleted=True) for number in range(1, 40)]
    heard.run_log.end_by_exit_codes([*map(_compared, [ended_pod(0, 0), *others])], under_mpi=False)
    assert heard.outcome(training())["how"] == "ended"
    assert _Compared.times == 0


def test_pods_that_never_ran_are_compared_with_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, times, equal = 60, 0, PodStatus.__eq__

    def counted(pod: PodStatus, other: object) -> bool:
        nonlocal times
        times += 1
        return equal(pod, other)

    monkeypatch.setattr(PodStatus, "__eq__", counted)
    refused = [{**running(number), "status": {"phase": "Failed", "reason": "OutOfcpu"}} for number in range(1, count)]
    cluster = Cluster(tmp_path, [ended(0, 1), *refused], (LOGS, "exit 0"), reason_s=0.2)
    attempt = cluster.attempt_at(replace(training(), nodes=count, detail=cluster.job.detail))
    attempt.run()
    attempt.cleanup(keep=False)
    assert attempt._follower.known["trial-1-1-x"].never_ran
    assert times < 5 * count


def test_a_line_without_an_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = [f"[rank0]:[E ProcessGroupNCCL.cpp:2068] {_WHY}{'x' * 900_000}", "seatrial: rank 0 was killed by SIGABRT"]
    assert 0 < _judged_chars(log, tmp_path / "log", monkeypatch) < 20_000


def test_spaces_in_an_error_of_nccl_are_read_once() -> None:
    """Each of them may be the end of the message; trying them all again from each takes hours."""
    error, spaces = f"[rank0]:[E ProcessGroupNCCL.cpp:2068] {_WHY}, NCCL version 2.27.7", " " * 400_000
    for line in (f"{spaces}x", f"[rank0]:{spaces}x"):
        assert message_at([error, line, f"[rank0]:{spaces}", "x"], 0) == f"{error}\n{line}"
