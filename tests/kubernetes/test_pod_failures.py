"""Which pod of a training without a conductor is named: the one whose rank failed by itself, never one that lost it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.attempted import Cluster, listed_in_turn, running
from kubernetes.kubectl_script_double import LOGS, PODS, log_of
from kubernetes.test_interrupted_pods import ended
from kubernetes.test_run_log import Heard, ended_pod, training

from seatrial.targets.kubernetes.pod_order import PodOrder
from seatrial.targets.kubernetes.pods import PodStatus

CLOSED = "RuntimeError: [/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:63200. This is"
_LIBRARY = "Process group watchdog thread terminated with exception: "
_PEER_LEFT = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.7"
_BROKEN = "CUDA error: uncorrectable ECC error encountered"


def _lost(rank: int) -> str:
    return f"seatrial: rank {rank} of 6 lost its peers in step 7 backward: {CLOSED}"


def _own(rank: int, error: str = "ValueError: bad batch") -> str:
    return f"seatrial: rank {rank} of 6 failed in step 7 forward: {error}"


_SWITCH = (
    "NCCL error: unhandled cuda error, NCCL version 2.29.3\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401"
)
_INSIDE = (
    "NCCL error: internal error, NCCL version 2.29.3\nncclInternalError: Internal check failed.\n"
    "Last error:\nCuda failure 214 'uncorrectable ECC error encountered'"
)


def _aborted(rank: int, why: str) -> list[str]:
    frames = [f"frame #{number}: clone + 0x44 (0x7f in /lib/libc.so.6)" for number in range(30)]
    return [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {_LIBRARY}{why}",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {_LIBRARY}{why}",
        *frames,
        f"seatrial: rank {rank} was killed by SIGABRT",
    ]


_MET = [f"seatrial: rank {rank} of 6 on a: cpu (x), gloo, local rank 0, process 7" for rank in range(6)]
_HONEST = [_lost(0), _lost(1), _lost(2)]


def _said(
    folder: Path,
    *logs: Sequence[str],
    codes: Sequence[int] = (),
    unread: Sequence[str] = (),
    order: PodOrder | None = None,
    met: bool = True,
    out_of_memory: Sequence[int] = (),
) -> str:
    """Return the text of the outcome of a training whose pods printed this and ended. ``met``: its ranks met before."""
    heard = Heard(Path(tempfile.mkdtemp(dir=folder)), None)
    for number, lines in enumerate(logs):
        text = "".join(f"{line}\n" for line in (*(_MET if met else ()), *lines))
        heard.says(ended_pod(number, 1), text)
    pods = [
        replace(ended_pod(number, codes[number] if codes else 1), out_of_memory=number in out_of_memory)
        for number in range(len(logs))
    ]
    heard.run_log.end_by_exit_codes(pods, under_mpi=False, unread=unread, order=order)
    outcome = heard.outcome(training())
    assert outcome["how"] == "failed"
    return str(outcome["text"])


@pytest.mark.parametrize(
    "lines",
    [
        # A peer of the same pod complains after the rank that failed.
        [_lost(4), "seatrial: rank 5 was killed by SIGKILL", _lost(3)],
        ["seatrial: rank 5 was killed by signal 34", _lost(3)],
        ["seatrial: rank 5 ended with exit code 7", _lost(3)],
        [_own(3, "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. can't allocate memory"), _lost(4)],
        [_own(3, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"), _lost(4), _lost(5)],
        [_own(3, "AcceleratorError: " + _BROKEN), *_aborted(4, _PEER_LEFT)],
        [_own(3, "DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error"), _lost(4)],
        ["seatrial: rank 3 of 6 failed in meet the others: could not meet the others with nccl: CUDA error"],
        _aborted(3, _BROKEN),
        _aborted(3, _INSIDE),
        [_own(3, "DistBackendError: NCCL error in: x.cpp:94, internal error; last error: Cuda failure 719 'launch'")],
        [*_aborted(4, _PEER_LEFT), *_aborted(3, _BROKEN)],
        # Not by a library that lost a peer.
        [*_aborted(4, _PEER_LEFT), "double free or corruption", "seatrial: rank 3 was killed by SIGABRT"],
        # It says more than 20 lines after that.
        [_own(3), *(f"frame #{number}" for number in range(300)), _lost(4)],
        # No rank could say anything.
        ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'torch'"],
    ],
    ids=range(15),
)
@pytest.mark.parametrize(
    "witness",
    [_HONEST, _aborted(0, _PEER_LEFT), _aborted(0, _SWITCH)],
    ids=["gloo", "nccl", "switch"],
)
def test_the_pod_with_a_failure_that_is_not_of_the_fabric(witness: list[str], lines: list[str], tmp_path: Path) -> None:
    assert _said(tmp_path, witness, lines) == "pod t-1 on node gpu-1 ended with exit code 1"


@pytest.mark.parametrize(
    "line",
    [
        "seatrial: rank 0 of 6 lost its peers in load data: rank 0 could not read the data set",
        "seatrial: rank 0 of 6 lost its peers in step 7: DistNetworkError: Failed to recv, got 0 bytes. Connection was",
        "seatrial: rank 0 of 6 lost its peers in step 7: DistBackendError: NCCL error in: x.cpp:9, remote process",
        "seatrial: rank 0 of 6 lost its peers in step 7: DistBackendError: NCCL error in: x.cpp:94, unhandled cuda"
        " error; last error: Cuda failure 1 'invalid argument'",
        "[rank0]: torch.distributed.DistNetworkError: Broken pipe",
    ],
)
def test_a_rank_that_lost_its_peers_is_a_witness_in_any_words(line: str, tmp_path: Path) -> None:
    assert _said(tmp_path, [line], [_own(3)]) == "pod t-1 on node gpu-1 ended with exit code 1"


def test_pods_that_all_lost_their_peers_name_nobody(tmp_path: Path) -> None:
    assert _said(tmp_path, _HONEST, [_lost(3)]) == (
        "the connection between pods t-0 on node gpu-1 and t-1 on node gpu-1 was lost; nothing shows which node is at"
        " fault"
    )
    # Another one was stopped from within.
    assert _said(tmp_path, _HONEST, ["seatrial: stopped on request"], codes=[1, 130]) == (
        "the connection to others of pod t-0 on node gpu-1 was lost; nothing shows which node is at fault"
    )
    assert _said(tmp_path, _HONEST) == "pod t-0 on node gpu-1 ended with exit code 1"


def test_a_log_that_was_not_read_accuses_and_excuses_nobody(tmp_path: Path) -> None:
    assert _said(tmp_path, [], [_lost(3)], [_own(5)], unread=["t-0"]).startswith("pod t-2 on")
    assert _said(tmp_path, [_lost(0)], [_own(3)], unread=["t-0", "t-1"]).startswith("pod t-1 on")
    assert _said(tmp_path, [], [_lost(3)], [_lost(5)], unread=["t-0"]) == (
        "the connection between pods t-1 on node gpu-1 and t-2 on node gpu-1 was lost; the log of pod t-0 on node gpu-1"
        " was not read to its end; nothing shows which node is at fault"
    )
    # That of rank 0 may have a result after which all ranks end so.
    assert _said(tmp_path, [], [], unread=["t-0"]) == (
        "the log of pod t-0 on node gpu-1 was not read to its end; nothing shows which node is at fault"
    )
    assert _said(tmp_path, [], ["ModuleNotFoundError: No module named 'torch'"], unread=["t-0"]).startswith(
        "pod t-1 on"
    )
    # The cluster says how this one ended.
    assert _said(tmp_path, [], [_lost(3)], codes=[137, 1], unread=["t-0"]).startswith("pod t-0 on")


def test_a_pod_that_has_not_ended_is_not_blamed(tmp_path: Path) -> None:
    """Its node may have died, and the other pod noticed first."""
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(1, 1), f"{_lost(1)}\n")
    silent = replace(ended_pod(0, 0), state="running", exit_code=None, end="")
    heard.run_log.end_by_exit_codes([silent, ended_pod(1, 1)], under_mpi=False)
    assert heard.outcome(training())["text"] == (
        "the connection to others of pod t-1 on node gpu-1 was lost; pod t-0 on node gpu-1 has not ended; nothing shows"
        " which node is at fault"
    )


def test_a_kill_comes_before_an_error_that_may_follow_from_it(tmp_path: Path) -> None:
    assert _said(tmp_path, [_own(0)], ["seatrial: rank 3 was killed by SIGKILL"]).startswith("pod t-1 on")
    # Somebody stops a rank by this one.
    both = _said(tmp_path, [_own(0)], ["seatrial: rank 3 was killed by SIGTERM"])
    assert both.endswith("failed, and nothing shows which of them failed first")


@pytest.mark.parametrize(("ran_on_s", "named"), [(4.0, False), (30.0, True)])
def test_of_two_that_failed_by_themselves_the_lists_decide(
    ran_on_s: float, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, now = PodOrder(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pods = [replace(ended_pod(number, 1), uid=f"u{number}") for number in (0, 1)]
    still: list[PodStatus] = [replace(pod, state="running", exit_code=None, end="") for pod in pods]
    for at, listed in ((100.0, still), (102.0, [still[0], pods[1]]), (102.0 + ran_on_s, [still[0], pods[1]])):
        now = at
        order.take(listed, asked_at=at)
    now += 2.0
    order.take(pods, asked_at=now)
    heard = Heard(tmp_path, None)
    for pod in pods:
        heard.says(pod, f"{_own(3 * pod.number)}\n")
    heard.run_log.end_by_exit_codes(pods, under_mpi=False, order=order)
    text = heard.outcome(training())["text"]
    assert text == (
        "pod t-1 on node gpu-1 ended with exit code 1"
        if named
        else "pods t-0 on node gpu-1 and t-1 on node gpu-1 failed, and nothing shows which of them failed first"
    )


_CODE = "ended with exit code 7"
_MISSED = ["stopped at step 4 of 9: the loss was NaN or Inf", "digests of all ranks equal: abc"]
_BYE = "seatrial: rank 1 of 2 lost its peers in end: bye"
_GONE: dict[str, Any] = {"exit_code": None, "state": "running", "stop": "was deleted", "deleted": True, "end": ""}
_ONLY = "pod t-1 on node gpu-1 "


def _of_missed(folder: Path, first: int | None, other: PodStatus, log: str = "", unread: Sequence[str] = ()) -> str:
    """Return how a training ended whose rank 0 printed that it missed its aim: the code, or the text of a failure."""
    heard = Heard(Path(tempfile.mkdtemp(dir=folder)), None)
    heard.run_log.take_text(_MISSED)
    pod = ended_pod(0, 0 if first is None else first)
    heard.says(pod, "\n".join(_MISSED) + "\n")
    heard.says(other, log)
    heard.run_log.end_by_exit_codes(
        [pod if first is not None else replace(pod, **_GONE), other], under_mpi=False, unread=unread
    )
    found = heard.outcome(training())
    return f"{found['code'] if found['how'] == 'ended' else ''}{found['text']}"


@pytest.mark.parametrize(
    ("other", "log", "unread", "how"),
    [
        (ended_pod(1, 1), "", (), "1all pods have ended"),
        (ended_pod(1, 1), "", ("t-0",), "1all pods have ended"),
        (ended_pod(1, 1), "", ("t-0", "t-1"), "1all pods have ended"),
        (replace(ended_pod(1, 1), deleted=True), "", ("t-1",), "1all pods have ended"),
        # Its word against that of pod 0.
        (ended_pod(1, 0), "", (), "1all pods have ended"),
        (ended_pod(1, 130), "", (), "1all pods have ended"),
        (replace(ended_pod(1, 1), **_GONE), "", (), f"1rank 0 has a result, and nothing shows how {_ONLY}ended"),
        (
            replace(ended_pod(1, 1), exit_code=None, state="running", end=""),
            "",
            (),
            f"1rank 0 has a result, and nothing shows how {_ONLY}ended",
        ),
        (
            ended_pod(1, 1),
            _BYE,
            (),
            f"the connection to others of {_ONLY}was lost; nothing shows which node is at fault",
        ),
        (ended_pod(1, 7), "", (), f"{_ONLY}ended with exit code 7"),
        (ended_pod(1, 137), "", (), f"{_ONLY}ended with exit code 137"),
        (ended_pod(1, 1), _own(1), (), f"{_ONLY}ended with exit code 1"),
    ],
    ids=range(12),
)
def test_a_training_that_misses_its_aim_names_only_a_pod_that_fails(
    other: PodStatus, log: str, unread: Sequence[str], how: str, tmp_path: Path
) -> None:
    """Each rank of it ends with 1."""
    assert _of_missed(tmp_path, 1, other, log, unread) == how


@pytest.mark.parametrize("first", [0, 130])
@pytest.mark.parametrize("unread", [(), ("t-1",)])
def test_a_pod_that_misses_its_aim_alone_is_not_blamed(first: int, unread: Sequence[str], tmp_path: Path) -> None:
    """Pod 0 prints the result, and chooses its exit code."""
    said = _of_missed(tmp_path, first, ended_pod(1, 1), unread=unread)
    assert said.endswith("nothing shows which node is at fault")


def test_nor_is_one_whose_first_pod_is_gone(tmp_path: Path) -> None:
    assert _of_missed(tmp_path, None, ended_pod(1, 1)).endswith("nothing shows which node is at fault")


_GLOO = [
    "terminate called after throwing an instance of 'gloo::IoException'",
    "  what():  [/__w/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:6320",
]


@pytest.mark.parametrize("error", [_lost(3), _own(3)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_that_gloo_aborts_lost_their_peers(ranks: int, error: str, tmp_path: Path) -> None:
    lines = [line for rank in range(ranks) for line in (*_GLOO, f"seatrial: rank {rank} was killed by SIGABRT")]
    assert _said(tmp_path, lines, [error]) == (
        "pod t-1 on node gpu-1 ended with exit code 1"
        if error == _own(3)
        else "the connection between pods t-0 on node gpu-1 and t-1 on node gpu-1 was lost; nothing shows which node is"
        " at fault"
    )


def test_aborts_that_no_line_explains_blame_nobody_beside_one_of_gloo(tmp_path: Path) -> None:
    """Two ranks may write into the same line, and one of them may have failed by itself."""
    lines = [*_GLOO, *(f"seatrial: rank {rank} was killed by SIGABRT" for rank in (0, 1))]
    assert _said(tmp_path, lines, [_lost(3)]) == (
        "the connection to others of pod t-1 on node gpu-1 was lost; nothing shows why the ranks of pod t-0 on node"
        " gpu-1 aborted; nothing shows which node is at fault"
    )
    assert _said(tmp_path, lines, [_own(3)]).startswith("pod t-1 on")
    assert _said(tmp_path, lines[2:], [_lost(3)]).startswith("pod t-0 on")


@pytest.mark.parametrize(
    "line",
    [
        "seatrial: rank {number} was killed by SIGABRT",
        "seatrial: rank {number} was killed by SIGABRT rank{number}]",
        "rank{number}] seatrial: rank {number} failed in step 1: RuntimeError: Dist",
        "seatrial: rank {number} lost its peers in x: DistBackendError: Connection closed rank 1]",
        "rank{number}] terminate called after throwing an instance of 'gloo::",
    ],
    ids=range(5),
)
@pytest.mark.parametrize("joint", ["\n", " "])
def test_what_a_pod_prints_delays_no_verdict(line: str, joint: str, tmp_path: Path) -> None:
    size = 1 << 20
    log = joint.join(line.format(number=number) for number in range(size // len(line)))[:size]
    heard = Heard(tmp_path, None)
    heard.says(ended_pod(1, 1), f"seatrial: rank 7 was killed by SIGABRT\n{log}\n")
    heard.says(ended_pod(0, 1), f"{_lost(0)}\n")
    began = time.process_time()
    heard.run_log.end_by_exit_codes([ended_pod(0, 1), ended_pod(1, 1)], under_mpi=False)
    assert time.process_time() - began < 10


def _stamped(line: str) -> str:
    return f"echo '2026-01-01T00:00:09Z {line}'"


def test_the_logs_of_all_pods_are_read_before_the_verdict(tmp_path: Path) -> None:
    """More than are read at the same time; the cause is in one of the last."""
    count, culprit = 44, 41
    for name, entry in (("running.json", running), ("ended.json", lambda number: ended(number, 1))):
        items = [entry(number) for number in range(count)]
        for number, item in enumerate(items):
            item["metadata"] = {**item["metadata"], "creationTimestamp": f"2026-01-01T00:00:{number:02}Z"}
        (tmp_path / name).write_text(json.dumps({"items": items}))
    go = tmp_path / "go"
    follows = f'case "$*" in *follow=true*) touch {tmp_path}/followed; while [ ! -e {go} ]; do sleep 0.2; done;; esac'
    state = f"elif [ -e {tmp_path}/followed ]; then touch {go}; cat {tmp_path}/ended.json; else cat {tmp_path}/running"
    cluster = Cluster(
        tmp_path,
        [],
        (PODS, f"if [ -e {tmp_path}/deleted ]; then cat {tmp_path}/none; {state}.json; fi"),
        (log_of("trial-1-0-x"), f"{follows}; {_stamped(_lost(0))}"),
        (log_of(f"trial-1-{culprit}-x"), f"{follows}; sleep 0.5; {_stamped(_own(3))}"),
        (LOGS, f"{follows}; sleep 0.5; {_stamped(_lost(0))}"),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=count, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert outcome["text"] == f"pod trial-1-{culprit}-x on node gpu-{culprit} ended with exit code 1"


def test_a_pod_that_ends_while_the_verdict_waits_is_heard(tmp_path: Path) -> None:
    before, after = [running(number) for number in range(3)], [ended(number, 1) for number in range(3)]
    lists = [before, [before[0], before[1], after[2]], *[[after[0], before[1], after[2]]] * 2, after]
    until_last = f"while [ $(cat {tmp_path}/turn) -lt {len(lists) - 1} ]; do sleep 0.1; done"
    late = f'case "$*" in *follow=true*) {until_last};; esac; {_stamped(_lost(1))}'
    cluster = Cluster(
        tmp_path,
        after,
        listed_in_turn(lists, tmp_path),
        (log_of("trial-1-0-x"), _stamped(_lost(0))),
        (log_of("trial-1-1-x"), late),
        (log_of("trial-1-2-x"), _stamped(_own(2))),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=3, detail=cluster.job.detail))
    attempt.run()
    assert (tmp_path / "trial-1-1-x.log").read_text() == f"{_lost(1)}\n"
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert outcome["text"] == "pod trial-1-2-x on node gpu-2 ended with exit code 1"


_CONNECTING = (
    "crashed or ran out of memory while connecting to the ranks of other pods: what it runs, or what came from them, is"
    " at fault; nothing shows which node is at fault"
)


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGKILL"])
@pytest.mark.parametrize("other", [[_lost(1)], []])
def test_a_crash_while_ranks_meet_names_nobody(number: str, other: list[str], tmp_path: Path) -> None:
    """A false value at the store causes it as well, and each rank can write there."""
    crashed = [f"seatrial: rank 0 was killed by {number}"]
    out_of_memory = [0] if number == "SIGKILL" else []
    said = _said(tmp_path, crashed, other, met=False, out_of_memory=out_of_memory)
    assert said.endswith(f"pod t-0 on node gpu-1 {_CONNECTING}") or (not other and "t-1 on node gpu-1 ended" in said)
    assert _said(tmp_path, crashed, [_own(1)], met=False, out_of_memory=out_of_memory).startswith("pod t-1 on")
    # A rank that has met the others is named, and so is the only pod of a training.
    assert _said(tmp_path, crashed, [_lost(1)], out_of_memory=out_of_memory).startswith("pod t-0 on")
    assert _said(tmp_path, crashed, met=False, out_of_memory=out_of_memory).startswith("pod t-0 on")


def test_a_rank_that_crashes_after_a_lot_of_output_has_met_the_others(tmp_path: Path) -> None:
    noise = ["x" * 120] * 20_000
    crashed = "seatrial: rank 0 was killed by SIGSEGV"
    assert _said(tmp_path, [*noise, *_MET, *noise, crashed], [_lost(1)], met=False).startswith("pod t-0 on")


def test_memory_that_runs_out_while_ranks_meet_names_nobody(tmp_path: Path) -> None:
    assert _said(tmp_path, [], [_lost(1)], codes=[137, 1], met=False, out_of_memory=[0]).endswith(_CONNECTING)
    assert _said(tmp_path, [], [_lost(1)], codes=[137, 1], met=True, out_of_memory=[0]).startswith("pod t-0 on")
    # Nothing shows whether its ranks had met.
    said = _said(tmp_path, [], [_lost(1)], codes=[137, 1], met=False, out_of_memory=[0], unread=["t-0"])
    assert "the log of pod t-0 on node gpu-1 was not read to its end" in said
    killed = ["seatrial: rank 0 was killed by SIGKILL"]
    assert _said(tmp_path, killed, [_lost(1)], met=False).startswith("pod t-0 on")
    assert _said(tmp_path, [], [_lost(1)], codes=[137, 1], met=False).startswith("pod t-0 on")
    # No other rank makes a device fail.
    broken = ["CUDA error: uncorrectable ECC error encountered", "seatrial: rank 0 was killed by SIGABRT"]
    assert _said(tmp_path, broken, [_lost(1)], met=False).startswith("pod t-0 on")


@pytest.mark.parametrize(
    "line",
    [
        # Another rank has gone on in the same line, or in that of a rank.
        "seatrial: rank 1 was killed by SIGABRT[rank2]:[E ProcessGroupNCCL.cpp:2068] x",
        "seatrial: rank 1 was killed by SIGABRTterminate called after throwing an instance of 'c10::DistBackendError'",
        # It only quotes one.
        "RuntimeError: seatrial: rank 2 was killed by SIGKILL",
        "seatrial: rank 1 of 6 lost its peers in x: MeetingError: a\u2028seatrial: rank 2 was killed by SIGKILL",
        "seatrial: rank 1 of 6 lost its peers in x: MeetingError: a\x0bseatrial: rank 2 was killed by SIGKILL",
        "seatrial: rank 2 was killed by SIGNOTHING",
    ],
    ids=range(6),
)
def test_no_line_that_is_broken_or_quotes_another_one_names_a_pod(line: str, tmp_path: Path) -> None:
    said = _said(
        tmp_path,
        [*_aborted(1, _PEER_LEFT)[:-1], line, f"seatrial: rank 1 of 6 lost its peers in x: {CLOSED}"],
        [_lost(3)],
    )
    assert said.endswith("nothing shows which node is at fault")


@pytest.mark.parametrize("prints_result", [True, False])
@pytest.mark.parametrize("under_mpi", [True, False])
def test_a_first_log_that_was_not_read_blames_no_pod(under_mpi: bool, prints_result: bool, tmp_path: Path) -> None:
    first = replace(ended_pod(0, 0), is_launcher=under_mpi)
    heard = Heard(tmp_path, None)
    heard.run_log.end_by_exit_codes(
        [first, ended_pod(1, 0)], under_mpi=under_mpi, prints_result=prints_result, unread=["t-0"]
    )
    found = heard.outcome(training())
    if prints_result or under_mpi:
        what = "the training has a result" if prints_result else "all ranks ended"
        said = f"the log of pod t-0 on node gpu-1 was not read to its end: nothing shows that {what}"
        assert (found["how"], found["text"]) == ("failed", said)
    else:
        # The exit codes of a script say all.
        assert (found["how"], found["code"]) == ("ended", 0)


@pytest.mark.parametrize("code", [1, 3, 130, 137, 143, None])
@pytest.mark.parametrize("stop", ["was deleted", "was evicted"])
def test_a_pod_that_was_stopped_after_the_result_has_not_failed(code: int | None, stop: str, tmp_path: Path) -> None:
    """Operators delete the others when the first one has succeeded."""
    other = replace(ended_pod(1, 1), stop=stop, deleted=stop == "was deleted", exit_code=code)
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(["trained 9 of 9 steps: loss 0.1"])
    heard.run_log.end_by_exit_codes([ended_pod(0, 0), other, ended_pod(2, 0)], under_mpi=False)
    found = heard.outcome(training())
    assert (found["how"], found["code"]) == ("ended", 0)


@pytest.mark.parametrize(
    "line", [_own(1), "seatrial: rank 1 was killed by SIGSEGV", "seatrial: rank 1 ended with exit code 7"]
)
def test_a_failure_that_the_log_of_such_a_pod_shows_counts(line: str, tmp_path: Path) -> None:
    stopped = replace(ended_pod(1, 1), stop="was deleted", deleted=True)
    heard = Heard(tmp_path, None)
    heard.says(stopped, "\n".join([*_MET, line]))
    heard.run_log.take_text(["trained 9 of 9 steps: loss 0.1"])
    heard.run_log.end_by_exit_codes([ended_pod(0, 0), stopped], under_mpi=False)
    assert heard.outcome(training())["text"] == "pod t-1 on node gpu-1 ended with exit code 1"


@pytest.mark.parametrize("lines", [["trained 9 of 9 steps: loss 0.1"], []])
@pytest.mark.parametrize("code", [1, 137, 143])
def test_a_pod_that_nobody_stopped_or_before_a_result_has_failed(code: int, lines: list[str], tmp_path: Path) -> None:
    other = ended_pod(1, code)
    heard = Heard(tmp_path, None)
    heard.run_log.take_text(lines)
    heard.run_log.end_by_exit_codes(
        [ended_pod(0, 0), other if lines else replace(other, stop="was deleted")], under_mpi=False
    )
    assert heard.outcome(training())["how"] == "failed"


@pytest.mark.parametrize(
    ("code", "unread", "text"),
    [
        (0, ["t-0"], "the log of pod t-0 on node gpu-1 was not read to its end: nothing shows that the training has a"),
        (0, [], "pod t-0 on node gpu-1 ended with exit code 0, but the training printed no result"),
        (130, [], "pod t-1 on node gpu-1 was stopped; nothing shows which node is at fault"),
    ],
)
@pytest.mark.parametrize(
    "how", [{"exit_code": 1}, {"exit_code": 137}, {"exit_code": None, "state": "running"}], ids=str
)
def test_a_pod_deleted_after_the_first_is_not_named(
    how: dict[str, Any], code: int, unread: list[str], text: str, tmp_path: Path
) -> None:
    """Operators delete the others when the first one has succeeded, whether its log was read or not."""
    other = replace(ended_pod(1, 1), stop="was deleted", deleted=True, **how)
    heard = Heard(tmp_path, None)
    heard.says(other, "\n".join(_MET))
    heard.run_log.end_by_exit_codes([ended_pod(0, code), other], under_mpi=False, unread=unread)
    found = heard.outcome(training())
    assert (found["how"], found["text"][: len(text)]) == ("failed", text)


_STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
    " If you suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase it"
)
_HANG = "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."


@pytest.mark.parametrize("why", [_STUCK, _HANG])
def test_a_rank_whose_watchdog_hangs_is_a_witness(why: str, tmp_path: Path) -> None:
    """A call of NCCL hangs there where a peer is gone, and the monitor of the watchdog aborts the rank."""
    lines = [
        f"[rank0]:[E704 13:48:58.260 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 0] {why}",
        "seatrial: rank 0 was killed by SIGABRT",
    ]
    assert _said(tmp_path, lines, [_own(3)]).startswith("pod t-1 on")
    assert _said(tmp_path, lines, [_lost(3)]).endswith("nothing shows which node is at fault")


def test_one_list_with_a_deletion_and_the_end_of_a_witness_names_neither(tmp_path: Path) -> None:
    witness, deleted = ended(0, 1), ended(1, 143, is_deleted=True)
    dying = {**running(1), "metadata": deleted["metadata"]}
    lists = [[running(0), running(1)], [witness, dying], [witness, deleted]]
    cluster = Cluster(
        tmp_path,
        lists[-1],
        listed_in_turn(lists, tmp_path),
        (log_of("trial-1-0-x"), _stamped(_lost(0))),
        (LOGS, ":"),
    )
    attempt = cluster.attempt_at(replace(training(), nodes=2, detail=cluster.job.detail))
    attempt.run()
    assert attempt.cleanup(keep=False) == []
    (outcome,) = [event for event in cluster.events if event["kind"] == "outcome"]
    assert outcome["text"].endswith("nothing shows which node is at fault")


def test_a_rank_that_gloo_aborts_in_a_broken_line_is_a_witness(tmp_path: Path) -> None:
    """C++ writes that line in three parts, and another rank between them."""
    begin, _, rest = _GLOO[0].partition("gloo::")
    lines = [begin, _lost(1), f"gloo::{rest}", _GLOO[1], "seatrial: rank 0 was killed by SIGABRT"]
    assert _said(tmp_path, lines, [_own(3)]).startswith("pod t-1 on")
    assert _said(tmp_path, lines, [_lost(3)]).endswith("nothing shows which node is at fault")
