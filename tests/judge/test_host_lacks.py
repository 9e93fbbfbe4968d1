"""A rank whose host has no thread, process, port or file left for it: any user there may have taken them."""

from __future__ import annotations

import pytest
from event_streams import Stream, on_gpus
from fake_checks import fake_load

from seatrial.evidence.findings import Finding
from seatrial.judge.blame import blame
from seatrial.judge.conclude import conclude
from seatrial.judge.fold import fold
from seatrial.protocol.own_errors import lack_in

LIBGOMP = "libgomp: Thread creation failed: Resource temporarily unavailable"
PHASE = "training/step 3 forward"


def _ended(code: int, *lines: str, gpus: bool = False) -> list[Finding]:
    """Return the findings where rank 1 of four ends with this output; rank 3 sees a communication error."""
    stream = Stream(4, nodes=2).until("training")
    stream.error(3, "fabric", "Connection closed by peer", PHASE)
    stream.exit(1, code, ours=False, phase=PHASE, last_lines=lines)
    dead = {"rank": 1, "how": "dead", "phase": PHASE, "detail": f"exit code {code}"}
    stream.trouble(dead, {"rank": 3, "how": "error", "detail": "fabric"}, waiting=(0, 2))
    stream.kill(0, 2, 3)
    return list(blame(fold((on_gpus(stream) if gpus else stream).close(ranks=False).events)))


def _of_error(cause: str, message: str, *ranks: int) -> list[Finding]:
    stream = Stream(4, nodes=2).until("training")
    for rank in ranks:
        stream.error(rank, cause, message, PHASE)
    stream.trouble(*({"rank": rank, "how": "error", "detail": cause} for rank in ranks))
    stream.kill(0, 1, 2, 3)
    return list(blame(fold(stream.close(ranks=False).events)))


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (1, ("", LIBGOMP)),
        (1, ("OMP: Error #34: System unable to allocate necessary resources for OMP thread:", "OMP: Hint Try")),
        (1, ("OMP: System error #11: Resource temporarily unavailable",)),
        (1, ("Traceback (most recent call last):", "RuntimeError: can't start new thread")),
        (1, ("BlockingIOError: [Errno 11] Resource temporarily unavailable",)),
        (
            -6,
            (
                "terminate called after throwing an instance of 'std::system_error'",
                "  what():  Resource temporarily unavailable",
            ),
        ),
        (-2, ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable",)),
        (
            -11,
            ("OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource temporarily unavailable",),
        ),
    ],
)
def test_a_rank_that_ends_without_a_thread_is_not_named(code: int, lines: tuple[str, ...], gpus: bool) -> None:
    (finding,) = _ended(code, *lines, gpus=gpus)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("error", "none", ())
    assert f'on node gpu-0) got no further thread or process from its host in "{PHASE}": "' in finding.what
    for words in ("pid_max", "ulimit -u", "pids.max", "TasksMax", "memory"):
        assert words in finding.action
    assert any("rank 3" in line and "Connection closed" in line for line in finding.evidence)


def test_the_trial_is_inconclusive() -> None:
    stream = Stream(2).until("training")
    stream.exit(1, 1, ours=False, phase=PHASE, last_lines=(LIBGOMP,))
    stream.trouble({"rank": 1, "how": "dead", "phase": PHASE, "detail": "exit code 1"}, waiting=(0,))
    stream.kill(0)
    assert conclude(stream.close(ranks=False).events, load=fake_load).verdict.status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (1, "another line"),
        (1, f"a file of rank 0 says: {LIBGOMP}"),
        (1, "read: Resource temporarily unavailable"),
        (-9, LIBGOMP),
        (-15, LIBGOMP),
        (-11, "Fatal Python error: Segmentation fault"),
    ],
)
def test_other_ends_name_the_rank(code: int, line: str) -> None:
    (finding,) = _ended(code, line)
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


@pytest.mark.parametrize(("phase", "named"), [("bootstrap/meet at the store", ()), ("training/step 3", (1,))])
def test_a_library_that_lacks_its_second_thread_while_a_group_forms(phase: str, named: tuple[int, ...]) -> None:
    stream = Stream(2).until("bootstrap")
    stream.exit(1, -6, ours=False, phase=phase, last_lines=("terminate called without an active exception",))
    stream.trouble({"rank": 1, "how": "dead", "phase": phase, "detail": "exit code -6"}, waiting=(0,))
    stream.kill(0)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert finding.culprit.ranks == named
    assert ("got no further thread or process from its host" in finding.what) == (named == ())


def test_words_of_the_device_outweigh_it() -> None:
    (finding,) = _ended(1, LIBGOMP, "CUDA error: uncorrectable ECC error encountered", gpus=True)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (1,))


def test_there_is_one_finding_for_each_host() -> None:
    findings = _of_error("processes", "can't start new thread", 0, 1, 2)
    assert [finding.culprit.kind for finding in findings] == ["none", "none"]
    assert "; nor did rank 1; none is left there" in findings[0].what
    assert findings[1].what.startswith("rank 2 ")
    assert "nor did" not in findings[1].what


def test_a_real_fault_beside_it_stays_named() -> None:
    stream = Stream(4, nodes=2).until("training")
    stream.error(0, "device", "CUDA error: uncorrectable ECC error encountered", PHASE)
    stream.error(2, "processes", "can't start new thread", PHASE)
    stream.trouble(*({"rank": rank, "how": "error"} for rank in (0, 2)))
    stream.kill(0, 1, 2, 3)
    named = {finding.severity: finding.culprit.ranks for finding in blame(fold(stream.close(ranks=False).events))}
    assert named == {"fail": (0,), "error": ()}


STORE = "bootstrap/open the store"
NCCL = "NCCL error in: /x/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3\nLast error:\n"
NO_PORT = (
    "The server socket has failed to listen on any local network address. port: 0, useIpv6: false, code: -98, name:"
    " EADDRINUSE, message: address already in use"
)
ACCEPT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /pytorch/gloo/transport/tcp/listener.cc:63] false. accept: Too many open files",
)


def _on_one_machine(cause: str, message: str, phase: str = STORE, *, gpus: bool = False) -> Finding:
    """Return the finding where rank 0 reports this error, and rank 1 that it lost its peer."""
    stream = Stream(2).until(phase.partition("/")[0])
    stream.error(0, cause, message, phase, "DistNetworkError")
    stream.error(1, "fabric", "Connection closed by peer", phase)
    stream.trouble(*({"rank": rank, "how": "error", "detail": cause} for rank in (0, 1)))
    stream.kill(0, 1)
    (finding,) = blame(fold((on_gpus(stream) if gpus else stream).close(ranks=False).events))
    return finding


@pytest.mark.parametrize("phase", [STORE, "bootstrap/meet at the store", "collectives/begin measure"])
@pytest.mark.parametrize(
    ("message", "lack"),
    [
        (NO_PORT, "port"),
        ("[/pytorch/gloo/transport/tcp/listener.cc:38] bind: Address already in use", "port"),
        ("The client socket has failed to connect (errno: 99 - Cannot assign requested address).", "port"),
        ("name: EMFILE, message: too many open files", "open file"),
        ("name: ENFILE, message: file table overflow", "open file"),
        ("Failed to init uv loop", "open file"),
        ("asked for gpu-0: nothing can ask for 'gpu-0': can't start new thread; see", "thread or process"),
        ("send: No buffer space available", "buffer of the network"),
        ("name: ENOMEM, message: not enough memory", "memory"),
    ],
)
def test_what_a_machine_lacks_is_no_communication_inside_it(message: str, lack: str, phase: str) -> None:
    finding = _on_one_machine("fabric", message, phase)
    assert (finding.severity, finding.culprit.kind, finding.culprit.nodes) == ("error", "none", ())
    assert f'on node gpu-0) got no further {lack} from its host in "{phase}": "' in finding.what
    limit = {"port": "ip_local_port_range", "open file": "ulimit -n"}.get(lack, "the memory")
    assert limit in finding.action
    assert any("rank 1" in line and "Connection closed" in line for line in finding.evidence)


@pytest.mark.parametrize(
    "message",
    [
        "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Resource temporarily unavailable",
        "[/pytorch/gloo/transport/tcp/listener.cc:38] bind: Cannot assign requested address",
        "Cannot assign requested address",
        "Connection refused",
    ],
)
def test_a_connection_that_fails_is_no_lack(message: str) -> None:
    finding = _on_one_machine("fabric", message)
    assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")


def test_strangers_may_have_taken_the_files_of_a_rank() -> None:
    """They connect to the port that Gloo keeps open, and a thread of it aborts the process. Its peer suffers."""
    stream, phase = Stream(2).until("collectives"), "collectives/all_gather 8 B"
    stream.error(1, "fabric", "Read error [127.0.0.1]:36501: Connection reset by peer", phase)
    stream.exit(0, -6, ours=False, phase=phase, last_lines=ACCEPT)
    stream.trouble({"rank": 1, "how": "error", "detail": "fabric"}, {"rank": 0, "how": "dead", "phase": phase})
    stream.kill(1)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "rank 0 (Test CPU, local rank 0 on node gpu-0) got no further open file from its host" in finding.what


@pytest.mark.parametrize("nodes", [1, 2])
def test_nccl_without_files_accuses_no_driver(nodes: int) -> None:
    stream = Stream(2, nodes=nodes).until("collectives")
    message = "NCCL error in: /x/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3\nLast error:\n"
    stream.error(0, "setup", f"{message}Call to socket failed: Too many open files", "collectives/begin")
    stream.trouble({"rank": 0, "how": "error", "detail": "setup"}, waiting=(1,))
    stream.kill(0, 1)
    (finding,) = blame(fold(on_gpus(stream.close(ranks=False)).events))
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert "got no further open file from its host" in finding.what


@pytest.mark.parametrize(
    ("code", "line", "lack"),
    [
        (-6, "  what():  Too many open files", "open file"),
        (-6, "  what():  bind: Address already in use", "port"),
        (1, "OSError: [Errno 23] Too many open files in system: '/usr/lib/python3'", "open file"),
        (1, "OSError: [Errno 28] No space left on device", "room on a file system"),
        (1, "OSError: [Errno 122] Disk quota exceeded", "room on a file system"),
        (
            1,
            "RuntimeError: unable to write to file </torch_12_3>: No space left on device (28)",
            "room on a file system",
        ),
        (
            1,
            "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
            "open file",
        ),
    ],
)
def test_an_exception_that_ends_a_rank_tells_what_its_host_lacks(code: int, line: str, lack: str) -> None:
    (finding,) = _ended(code, "a line of output", line)
    assert (finding.severity, finding.culprit.kind) == ("error", "none")
    assert f"got no further {lack} from its host in " in finding.what


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (-6, ("a warning: Too many open files", "  what():  std::bad_alloc")),
        (-11, ("  what():  Too many open files",)),
        (-9, ("  what():  Too many open files",)),
        (1, ("OSError: [Errno 24] Too many open files", "ValueError: another error ended it")),
        (1, ("OSError: [Errno 12] Cannot allocate memory",)),
        (1, ("KeyError: 'Too many open files'",)),
        (1, ("  what():  Too many open files", "ValueError: another error ended it")),
        (-6, ("  what():  Too many open files", "  what():  std::bad_alloc")),
        (-6, ("free(): invalid pointer", "OSError: [Errno 28] No space left on device")),
        (1, ("OSError: [Errno 99] Cannot assign requested address",)),
    ],
)
def test_such_words_elsewhere_excuse_no_rank(code: int, lines: tuple[str, ...]) -> None:
    (finding,) = _ended(code, *lines)
    assert (finding.severity, finding.culprit.ranks) == ("fail", (1,))


def test_a_lack_excuses_no_frozen_rank() -> None:
    stream = Stream(3).until("bootstrap")
    stream.error(0, "fabric", NO_PORT, STORE, "DistNetworkError")
    frozen = {"rank": 2, "how": "frozen", "phase": STORE, "detail": "stopped (T)", "waited_s": 15.0}
    stream.trouble(frozen, {"rank": 0, "how": "error", "detail": "fabric"}, waiting=(1,))
    stream.kill(0, 1, 2)
    (finding,) = blame(fold(stream.close(ranks=False).events))
    assert (finding.severity, finding.culprit.ranks) == ("fail", (2,))


NO_ROOM = "OSError: [Errno 28] No space left on device"
ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (1, (f"RuntimeError: {ECC}", "Exception ignored in atexit callback: <function flush>", NO_ROOM)),
        (-6, (f"  what():  {ECC}", "terminate called recursively", "  what():  Too many open files")),
        (-6, ("  what():  accept: Too many open files", f"  what():  {ECC}")),
    ],
)
def test_words_of_the_device_outweigh_a_lack_at_the_end(code: int, lines: tuple[str, ...]) -> None:
    (finding,) = _ended(code, *lines, gpus=True)
    assert (finding.severity, finding.culprit.kind, finding.culprit.ranks) == ("fail", "rank", (1,))


@pytest.mark.parametrize(
    ("message", "hides"),
    [
        ("[Errno 28] No space left on device: '/tmp/x'", False),
        ("[Errno 98] Address already in use", False),
        ("No buffer space available", False),
        ("[Errno 24] Too many open files", True),
        ("can't start new thread", True),
    ],
)
def test_a_lack_by_which_no_library_aborts_hides_no_abort(message: str, hides: bool) -> None:
    stream = Stream(2).until("training")
    stream.error(0, "processes", message, PHASE)
    stream.exit(1, -6, ours=False, phase=PHASE, last_lines=("double free or corruption (!prev)",))
    dead = {"rank": 1, "how": "dead", "phase": PHASE, "detail": "exit code -6"}
    stream.trouble({"rank": 0, "how": "error", "detail": "processes"}, dead)
    stream.kill(0)
    findings = blame(fold(stream.close(ranks=False).events))
    assert [entry.culprit.ranks for entry in findings if entry.severity == "fail"] == ([] if hides else [(1,)])


@pytest.mark.parametrize(
    "last",
    ["NET/OFI Unable to open endpoint: No space left on device", "mlx5dv_create_qp failed: No space left on device"],
)
def test_an_adapter_without_room_is_no_file_system(last: str) -> None:
    finding = _on_one_machine("fabric", f"{NCCL}{last}", "collectives/begin", gpus=True)
    assert (finding.severity, finding.culprit.kind) == ("fail", "fabric")
    assert "file system" not in finding.what


def test_the_last_error_of_nccl_is_told_once() -> None:
    lines = f"{NCCL}Call to pthread_create failed: Resource temporarily unavailable".splitlines()
    (finding,) = _ended(1, *lines, gpus=True)
    assert finding.what.lower().count("last error") == 1


def test_shared_memory_of_nccl_without_room_is_a_lack() -> None:
    message = f"{NCCL}Error while creating shared memory segment /dev/shm/nccl-x: No space left on device"
    assert getattr(lack_in(message), "name", "") == "room on a file system"
