"""Which exceptions in the output of a rank ended it: by what follows them, and by when they were printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from seatrial.agent.last_output import LastOutput
from seatrial.conductor.program_failures import Exit, ScriptError, script_error
from seatrial.conductor.script_failures import own_words

HEAD = ["Traceback (most recent call last):", '  File "/job/train.py", line 7, in <module>', "    train()"]
GLOO = "RuntimeError: [/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:63200"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
STORE = "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /heartbeat/1"
REMOTE = [
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:94, remote process exited, NCCL version 2.28",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:",
    "socketProgress: Connection closed by remote peer n1<54321>",
]
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/cache/7.pt'"
NAN = "train.py: loss is NaN at step 57, giving up"
CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, Timeout(ms)=600000) ran for 600029 ms."
ABORTED = [
    f"[rank0]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 0] {CAUGHT}",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    f"  what():  [Rank 0] Process group watchdog thread terminated with exception: [Rank 0] {CAUGHT}",
]
DUMPED = [
    "[rank0]:[F1126 10:18:01.5 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 0] Terminating the"
    " process after attempting to dump debug info, due to collective timeout or exception."
]
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
SUMMARY = ["wandb: Run history:", "wandb: loss 1", "wandb: Synced 5 files"]
UCX = [
    "[n0:1234 :0:5678] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)",
    "==== backtrace (tid:   5678) ====",
    " 0 0x0000000000042520 __sigaction()  ???:0",
    " 1 0x00000000000a1b2c ucp_worker_progress()  ???:0",
    "=================================",
]
FAULT = ["Fatal Python error: Segmentation fault", "", "Extension modules: numpy (total: 1)"]
PROGRESS: dict[str, Callable[[int], list[str]]] = {
    "steps": lambda count: [f"step {n} loss 2.3" for n in range(count)],
    "steps in brackets": lambda count: [f"[step{n}]: loss 2.3" for n in range(count)],
    "steps of absl": lambda count: [f"I1126 10:00:00.{n:06} 140 train.py:57] step {n}" for n in range(count)],
    "steps with a place": lambda count: [f"[train.py:57] step {n}" for n in range(count)],
    "lines of a bar": lambda count: [f" {n % 100:2}%|#    | {n}/{count}" for n in range(count)],
    "a bar": lambda count: ["\r".join(f"epoch {n}" for n in range(count)) + "\r"],
}


def raised(*message: str) -> list[str]:
    return [*HEAD, *message]


def marked(lines: Sequence[str], rank: int = 0) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def kept(output: LastOutput, lines: Sequence[str], size: int = 7) -> LastOutput:
    for begin in range(0, len(lines), size):
        output.add([line.encode() for line in lines[begin : begin + size]])
    return output


def ended(output: LastOutput, code: int = 1, rank: int = 0) -> Exit:
    last_lines = tuple(output.telling())
    assert len(last_lines) <= 40
    return Exit(rank=rank, code=code, ours=False, at=0.0, last_lines=last_lines)


def read(lines: Sequence[str], code: int = 1) -> ScriptError:
    return script_error(ended(kept(LastOutput(), lines), code))


@pytest.mark.parametrize("count", [6, 20, 60, 120, 150])
@pytest.mark.parametrize("progress", PROGRESS.values(), ids=PROGRESS)
@pytest.mark.parametrize("message", [[RESET], [STORE], [GLOO], REMOTE], ids=["reset", "store", "gloo", "nccl"])
@pytest.mark.parametrize("end", [NAN, "CUDA out of memory. Tried to allocate 2.00 GiB."])
def test_a_complaint_that_a_script_outlived_makes_no_witness(
    message: list[str], progress: Callable[[int], list[str]], count: int, end: str
) -> None:
    error = read([*raised(*message), *progress(count), end])
    assert not error.is_witness
    assert error.text == end
    assert not read([*raised(*message), *progress(count), end, *SUMMARY * 8]).is_witness
    assert read([*raised(*message), *progress(count)], -11) == ScriptError(text="")


@pytest.mark.parametrize("count", [6, 60, 120])
@pytest.mark.parametrize("progress", PROGRESS.values(), ids=PROGRESS)
def test_an_own_error_that_a_script_outlived_hides_no_complaint(
    progress: Callable[[int], list[str]], count: int
) -> None:
    before = [*raised(MISSING) * 3, *progress(count)]
    for end in (
        f"step 167 failed: {GLOO[14:]}",
        GLOO,
        f"2026-11-26 20:00:00 ERROR train: {GLOO[GLOO.index('Conn') :]}",
    ):
        assert read([*before, end]).is_witness
    for code, words in ((1, ["run.sh: training failed"]), (134, ["run.sh: training failed"]), (-6, [])):
        error = read([*before, *ABORTED, *words], code)
        assert error.is_witness
        assert not error.before


@pytest.mark.parametrize("later", [[], SUMMARY, SUMMARY * 10, UCX, FAULT, ["run.sh: training failed"], ["", ""]])
@pytest.mark.parametrize("message", [[RESET], [STORE], [GLOO], REMOTE], ids=["reset", "store", "gloo", "nccl"])
def test_a_complaint_at_the_end_makes_a_witness(message: list[str], later: list[str]) -> None:
    assert read([*raised(*message), *later]).is_witness
    if later != ["run.sh: training failed"]:
        assert read([*raised(*message), *later], -11).is_witness
        assert read([*raised(*message), *later], -6).is_witness


def test_what_ended_a_process_outweighs_its_complaint() -> None:
    thrown = ["terminate called after throwing an instance of 'c10::Error'", f"  what():  {ECC[24:]}"]
    error = read([*raised(RESET), *thrown, "Exception raised from x"], -6)
    assert not error.is_witness
    assert error.text == ECC[24:]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what lets time pass."""
    now = time.monotonic()

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        monkeypatch.setattr(time, "monotonic", lambda: now)

    wait(0.0)
    return wait


@pytest.mark.parametrize("code", [-7, -11, 1])
@pytest.mark.parametrize("message", [RESET, STORE])
@pytest.mark.parametrize("words", [[], FAULT])
def test_a_rank_that_crashes_long_after_a_complaint_is_no_witness(
    later: Callable[[float], None], message: str, code: int, words: list[str]
) -> None:
    output = kept(LastOutput(), raised(message))
    later(300.0)
    crashed = ended(kept(output, words), code)
    assert "  [... then nothing for 300 s]" in crashed.last_lines
    assert not script_error(crashed).is_witness


@pytest.mark.parametrize("code", [-11, 1])
def test_a_witness_may_take_its_time(later: Callable[[float], None], code: int) -> None:
    output = kept(LastOutput(), ["step 1"])
    later(900.0)
    kept(output, raised(GLOO))
    for second in range(240):
        later(1.0)
        beat = f"[rank0]:[W1126 10:00:{second:02}.92 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76)"
        output.add([beat.encode()])
    later(20.0)
    witness = ended(output, code)
    assert script_error(witness).is_witness
    assert not any("then nothing" in line for line in witness.last_lines)
    # Torch marks what nothing caught: its process may hang for minutes before it ends.
    output = kept(LastOutput(), marked(raised(GLOO)))
    later(480.0)
    assert script_error(ended(output, code)).is_witness


@pytest.mark.parametrize("wait_s", [0.0, 480.0])
def test_an_own_exception_before_an_abort_is_told(later: Callable[[float], None], wait_s: float) -> None:
    output = kept(LastOutput(), raised("ValueError: bad batch"))
    later(wait_s)
    aborted = ended(kept(output, DUMPED), -6)
    assert script_error(aborted).is_witness
    assert own_words(aborted) == "was ended by NCCL's watchdog after ValueError: bad batch"


def torchrun(num_ranks: int, root: int, code: int = 1) -> list[str]:
    def rows(rank: int) -> list[str]:
        signal = f"Signal {-code} received" if rank == root and code < 0 else "To enable traceback see: https://x"
        of = code if rank == root else 1
        return [
            "  time      : 2026-11-26_10:00:05",
            "  host      : n0",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : {of} (pid: {4711 + rank})",
            "  error_file: <N/A>",
            f"  traceback : {signal}",
        ]

    others = [rank for rank in range(num_ranks) if rank != root]
    lines = raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED")
    lines += ["-" * 60, "Failures:"]
    lines += [line for number, rank in enumerate(others) for line in (f"[{number + 1}]:", *rows(rank))]
    return [*lines, "-" * 60, "Root Cause (first observed failure):", "[0]:", *rows(root), "=" * 60]


@pytest.mark.parametrize("own", ["ValueError: bad batch in shard 2", ECC])
@pytest.mark.parametrize("message", [[GLOO], REMOTE], ids=["gloo", "nccl"])
@pytest.mark.parametrize("num_ranks", [2, 8, 16])
@pytest.mark.parametrize("is_last", [False, True])
def test_the_error_of_one_rank_below_torchrun_outlives_those_of_all(
    own: str, message: list[str], num_ranks: int, is_last: bool
) -> None:
    frames = [HEAD[0], *HEAD[1:] * 12]
    root = num_ranks - 1
    complaints = [line for rank in range(root) for line in marked([*frames, *message], rank)]
    failed = marked([*frames, own], root)
    order = [*complaints, *failed] if is_last else [*failed, *complaints]
    assert read([*order, *torchrun(num_ranks, root)]) == ScriptError(text=own)
    # torchrun sees the failures of some milliseconds in any order.
    assert read([*order, *torchrun(num_ranks, 0)]) == ScriptError(text=own)
    whole = [*complaints, *marked([*frames, *message], root)]
    assert read([*whole, *torchrun(num_ranks, root)]).is_witness


@pytest.mark.parametrize("code", [-11, -9, 1])
@pytest.mark.parametrize("num_ranks", [2, 8, 16])
def test_a_rank_that_said_nothing_and_failed_first_is_no_witness(num_ranks: int, code: int) -> None:
    complaints = [line for rank in range(num_ranks - 1) for line in marked(raised(*REMOTE), rank)]
    error = read([*complaints, *torchrun(num_ranks, num_ranks - 1, code)])
    assert not error.is_witness
    assert error.text.startswith(f"torchrun saw its rank {num_ranks - 1} fail first, which ")
    # Somebody ended torchrun.
    assert read([*complaints, *torchrun(num_ranks, num_ranks - 1, -15)]).is_witness


def test_exceptions_of_a_rank_that_torchrun_started_anew_count_no_longer(later: Callable[[float], None]) -> None:
    output = kept(LastOutput(), [*marked(raised("ValueError: bad batch"), 1), *PROGRESS["steps"](300)])
    later(3_600.0)
    kept(output, [*marked(raised(GLOO), 0), *torchrun(2, 0)])
    assert script_error(ended(output)).is_witness


@pytest.mark.parametrize(
    "prefix",
    [
        "[2026-11-26 20:00:%02d] ",
        "Nov 26 20:00:%02d ",
        "2026-11-26T20:00:%02d.123Z ",
        "n0: ",
        "0: ",
        "(TrainWorker pid=123) ",
        "[1,0]<stderr>:",
        "[n0:0]",
        "[default0]:",
        "[default0]: ",
        "0|",
    ],
)
@pytest.mark.parametrize("mark", [list, marked])
def test_what_stands_before_each_line_is_no_part_of_it(prefix: str, mark: Callable[[list[str]], list[str]]) -> None:
    def prefixed(lines: Sequence[str]) -> list[str]:
        return [(prefix % (n % 60) if "%" in prefix else prefix) + line for n, line in enumerate(lines)]

    before = PROGRESS["steps"](20)
    assert read(prefixed([*before, *mark(raised(*REMOTE))])).is_witness
    assert read(prefixed([*before, *mark(raised("job.Failed: seven", "  more"))])).text == "job.Failed: seven"
    assert not read(prefixed([*raised(RESET), *before, NAN])).is_witness


def test_prefixes_of_several_processes_keep_their_exceptions_apart() -> None:
    own, complaint = raised("ValueError: bad batch"), raised(GLOO)
    lines = [line for pair in zip(own, complaint, strict=True) for line in (f"0: {pair[0]}", f"1: {pair[1]}")]
    assert read(lines) == ScriptError(text="ValueError: bad batch")
