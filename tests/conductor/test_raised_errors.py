"""The exceptions in the output of a program, each with its whole message, in the forms that Python and torch print."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

from seatrial.conductor.program_failures import Exit, fabric_error
from seatrial.conductor.raised_errors import raised

HEAD = "Traceback (most recent call last):"
FRAMES = [HEAD, '  File "/job/train.py", line 7, in <module>', "    dist.all_reduce(loss)"]
LINK = ["", "During handling of the above exception, another exception occurred:", ""]
CAUSE = ["", "The above exception was the direct cause of the following exception:", ""]


def nccl(kind: str, words: str, last: str) -> list[str]:
    """Return the message of torch for an error of NCCL, as in NVIDIA/nccl#1928 and pytorch/pytorch#177472."""
    return [
        f"torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/x.cpp:3763, {kind}, NCCL version 2.28",
        words,
        "Last error:",
        last,
    ]


REMOTE = nccl(
    "remote process exited or there was a network error",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "NET/OFI Request 0x7f14cc5b60c0 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0",
)
SYSTEM = nccl(
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    "socketStartConnect: Connect to 10.0.0.2<40001> failed : Connection refused",
)
INTERNAL = nccl(
    "internal error", "ncclInternalError: Internal check failed.", "Net : Connection closed by remote peer a<5>"
)
USAGE = nccl(
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
)
CUDA = "ncclUnhandledCudaError: Call to CUDA function failed."
BROKEN = nccl("unhandled cuda error", CUDA, "Cuda failure 214 'uncorrectable ECC error encountered'")
INSIDE = nccl("internal error", "ncclInternalError: Internal check failed.", "Cuda failure 719 'launch failure'")
SWITCH = [
    *nccl(
        "unhandled cuda error",
        CUDA,
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be"
        " performed in the present state'.",
    ),
    "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
]
GLOO = ["RuntimeError: [/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:63200"]
BARRIER = [
    "RuntimeError: Rank 0 successfully reached monitoredBarrier, but received errors while waiting for send/recv from"
    " rank 1. Please check rank 1 logs for faulty rank.",
    " Original exception: ",
    "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234",
]
OWN = ["ValueError: bad batch"]
RESET = ["ConnectionResetError: [Errno 104] Connection reset by peer"]
NOISE = "[W819 19:29:00.828 ProcessGroupNCCL.cpp:1168] Warning: process group has NOT been destroyed before we destruct"


def marked(lines: list[str], rank: int = 0, *, torchrun: bool = False) -> list[str]:
    before = f"[default{rank}]:" if torchrun else ""
    return [f"{before}[rank{rank}]: {line}" if line else "" for line in lines]


def of_group(*messages: list[str]) -> list[str]:
    subs = [
        [f"    +---------------- {n + 1} ----------------", *(f"    | {line}" for line in (*FRAMES, *message))]
        for n, message in enumerate(messages)
    ]
    subs[0][0] = "  +-+---------------- 1 ----------------"
    return [
        f"  + Exception Group {HEAD}",
        '  |   File "/job/train.py", line 9, in <module>',
        "  |     raise ExceptionGroup('workers', errors)",
        f"  | ExceptionGroup: workers ({len(messages)} sub-exceptions)",
        *(line for sub in subs for line in sub),
        "    +------------------------------------",
    ]


def complains(lines: list[str], code: int = 1) -> bool:
    return bool(fabric_error(Exit(rank=0, code=code, ours=False, at=0.0, last_lines=tuple(lines))))


IGNORED = ["Exception ignored in: <function Loader.__del__ at 0x7f>", *FRAMES, "AttributeError: 'NoneType' object"]
STACK = ["Exception raised from checkForNCCLErrors at /x.cpp:1723 (most recent call first):", "frame #0: c10::Error::"]
ELASTIC = [*FRAMES, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "train.py FAILED"]


ASIDE_PRINTED = [
    ["--- Logging error ---", *FRAMES, "ValueError: I/O operation on closed file.", "Call stack:", "Arguments: ()"],
    ["Task exception was never retrieved", "future: <Task finished exception=ValueError('x')>", *FRAMES, *OWN],
    ["Exception in callback f()", "handle: <Handle f()>", *FRAMES, *OWN],
    ["Exception in thread Thread-2 (run):", *FRAMES, "KeyError: 'a'", *LINK, *FRAMES, *OWN],
    ["Exception in thread Thread-2 (run):", *of_group(OWN, OWN)],
]
"""An exception that does not end the program, as the library of Python prints it."""


@pytest.mark.parametrize("message", [REMOTE, SYSTEM, INTERNAL, SWITCH, GLOO, BARRIER])
@pytest.mark.parametrize(
    "printed",
    [
        lambda message: [*FRAMES, *message],
        lambda message: marked([*FRAMES, *message]),
        lambda message: marked([*FRAMES, *message], torchrun=True),
        # Only the end of the traceback is left.
        lambda message: ["    return self._all_reduce(x)", *message],
        lambda message: [*message, "step 8 was not begun"],
        lambda message: [*FRAMES, *message, *STACK],
        lambda message: marked([*FRAMES, *message, *STACK]),
        lambda message: [*FRAMES, *message, NOISE],
        lambda message: [*marked([*FRAMES, *message]), f"[rank0]:{NOISE}"],
        lambda message: [*FRAMES, *message, *CAUSE, *FRAMES, "RuntimeError: the training has failed"],
        lambda message: [*FRAMES, *message, *CAUSE, *FRAMES, "job.TrainError: step 7"],
        lambda message: [*message, *CAUSE, *FRAMES, "job.TrainError: step 7"],
        lambda message: marked([*FRAMES, *message, *LINK, *FRAMES, "OSError: [Errno 5] no checkpoint"]),
        # A value was missing, and others were asked for it.
        lambda message: [*FRAMES, "KeyError: 'mean'", *LINK, *FRAMES, *message],
        lambda message: [*FRAMES, *message, *IGNORED],
        lambda message: [*marked([*FRAMES, *message]), *IGNORED],
        *(
            lambda message, aside=aside, mark=mark: [*mark([*FRAMES, *message]), *aside]
            for aside in ASIDE_PRINTED
            for mark in (list, marked)
        ),
        lambda message: of_group(message, message),
        lambda message: [*marked([*FRAMES, *message], 0), *marked([*FRAMES, *message], 1), *ELASTIC],
        lambda message: [
            line
            for pair in zip(marked([*FRAMES, *message], 0), marked([*FRAMES, *message], 1), strict=True)
            for line in pair
        ],
    ],
    ids=range(29),
)
def test_a_rank_that_lost_a_peer_is_a_witness(printed: object, message: list[str]) -> None:
    assert callable(printed)
    assert complains(printed(message))


@pytest.mark.parametrize("message", [USAGE, BROKEN, INSIDE, OWN])
@pytest.mark.parametrize(
    "printed",
    [
        lambda message: [*FRAMES, *message],
        lambda message: marked([*FRAMES, *message]),
        lambda message: ["    return self._all_reduce(x)", *message],
        lambda message: [*FRAMES, *message, NOISE],
        lambda message: [*FRAMES, *message, "n1:12:34 [0] NCCL INFO comm 0x1 rank 0 - Abort COMPLETE", NOISE],
        lambda message: [*FRAMES, *message, *IGNORED],
        lambda message: [*FRAMES, *message, "Exception in thread Thread-2 (run):", *FRAMES, *RESET],
        lambda message: [*FRAMES, *message, *ASIDE_PRINTED[3][:-1], *RESET],
        lambda message: of_group(message),
        # An exception that the script had caught before, and had nothing to do with this one.
        lambda message: [*FRAMES, *GLOO, "connected again", *FRAMES, *message],
        lambda message: [*FRAMES, *REMOTE, *marked([*FRAMES, *message])],
        # One of several ranks in the same output.
        lambda message: [*marked([*FRAMES, *message], 0), *marked([*FRAMES, *REMOTE], 1), *ELASTIC],
        lambda message: [*marked([*FRAMES, *REMOTE], 0), *marked([*FRAMES, *message], 1), *ELASTIC],
    ],
    ids=range(13),
)
def test_a_rank_that_failed_by_itself_is_none(printed: object, message: list[str]) -> None:
    assert callable(printed)
    assert not complains(printed(message))


@pytest.mark.parametrize("message", [BROKEN, INSIDE, USAGE])
def test_what_the_device_did_first_counts(message: list[str]) -> None:
    assert not complains([*FRAMES, *message, *LINK, *FRAMES, *REMOTE])
    assert not complains([*FRAMES, *message, *CAUSE, *FRAMES, "job.TrainError: step 7"])


def test_a_host_on_the_internet_is_no_peer() -> None:
    assert complains([*FRAMES, *RESET])
    assert not complains([*FRAMES, *RESET, *LINK, *FRAMES, "requests.exceptions.ConnectionError: ('aborted', 104)"])


WATCHDOG = "[rank1]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group"


@pytest.mark.parametrize(
    ("message", "is_witness"), [(REMOTE, True), (SYSTEM, True), (SWITCH, True), (BROKEN, False), (INSIDE, False)]
)
def test_what_the_watchdog_says_is_read_to_its_end(message: list[str], is_witness: bool) -> None:
    first = f"watchdog thread terminated with exception: {message[0].partition(': ')[2]}"
    lines = [f"{WATCHDOG} {first}", *message[1:], *STACK]
    lines += ["", "terminate called after throwing an instance of 'c10::DistBackendError'"]
    lines += [f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group {first}", *message[1:], *STACK]
    assert complains(lines, -6) == is_witness
    assert complains([line for line in lines if line][-10:], -6) == is_witness


def test_an_error_that_a_script_prints_is_read_as_well() -> None:
    assert complains(["job has failed", REMOTE[0].partition(": ")[2], *REMOTE[1:]])
    assert not complains(["job has failed", BROKEN[0].partition(": ")[2], *BROKEN[1:]])


def test_a_node_without_power_is_named_and_not_the_witness() -> None:
    waits = [Act(at_s=500.0, what="exit")]
    ends = [Act(at_s=3.0, what="exit", code=1, phase="", last=tuple(marked([*FRAMES, *REMOTE])))]
    settings = config(watched=False, nproc_per_node=1)
    lost = SimulatedProgram(settings, {(0, 0): ends, (0, 1): waits}, at_s=[(2.5, lambda fleet: fleet.mute(1))])
    assert lost.run()["text"].startswith("node 1 (n1) was lost")
    died = [Act(at_s=3.9, what="exit", code=3, phase="", last=("boom",))]
    assert SimulatedProgram(settings, {(0, 0): ends, (0, 1): died}).run()["text"].startswith("rank 1 on node n1")


def test_the_last_error_of_nccl_is_said() -> None:
    acts = [Act(at_s=3.0, what="exit", code=1, phase="", last=(*FRAMES, *BROKEN))]
    settings = config(watched=False, nproc_per_node=1)
    text = SimulatedProgram(settings, {(0, 0): acts, (0, 1): [Act(at_s=500.0, what="exit")]}).run()["text"]
    assert text == f"rank 0 on node n0 failed with exit code 1: {BROKEN[0]}; last error: {BROKEN[3]}"


def test_an_exception_after_a_group_is_none_of_it() -> None:
    assert complains([*of_group(OWN, OWN), *FRAMES, *REMOTE])
    assert complains([*ASIDE_PRINTED[4], *FRAMES, *REMOTE, *IGNORED])
    assert not complains([*ASIDE_PRINTED[4], *FRAMES, *OWN, "Exception in thread Thread-3 (run):", *FRAMES, *RESET])


def test_each_rank_has_its_exceptions() -> None:
    lines = [*marked([*FRAMES, *OWN], 0), *marked([*FRAMES, *GLOO, *LINK, *FRAMES, *OWN], 1), "", *FRAMES, *REMOTE]
    assert [(chain.rank, chain.messages) for chain in raised(lines)] == [(0, OWN), (1, [*GLOO, *OWN])]
    assert raised(["step 1", "step 2"]) == []
    assert raised([*FRAMES]) == []
    (chain,) = raised([*FRAMES, "queue.Empty"])
    assert chain.messages == ["queue.Empty"]


TOP = "╭───────────────────── Traceback (most recent call last) ──────────────────────╮"
BOX = [TOP, "│ /job/train.py:7 in gen" + " " * 56 + "│", "╰" + "─" * 78 + "╯"]
"""What rich prints without a terminal, at 80 columns; a word that has no room in them fills a line."""
ASCII_BOX = ["+-------------------- Traceback (most recent call last) ---------------------+", "| x |", f"+{'-' * 78}+"]
RICH_GLOO = [
    "RuntimeError: ",
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] ",
    "Connection closed by peer [10.0.0.2]:63200",
]
RICH_LONG = [
    "RuntimeError: ",
    "[/" + "x" * 60 + "/gloo/gloo/transpo",
    "rt/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:63200" + "1" * 18,
    "and more",
]
RICH_STORE = ["DistNetworkError: The client socket has failed to connect to any network address", "of (h, 1)."]
RICH_TIMEOUT = [
    "RuntimeError: ",
    "[/" + "x" * 50 + "/unbound_buffer.cc:78] Timed",
    "out waiting 1800000ms for recv operation to complete",
]
RICH_BROKEN = [
    "DistBackendError: NCCL error in: ",
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run",
    "with NCCL_DEBUG=INFO for details), NCCL version 2.26.2",
    "ncclUnhandledCudaError: Call to CUDA function failed.",
    "Last error:",
    "Cuda failure 'uncorrectable ECC error encountered'",
]
RICH_MEMORY = [
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ",
    "capacity of 1 GiB.",
]


@pytest.mark.parametrize("box", [BOX, ASCII_BOX, BOX[1:], BOX[2:]])
@pytest.mark.parametrize("mark", [list, marked])
@pytest.mark.parametrize(
    ("message", "is_witness"),
    [
        (RICH_GLOO, True),
        (RICH_LONG, True),
        (RICH_STORE, True),
        (RICH_TIMEOUT, True),
        (RICH_BROKEN, False),
        (RICH_MEMORY, False),
        (OWN, False),
    ],
)
def test_lines_that_rich_has_broken_are_read_as_one(
    box: list[str], mark: Callable[[list[str]], list[str]], message: list[str], is_witness: bool
) -> None:
    assert complains(mark([*box, *message])) == is_witness
    assert complains(mark([*box, *message, CAUSE[1], *BOX, *OWN])) == is_witness
    assert complains(mark([*box, *OWN, LINK[1], *BOX, *message])) == is_witness


def test_a_message_that_rich_has_broken_is_one_text() -> None:
    (chain,) = raised([*BOX, *RICH_GLOO])
    assert chain.messages == ["".join(RICH_GLOO)]
    (chain,) = raised([*BOX, *RICH_BROKEN])
    assert chain.messages[0].splitlines()[0] == f"{RICH_BROKEN[0]}{RICH_BROKEN[1]} {RICH_BROKEN[2]}"
    assert chain.messages[0].splitlines()[1:] == RICH_BROKEN[3:]
    assert raised([*BOX[2:], "the settings of this run are above", "step 1"]) == []


@pytest.mark.parametrize("name", ["RuntimeError", "ConnectionResetError"])
@pytest.mark.parametrize("where", ["DataLoader worker process 0", "pin memory thread for device 0"])
@pytest.mark.parametrize("cut", [0, 3, 4])
def test_an_error_of_a_worker_that_loads_data_is_no_complaint(name: str, where: str, cut: int) -> None:
    worker = [f"Original {HEAD}", *FRAMES[1:], *[line for line in LINK if line], *FRAMES]
    lines = [*FRAMES, f"{name}: Caught {name} in {where}.", *worker, RESET[0], "", "step 8 was not begun"]
    assert not complains(lines[cut:])
    assert not complains(marked(lines)[cut:])
    # What came later is one.
    assert complains([*lines, *FRAMES, *GLOO])


def test_the_exception_of_a_launcher_says_only_that_its_rank_failed() -> None:
    ended = "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'x.py']' returned non-zero exit status 1."
    assert complains([*FRAMES, *GLOO, *FRAMES, ended])
    assert not complains([*FRAMES, *OWN, *FRAMES, ended])
    assert not complains([*FRAMES, ended])


CRASHES = [
    [],
    ["free(): invalid pointer"],
    ["pure virtual method called", "terminate called without an active exception"],
    ["terminate called after throwing an instance of 'std::system_error'", "  what():  Resource deadlock avoided"],
    ["Fatal Python error: Segmentation fault", "", "Current thread 0x00007f (most recent call first):", '  File "x"'],
    [
        "Fatal Python error: _enter_buffered_busy: could not acquire lock for <_io.BufferedWriter name='<stdout>'> at"
        " interpreter shutdown, possibly due to daemon threads",
        "Python runtime state: finalizing (tstate=0x0000)",
        "<no Python frame>",
    ],
]


@pytest.mark.parametrize("code", [-6, -7, -11, -13])
@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("message", [REMOTE, SYSTEM, INTERNAL, GLOO, BARRIER, RICH_GLOO])
def test_a_rank_that_crashes_after_its_complaint_stays_a_witness(
    code: int, crash: list[str], message: list[str]
) -> None:
    head = BOX if message is RICH_GLOO else FRAMES
    assert complains([*marked([*head, *message]), *crash], code)
    assert complains([*marked([*head, *message]), "wandb: run finished", *crash], code)
    assert complains([*head, *message, *crash], code)
    assert complains([*head, *message, NOISE, *crash], code)
    # Killed from outside, which is no end of the rank's own making.
    assert not complains([*marked([*head, *message]), *crash], -9)
    assert not complains([*marked([*head, *OWN]), *crash], code)


@pytest.mark.parametrize("crash", CRASHES[:2])
@pytest.mark.parametrize("code", [-6, -11])
def test_a_rank_that_crashes_long_after_a_complaint_is_no_witness(code: int, crash: list[str]) -> None:
    """Without the mark of torch a script may have caught the exception and gone on."""
    assert not complains([*FRAMES, *GLOO, "connected again", *crash], code)
    assert not complains([*FRAMES, *GLOO, NOISE, "step 8", *crash], code)
    assert not complains(["step 8", *crash], code)


@pytest.mark.parametrize(
    "error",
    [
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionResetError: [Errno 104] Die Verbindung wurde vom Kommunikationspartner zurückgesetzt",
        "ConnectionAbortedError: [Errno 103] Le logiciel a provoqué l'abandon de la connexion",
        "mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure",
        "mpi4py.MPI.Exception: MPIX_ERR_REVOKED: Communicator revoked",
        "RuntimeError: [/opt/pytorch/torch/csrc/distributed/c10d/ProcessGroupUCC.cpp:488] [Rank 0][ProcessGroupUCC-0]"
        "[COLL_POST] allreduce failed, error code -6: Operation timed out",
        "RuntimeError: oneCCL: ze_handle_exchange.cpp:99 mem_handle_exchange: EXCEPTION: recvmsg: Connection reset",
        "RuntimeError: Broken pipe",
        "RuntimeError: Connection reset by peer",
        "RuntimeError: Connection closed by peer [10.0.0.2]:63200",
        "RuntimeError: the step has failed: Connection closed by peer [10.0.0.2]:63200",
        "RuntimeError: [7] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value"
        " store by key '0', but store->get('0') got error: Broken pipe.",
        "RuntimeError: eof (this error originated at tensorpipe/transport/uv/connection_impl.cc:132)",
        "RuntimeError: Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels",
        "RuntimeError: Gloo connectFullMesh failed with [/x.cc:1] timed out connecting",
        "horovod.common.exceptions.HorovodInternalError: [/tmp/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.2]:1:"
        " Connection reset by peer",
        "jaxlib.xla_extension.XlaRuntimeError: UNKNOWN: Gloo all-reduce failed: Connection closed by peer [10.0.0.2]:1",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has"
        " failed.",
    ],
)
def test_words_about_a_peer_make_a_witness(error: str) -> None:
    assert complains([*FRAMES, error])
    assert complains(marked([*FRAMES, error]))


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Input tensor data type is not supported for NCCL process group: Short",
        "RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (2), got (3))",
        "RuntimeError: config error: backend must be one of nccl, gloo; got 'ncl'",
        "RuntimeError: Cannot use ReduceOp.BAND with NCCL",
        "RuntimeError: PreMulSum is only for NCCL backend",
        "RuntimeError: Could not reach the metadata server: Connection refused",
        "RuntimeError: [/__w/gloo/gloo/transport/tcp/device.cc:128] error resolving hostname",
        "RuntimeError: [/x/ProcessGroupUCC.cpp:488] [Rank 0][ProcessGroupUCC-0] error code -3: Invalid parameter",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='x', port=80): Max retries exceeded with url: /"
        " (Caused by NewConnectionError('[Errno 111] Connection refused'))",
        "ConnectionError: HTTPConnectionPool(host='x', port=80): Max retries exceeded with url: / (Caused by"
        " NewConnectionError(': [Errno 111] Connection refused'))",
        "urllib.error.URLError: <urlopen error [Errno 104] Connection reset by peer>",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
    ],
)
def test_the_name_of_a_library_or_a_host_makes_no_witness(error: str) -> None:
    assert not complains([*FRAMES, error])
    assert not complains(marked([*FRAMES, error]))


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("internal error - please report this issue to the NCCL developers", "Bootstrap : no socket interface found"),
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "Cuda failure 101 'invalid device ordinal'"),
    ],
)
def test_what_a_host_lacks_is_no_complaint(kind: str, last: str) -> None:
    assert not complains([*FRAMES, *nccl(kind, "ncclInternalError: Internal check failed.", last)])


def test_colors_hide_no_exception() -> None:
    colored = "\x1b[1;35mRuntimeError\x1b[0m: \x1b[35m{}\x1b[0m"
    assert complains([*FRAMES, colored.format(GLOO[0].partition(": ")[2])])
    url = "\x1b[1;35murllib.error.URLError\x1b[0m: \x1b[35m<urlopen error [Errno 111] Connection refused>\x1b[0m"
    assert not complains([*FRAMES, url])
