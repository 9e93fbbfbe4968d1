"""What an agent keeps and sends of the last output of a rank, and how the conductor reads that."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from by_day import by_day

from seatrial.agent.last_output import LastOutput, shown
from seatrial.conductor.program_failures import Exit, ScriptError, script_error

HEAD = "Traceback (most recent call last):"
LOST = "RuntimeError: [/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:63200"
REMOTE = [
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:94, remote process exited, NCCL version 2.28",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:",
    "socketPollConnect: connect to 10.0.0.2<4001> returned Connection refused, exceeded error retry count",
]
BROKEN = [
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:94, unhandled cuda error, NCCL version 2.28",
    "ncclUnhandledCudaError: Call to CUDA function failed.",
    "Last error:",
    "Cuda failure 'uncorrectable ECC error encountered'",
]
OWN = "ValueError: bad sample 17"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, Timeout(ms)=600000) ran for 600029 ms."
WATCHDOG = [
    f"[rank0]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 0] {TIMEOUT}",
    "[rank0]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group"
    f" watchdog thread terminated with exception: [Rank 0] {TIMEOUT}",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    f"  what():  [Rank 0] Process group watchdog thread terminated with exception: [Rank 0] {TIMEOUT}",
]
LINK = ["", "During handling of the above exception, another exception occurred:", ""]
THREADS = [
    line
    for number in range(22)
    for line in (
        f"Thread 0x00007f{number:010x} (most recent call first):",
        *(f'  File "/usr/lib/python3.11/threading.py", line {n} in run' for n in range(8)),
        "",
    )
]
CURRENT = ["Current thread 0x00007f55463c8b80 (most recent call first):", '  File "/job/train.py", line 4 in <module>']


def raised(*message: str, calls: int = 2) -> list[str]:
    frames = [(f'  File "/job/f{n}.py", line {n}, in g', f"    h{n}()", "    ~~^^") for n in range(calls)]
    return [HEAD, *(line for frame in frames for line in frame), *message]


def marked(lines: Sequence[str], rank: int = 0) -> list[str]:
    return [f"[rank{rank}]: {line}" if line else "" for line in lines]


def beats(seconds: int) -> list[str]:
    """Return what the monitor of NCCL prints each second once the store is gone."""
    return [
        line
        for second in range(seconds)
        for line in (
            f"[rank0]:[W1126 10:00:{second:02}.92 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76)",
            "Exception raised from recvBytes at /pytorch/torch/csrc/x/Utils.hpp:675 (most recent call first):",
            "frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7efce05785e8 in libc10.so)",
            "",
            f"[rank0]:[W1126 10:00:{second:02}.930 ProcessGroupNCCL.cpp:1771] [Rank 0] Failed to check the flag",
        )
    ]


def in_thread(*message: str, calls: int = 12) -> list[str]:
    return ["Exception in thread Thread-2 (_pin_memory_loop):", *raised(*message, calls=calls)]


SUMMARY = [f"wandb: {name} 0.1" for name in ("loss", "lr", "grad_norm", "step")] * 4
CPP = ["Exception raised from doWait at /c10d/TCPStore.cpp:603 (most recent call first):", "C++ CapturedTraceback:"]
CPP += [f"#{n} c10d::TCPStore::get(std::string const&) [clone .x] from /src/My Code/x.cpp:{n}" for n in range(4, 200)]
LOGGER = ["--- Logging error ---", *raised("ValueError: I/O operation on closed file."), "Call stack:", "Arguments: ()"]
TASK = ["Task exception was never retrieved", "future: <Task finished name='Task-1'>", *raised(OWN, calls=9)]
LATER = {
    "nothing": [],
    "the monitor of NCCL": beats(3),
    "the monitor of NCCL for a minute": beats(60),
    "a summary": SUMMARY,
    "a long summary": SUMMARY * 8,
    "a thread that raised": in_thread("EOFError"),
    "threads that raised": in_thread("EOFError") * 4,
    "a thread that raised twice": [*in_thread("KeyError: 'a'"), *LINK, *raised(OWN, calls=12)],
    "a thread that lost a connection": in_thread(RESET),
    "a logger": LOGGER,
    "a task": TASK,
    "all": [*beats(3), *SUMMARY, *in_thread(RESET), *LOGGER, *TASK],
}


def sent(lines: Sequence[str], size: int = 1) -> list[str]:
    """Return what an agent sends of the output, which it reads in pieces of so many lines."""
    output = LastOutput()
    for begin in range(0, len(lines), size):
        output.add([line.encode() for line in lines[begin : begin + size]])
    found = output.telling()
    assert len(found) <= 40
    assert all(len(line) <= 500 for line in found)
    assert not lines or found[-1].strip()
    return found


def read(lines: Sequence[str], code: int = 1, size: int = 1) -> ScriptError:
    return script_error(Exit(rank=0, code=code, ours=False, at=0.0, last_lines=tuple(sent(lines, size))))


@pytest.mark.parametrize("size", by_day([1, 100]))
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("before", [[], [OWN], [*SUMMARY * 20], raised(OWN, calls=20), in_thread(OWN)], ids=range(5))
@pytest.mark.parametrize("calls", [2, 40])
def test_what_follows_an_exception_hides_it_not(before: list[str], calls: int, later: list[str], size: int) -> None:
    lost = read([*before, *marked(raised(*REMOTE, calls=calls)), *later], size=size)
    assert lost.is_witness
    assert lost.text == f"{REMOTE[0]}; last error: {REMOTE[3]}"
    for message in ([OWN], BROKEN):
        own = read([*before, *marked(raised(*message, calls=calls)), *later], size=size)
        assert not own.is_witness
        assert own.text.startswith(message[0])
        if later is not LATER["a long summary"]:
            assert read([*raised(LOST), *raised(*message, calls=calls), *later]).text.startswith(message[0])


def test_an_exception_is_shown_with_its_script_and_the_last_lines() -> None:
    lines = sent([*marked(raised(LOST, calls=40)), *SUMMARY])
    assert lines[:2] == marked(raised(LOST))[:2]
    assert lines[-10:] == SUMMARY[-10:]
    assert "  [...]" in lines
    assert lines[lines.index(f"[rank0]: {LOST}") - 1] == "[rank0]:     h39()"
    whole = [line for line in raised(OWN, calls=15) if "^" not in line]
    assert sent(["step 1", *raised(OWN, calls=15)])[-32:] == whole


def test_of_exceptions_that_followed_from_one_another_all_are_sent() -> None:
    chain = [*raised(RESET, calls=20), *LINK, *raised(LOST, calls=20), *LINK, *raised(OWN, calls=20)]
    lines = sent([*marked(chain), *SUMMARY])
    assert all(f"[rank0]: {message}" in lines for message in (RESET, LOST, OWN, LINK[1]))
    assert read([*marked(chain), *SUMMARY]).before == RESET


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_of_one_output_is_sent(num_ranks: int) -> None:
    """A launcher below the agent starts them."""
    ranks = [line for rank in range(1, num_ranks) for line in marked(raised(*REMOTE, calls=20), rank)]
    launcher = raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "train.py FAILED")
    assert read([*marked(raised(OWN, calls=20)), *ranks, *launcher]).text == OWN
    assert read([*ranks, *marked(raised(OWN, calls=20)), *launcher]).text == OWN
    assert read([*ranks, *launcher]).is_witness


def test_a_stack_in_cpp_of_any_form_is_left_out() -> None:
    for mark in (list, marked):
        lines = sent([*mark(raised(LOST)), *mark(CPP), "", *SUMMARY[:2]])
        assert not any(" #" in line or line.startswith("#") or "CapturedTraceback" in line for line in lines)
        assert read([*mark(raised(LOST)), *mark(CPP)]).is_witness
    assert sent(["#1 in line", "#2 of 3: from 8 to 9"]) == ["#1 in line", "#2 of 3: from 8 to 9"]


@pytest.mark.parametrize("size", [1, 1_000])
def test_faulthandler_hides_no_reason(size: int) -> None:
    stacks = ["Fatal Python error: Aborted", "", *THREADS, *CURRENT, "", *THREADS * 3]
    stacks += [*THREADS * 8, "", "Extension modules: numpy.core (total: 30)"]
    assert read([*SUMMARY, *WATCHDOG, *stacks], -6, size=size).is_witness
    lines = sent([*marked(raised(LOST)), *stacks], size=size)
    assert f"[rank0]: {LOST}" in lines
    # Where the signal came tells more than where all the others were.
    assert [line for line in lines if " 0x" in line or '", line 4 in ' in line] == CURRENT
    assert not any('", line 1 in run' in line for line in lines)


@pytest.mark.parametrize("num_later", [0, 10, 100, 5_000])
@pytest.mark.parametrize("size", [1, 1_000])
def test_why_a_library_aborts_a_rank_outlives_any_output(num_later: int, size: int) -> None:
    later = [f"step {number}" for number in range(num_later)]
    lines = sent([*later, *WATCHDOG, *later], size=size)
    assert [line for line in lines if line in WATCHDOG] == WATCHDOG
    assert lines[-1] == [*WATCHDOG, *later][-1]
    assert read([*WATCHDOG, *later], -6, size=size).is_witness


def test_what_the_device_did_is_sent_among_many_such_words() -> None:
    many = [line.replace("[Rank 0]", f"[Rank {n}]") for n in range(20) for line in WATCHDOG[:2]]
    failed = WATCHDOG[1].replace(f"[Rank 0] {TIMEOUT}", "CUDA error: an illegal memory access was encountered")
    assert not read([*many, failed, *many], -6).is_witness


def test_words_of_an_abort_that_a_rank_survived_count_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    output = LastOutput()
    output.add([line.encode() for line in (*WATCHDOG, *(f"step {number}" for number in range(200)))])
    assert WATCHDOG[0] in output.telling()
    later = time.monotonic() + 3_600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert WATCHDOG[0] not in output.telling()
    output.add([WATCHDOG[1].encode()])
    assert WATCHDOG[1] in output.telling()


def test_colors_are_none_of_the_words() -> None:
    colored = [
        HEAD,
        '  File \x1b[35m"/job/t.py"\x1b[0m, line \x1b[35m7\x1b[0m, in \x1b[35mf\x1b[0m',
        f"\x1b[1;35m{BROKEN[0].replace(':', chr(27) + '[0m:', 1)}",
        *BROKEN[1:3],
        f"{BROKEN[3]}\x1b[0m",
    ]
    assert sent(colored) == [HEAD, '  File "/job/t.py", line 7, in f', *BROKEN]
    assert shown(b"\x1b]8;;https://x\x1b\\a link\x1b]8;;\x07 \x1b(Band\x1b[K \x1b[38:5:1mred") == "a link and red"
    assert shown(b"\x1b[") == "\x1b["


def test_a_long_line_keeps_its_beginning_and_its_end() -> None:
    memory = f"torch.OutOfMemoryError: CUDA out of memory. {'It is full. ' * 90}See the manual."
    (*_, line) = sent(raised(memory))
    assert line.startswith("torch.OutOfMemoryError: CUDA out of memory. It is")
    assert line.endswith("full. See the manual.")
    assert "…" in line
    assert not read(raised(memory)).is_witness


def test_the_last_line_has_an_end_or_not_yet() -> None:
    output = LastOutput()
    assert output.last_line() == ""
    output.add([b"step 1", b"", b"  "])
    assert output.last_line() == "step 1"
    assert output.last_line(b"10 %\r20 %\r") == "20 %"


def test_hostile_output_keeps_an_agent_busy_for_no_time() -> None:
    pieces = [
        [b""] * 65_000,
        [b"#1 " + b" from :1" * 8_000],
        [b"\x1b[" * 32_000],
        [b"\x1b]" * 32_000],
        [b"[rank0]:" * 8_000],
        [HEAD.encode()] * 2_000,
        [b"Exception in thread "] * 3_000,
        [b"dump " * 13_000],
        [b"watchdog"] * 8_000,
        [b"^" * 400 + b"x"] * 160,
        [b"  | " * 16_000],
        ["\n".join(CPP).encode()],
        [line.encode() for line in CPP * 10],
    ]
    output, began = LastOutput(), time.process_time()
    for piece in pieces:
        output.add(piece)
        assert len(output.telling()) <= 40
    assert time.process_time() - began < 1.0
