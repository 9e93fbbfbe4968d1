"""Errors of scripts that reach the conductor by a parent of the rank, from other ranks, or behind other lines."""

from __future__ import annotations

from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

from seatrial.conductor.program_failures import Exit, fabric_error

HEAD = "Traceback (most recent call last):"
FRAMES = (HEAD, '  File "/job/train.py", line 7, in <module>', "    train()")
LINK = ("", "During handling of the above exception, another exception occurred:", "")
GLOO = "RuntimeError: [/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:63200"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CLOSED = (*FRAMES, GLOO)
WATCHDOG = "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: "
ABORT = "terminate called after throwing an instance of 'c10::DistBackendError'"


def aborted(error: str, *more: str) -> tuple[str, ...]:
    return (
        f"[rank0]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:2068] {WATCHDOG}{error}",
        *more,
        "",
        ABORT,
        f"  what():  {WATCHDOG}{error}",
    )


REMOTE = aborted(
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.7",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:",
    "socketPollConnect: connect to 10.0.0.2<4001> returned Connection refused",
)
BROKEN = aborted("CUDA error: uncorrectable ECC error encountered")
HANGS = (
    "[rank0]:[F1126 10:08:00.1 ProcessGroupNCCL.cpp:1574] [PG ID 0 PG GUID 0(default_pg) Rank 0] Terminating the"
    " process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
)
STUCK = (
    "[rank0]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:1753] [PG ID 0 PG GUID 0(default_pg) Rank 0] ProcessGroupNCCL's"
    " watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
)
ELASTIC = (
    *FRAMES,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 20,
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 0 (local_rank: 0)",
)
PARENTS = [
    (-6, ()),
    (134, ()),
    (134, ("run.sh: line 3: 4711 Aborted                 (core dumped) python train.py",)),
    (250, ("[ERROR] [launch.py:322:sigkill_handler] ['python3', '-u', 'train.py'] exits with return code = -6",)),
    (1, (*FRAMES, "subprocess.CalledProcessError: Command ['python3', 'x.py'] died with <Signals.SIGABRT: 6>.")),
    (1, (*FRAMES, "subprocess.CalledProcessError: Command '['./run.sh']' returned non-zero exit status 134.")),
    (1, (*FRAMES, "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGABRT")),
    (1, (*ELASTIC, "  exitcode  : -6 (pid: 4711)", "  traceback : Signal 6 (SIGABRT) received by PID 4711")),
    (7, ("a launcher that says nothing",)),
]


def ends(*last: str, code: int = 1, at_s: float = 3.0) -> list[Act]:
    return [Act(at_s=at_s, what="exit", code=code, phase="", last=last)]


def text_of(*acts: list[Act], is_lost: bool = False) -> str:
    """``is_lost``: node 1 loses power before that."""
    return str(outcome_of(*acts, is_lost=is_lost)["text"])


def outcome_of(*acts: list[Act], is_lost: bool = False) -> dict[str, Any]:
    script = {(0, rank): each for rank, each in enumerate(acts)} | ({(0, 1): WAITS} if is_lost else {})
    at_s = [(2.5, lambda fleet: fleet.mute(1))] if is_lost else []
    nodes = max(2, len(acts))
    return SimulatedProgram(config(watched=False, nproc_per_node=1, nodes=nodes), script, at_s=at_s).run()


WAITS = [Act(at_s=500.0, what="exit")]


def complains(*last: str, code: int = 1, rank: int = 0) -> bool:
    return bool(fabric_error(Exit(rank=rank, code=code, ours=False, at=0.0, last_lines=last)))


@pytest.mark.parametrize(("code", "printed"), PARENTS)
@pytest.mark.parametrize("words", [REMOTE, HANGS, STUCK])
def test_a_rank_that_is_aborted_is_a_witness_behind_any_parent(
    code: int, printed: tuple[str, ...], words: tuple[str, ...]
) -> None:
    last = (*words, *printed)
    assert text_of(ends(*last, code=code), is_lost=True).startswith("node 1 (n1) was lost")
    assert text_of(ends(*last, code=code), ends("boom", code=3, at_s=3.9)).startswith("rank 1 on node n1")


@pytest.mark.parametrize(("code", "printed"), PARENTS)
@pytest.mark.parametrize(
    "words",
    [BROKEN, (BROKEN[0].replace("Process group", "NCCL"),), (*REMOTE, *BROKEN)],
)
def test_a_device_that_broke_is_named_behind_any_parent(
    code: int, printed: tuple[str, ...], words: tuple[str, ...]
) -> None:
    text = text_of(ends(*words, *printed, code=code), WAITS)
    assert text.startswith("rank 0 on node n0")
    assert "CUDA error: uncorrectable ECC error encountered" in text


def test_an_exception_of_the_rank_explains_more_than_an_abort() -> None:
    own = (*FRAMES, "ValueError: bad batch")
    assert not complains(*own, *REMOTE)
    marked = tuple(f"[rank0]: {line}" for line in own)
    assert not complains(*marked, *REMOTE, code=-6)
    assert not complains(*marked, *STUCK, code=134)
    # One without a mark may have been logged.
    assert complains(*own, "connected again", *REMOTE, code=-6)
    assert not complains(
        *REMOTE, *FRAMES, "subprocess.CalledProcessError: Command 'nvcc' returned non-zero exit status 1."
    )
    others = (
        "Failures:",
        "[1]:",
        "  exitcode  : -6 (pid: 4712)",
        "  traceback : Signal 6 (SIGABRT) received by PID 4712",
    )
    assert not complains(*REMOTE, *ELASTIC[:6], *others, *ELASTIC[6:], "  exitcode  : 1 (pid: 4711)")
    assert not complains("free(): invalid pointer", code=134)


def passed_on(rank: int, *of: int, mark: bool = True) -> tuple[str, ...]:
    """What ``torch.distributed.checkpoint`` raises on all ranks, here on this one."""
    lines = [*FRAMES]
    lines.append(
        f"torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys({list(of)})"
    )
    for other in of:
        lines += [f"{HEAD} (RANK {other})", '  File "/job/train.py", line 9, in write_data', "    raise OSError"]
        lines.append(f"OSError: [Errno 28] No space left on device: '/scratch/{other}'")
    return tuple(f"[rank{rank}]: {line}" if mark else line for line in lines)


@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("cut", [0, 3, 4])
@pytest.mark.parametrize("later_s", [-0.4, 0.05, 0.4, 5.0])
def test_an_error_that_torch_passes_on_is_that_of_its_rank(mark: bool, cut: int, later_s: float) -> None:
    last = [passed_on(rank, 1, mark=mark)[cut:] for rank in range(2)]
    assert text_of(ends(*last[0], at_s=6.0), ends(*last[1], at_s=6.0 + later_s)) == (
        "rank 1 on node n1 failed with exit code 1: OSError: [Errno 28] No space left on device: '/scratch/1'"
    )


def test_ranks_that_failed_together_are_no_witnesses() -> None:
    last = [passed_on(rank, 0, 2) for rank in range(3)]
    text = text_of(*(ends(*each, at_s=5.0 - rank) for rank, each in enumerate(last)))
    assert text.startswith("rank 2 on node n2 failed with exit code 1: OSError: [Errno 28]")
    # The mark of torch says more than the place of a launcher with several ranks.
    assert [complains(*each, rank=7) for each in last] == [False, True, False]


def test_a_rank_that_only_hears_of_an_error_is_not_said_to_have_it() -> None:
    text = text_of(ends(*passed_on(0, 1)), WAITS)
    assert text == (
        "rank 0 on node n0 failed with exit code 1 and passed on an error of number 1 of its group: OSError: [Errno"
        " 28] No space left on device: '/scratch/1'; rank 1 had not exited, and seatrial ended it"
    )


RPC = (
    "ValueError: On WorkerInfo(id=1, name=w1):",
    "ValueError('bad')",
    HEAD,
    '  File "/job/train.py", line 3, in step',
    "    raise ValueError('bad')",
    "ValueError: bad",
)


@pytest.mark.parametrize("printed", [(*FRAMES, *RPC), RPC, (*FRAMES, *RPC, *LINK, *FRAMES, "job.TrainError: step 7")])
def test_an_error_of_a_remote_call_is_that_of_the_other_rank(printed: tuple[str, ...]) -> None:
    assert complains(*printed)
    assert text_of(ends(*printed), ends("Killed", code=-9, at_s=3.9)).startswith("rank 1 on node n1 was killed")


HANDLED = (*FRAMES, OUT_OF_MEMORY, *LINK, *FRAMES, GLOO)


def test_a_lack_of_memory_that_was_handled_is_no_cause() -> None:
    assert text_of(ends(*HANDLED), is_lost=True).startswith("node 1 (n1) was lost")
    assert text_of(ends(*HANDLED), ends("boom", code=3, at_s=3.9)).startswith("rank 1 on node n1 failed")
    assert not complains(*FRAMES, OUT_OF_MEMORY, *LINK, *FRAMES, "job.TrainError: step 7")


@pytest.mark.parametrize("own", [OUT_OF_MEMORY, "ValueError: bad batch in shard 2"])
def test_an_exception_before_a_complaint_is_told_first(own: str) -> None:
    last = (*FRAMES, own, *LINK, *FRAMES, GLOO)
    over = outcome_of(ends(*CLOSED), ends(*CLOSED, at_s=3.1), ends(*last, at_s=3.4))
    assert over["text"].startswith(
        f"rank 2 on node n2 failed with exit code 1 and complained of others after {own.rstrip('.')}: RuntimeError:"
        " Connection closed by peer"
    )
    assert over["last_lines"] == list(last)
    # A rank that had left explains it as well.
    text = text_of(ends("done", code=0, at_s=2.0), ends(*CLOSED), ends(*last, at_s=3.4))
    assert text.startswith("rank 0 on node n0 had ended with exit code 0")
    # Where several ranks have one, none of them explains the others.
    text = text_of(ends(*last), ends(*last, at_s=3.1), ends(*CLOSED, at_s=3.4))
    assert text.startswith("rank 0 on node n0")


def test_a_group_of_exceptions_is_none_before_a_complaint() -> None:
    group = [f"  + Exception Group {HEAD}", '  |   File "x"', "  | ExceptionGroup: workers (1 sub-exception)"]
    group += ["  +-+---------------- 1 ----------------", f"    | {HEAD}", '    |   File "x"', f"    | {GLOO}"]
    text = text_of(ends(*CLOSED), ends(*group, at_s=3.1))
    assert text.startswith("connection between ranks lost; rank 0 on node n0")


def nccl(kind: str, last: str) -> tuple[str, ...]:
    first = f"torch.distributed.DistBackendError: NCCL error in: x.cpp:1, {kind}, NCCL version 2.27.7"
    return (*FRAMES, first, "ncclError: x", "Last error:", last)


@pytest.mark.parametrize(
    "printed",
    [
        nccl("remote process exited or there was a network error", "Call to recv from a<1> failed: ncclInvalidUsage"),
        (*FRAMES, "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /x/duplicate gpu detected"),
        (*CLOSED, "enforce fail: stopping the run"),
        (*CLOSED, "wandb: note: EADDRINUSE seen on port 6006"),
    ],
)
def test_what_peers_or_the_script_say_behind_a_complaint_is_no_misuse(printed: tuple[str, ...]) -> None:
    assert complains(*printed)


@pytest.mark.parametrize(
    "printed",
    [
        nccl("invalid usage (run with NCCL_DEBUG=WARN for details)", "Invalid config blocking attribute value -1"),
        nccl("invalid argument", ""),
        nccl("unhandled system error", "Call to bind failed: Address already in use (EADDRINUSE)"),
        (*FRAMES, "RuntimeError: NCCL error: ncclInvalidUsage"),
        (*FRAMES, "ValueError: bad", "Error in atexit._run_exitfuncs:", *CLOSED),
    ],
)
def test_a_call_that_is_wrong_by_itself_is_no_complaint(printed: tuple[str, ...]) -> None:
    assert not complains(*printed)


NOISE = (
    "[rank1]:[W1126 10:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed",
    "n1:12:34 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Destroy COMPLETE",
)


@pytest.mark.parametrize(
    "line",
    [
        "loss is nan, giving up",
        "train.py: error: argument --backend: invalid choice: 'x' (choose from 'nccl', 'gloo')",
        "2026-11-26 ERROR trainer: dataset shard 7 is missing (nccl group stays up)",
        "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: Failed to import x because of the following error: libnccl.so.2: cannot open shared object file",
    ],
)
@pytest.mark.parametrize("noise", [(), NOISE[:1], NOISE[1:], NOISE])
def test_the_name_of_a_library_makes_no_witness(line: str, noise: tuple[str, ...]) -> None:
    text = text_of(ends(line, *noise, at_s=3.0), ends(*CLOSED, at_s=2.9))
    assert text.startswith("rank 0 on node n0 failed with exit code 1")
    assert line[:40] in text


@pytest.mark.parametrize(
    "line",
    [
        "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234",
        "step 7 failed: NCCL communicator was aborted on rank 1.",
        "step 7 failed: Timed out waiting 15000ms for recv operation to complete",
    ],
)
@pytest.mark.parametrize("noise", [(), NOISE])
def test_a_complaint_that_a_script_prints_makes_a_witness(line: str, noise: tuple[str, ...]) -> None:
    assert complains(line, *noise)
