"""The words about a script that failed: who was lost, who only complains, and what the other ranks did."""

from __future__ import annotations

from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

CLOSED = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"
WAITS = [Act(at_s=500.0, what="exit")]


def ends(at_s: float, code: int = 1, last: str = "its last") -> list[Act]:
    return [Act(at_s=at_s, what="exit", code=code, phase="", last=(last,))]


def outcome(*acts: list[Act], nproc_per_node: int = 1) -> dict[str, Any]:
    """Of one script a rank, on two nodes."""
    settings = config(watched=False, nproc_per_node=nproc_per_node)
    return SimulatedProgram(settings, {(0, rank): each for rank, each in enumerate(acts)}).run()


def test_a_peer_that_had_ended_well_is_said() -> None:
    """Batches are not even: rank 1 is through, and rank 0 waits for it in all_reduce."""
    assert outcome(ends(4.8, last=CLOSED), ends(3.0, 0))["text"] == (
        "rank 1 on node n1 had ended with exit code 0, 1.8 s earlier; then rank 0 on node n0 failed with exit code 1"
        " and reported a lost connection: RuntimeError: Connection closed by peer [127.0.0.1]:1234"
    )


def test_the_last_output_is_that_of_the_rank_that_had_left() -> None:
    over = outcome(ends(4.8, last=CLOSED), ends(3.0, 0, last="all batches done"))
    assert over["last_lines"] == ["all batches done"]


def test_ranks_that_had_left_have_their_host() -> None:
    left = [ends(2.0, 0), ends(3.0, 0)]
    on_one = outcome(*left, ends(4.8, last=CLOSED), WAITS, nproc_per_node=2)
    assert on_one["text"].startswith("ranks 0, 1 on node n0 had ended with exit code 0; then rank 2 on node n1 failed")
    assert on_one["last_lines"] == [CLOSED]
    on_two = outcome(left[0], ends(4.8, last=CLOSED), left[1], WAITS, nproc_per_node=2)
    assert on_two["text"].startswith("ranks 0, 2 had ended with exit code 0; then rank 1 on node n0 failed")


def test_what_torch_writes_around_an_error_is_left_out() -> None:
    last = (
        CLOSED
        + ". This is typically caused by a remote worker crashing. Check the logs of it. GLHF! \N{BEACH WITH UMBRELLA}"
    )
    assert outcome(ends(4.8, last=last), ends(3.0, 0))["text"].endswith("Connection closed by peer [127.0.0.1]:1234")
    long = outcome(ends(3.0, 7, last="ValueError: " + "word " * 100), WAITS)["text"]
    assert long.endswith("word word ...")
    assert len(long) < 360


@pytest.mark.parametrize(
    "last",
    [
        "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='nccl', port=80): Max retries exceeded",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/gloo.bin'",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/context.cc:27] rank < size. 3 vs 2",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclInvalidUsage: duplicate GPU detected",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error, NCCL version 2.27.7",
        "RuntimeError: NCCL communicator: CUDA out of memory",
        "torch.distributed.DistNetworkError: The server socket has failed to listen: code: -98, name: EADDRINUSE",
    ],
)
def test_an_error_of_the_script_is_no_lost_connection(last: str) -> None:
    script = {(0, 0): WAITS, (0, 1): ends(3.0, last=last)}
    fleet = SimulatedProgram(config(watched=False, nproc_per_node=1), script)
    over = fleet.run()
    assert over["text"] == f"rank 1 on node n1 failed with exit code 1: {last}"
    assert over["notes"] == ["rank 0 had not exited, and seatrial ended it"]
    # Nobody waits for the news of a lost node.
    assert fleet.asked("terminate")[0][0] < 7


_WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:2068] [PG ID 0 Rank 0] Process group watchdog thread terminated with"


@pytest.mark.parametrize(
    ("last", "blamed"),
    [
        (f"{_WATCHDOG} exception: NCCL error: remote process exited or there was a network error", 1),
        ("terminate called after throwing an instance of 'gloo::EnforceNotMet'", 1),
        (f"{_WATCHDOG} exception: CUDA error: uncorrectable ECC error encountered", 0),
        ("double free or corruption (out)", 0),
    ],
)
def test_a_library_that_aborts_a_rank_for_a_peer_blames_it_for_nothing(last: str, blamed: int) -> None:
    text = outcome(ends(3.0, -6, last=last), ends(3.9, 3), WAITS, WAITS, nproc_per_node=2)["text"]
    assert text.startswith(f"rank {blamed} on")


def test_a_store_that_is_gone_is_a_lost_peer() -> None:
    last = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed."
    assert outcome(ends(3.0, last=last), ends(3.9, 3))["text"].startswith("rank 1 on")


def test_all_that_complain_of_one_another_have_lost_the_connection() -> None:
    over = outcome(ends(3.0, last=CLOSED), ends(3.5, last=CLOSED), ends(3.6, last=CLOSED), WAITS, nproc_per_node=2)
    assert over["text"].startswith(
        "connection between ranks lost; rank 0 on node n0 failed with exit code 1 and reported"
    )
    assert over["text"].endswith("; rank 3 had not exited, and seatrial ended it")


def test_a_line_that_is_no_error_is_no_reason() -> None:
    assert outcome(ends(3.0, 3, last="hello from rank 0"), WAITS)["text"] == (
        'rank 0 on node n0 failed with exit code 3 without a traceback; its last line: "hello from rank 0"'
    )
    assert outcome(ends(3.0, 3, last=" "), WAITS)["text"] == "rank 0 on node n0 failed with exit code 3"


def test_an_exception_with_any_name_is_a_reason() -> None:
    last = ("Traceback (most recent call last):", '  File "x.py", line 3, in <module>', "queue.Empty")
    acts = [Act(at_s=3.0, what="exit", code=1, phase="", last=last)]
    assert outcome(acts, WAITS)["text"] == "rank 0 on node n0 failed with exit code 1: queue.Empty"


def test_the_ranks_beside_the_one_that_failed() -> None:
    over = outcome(ends(1.0, 0), ends(2.0, 0), ends(3.0, 7), WAITS, nproc_per_node=2)
    assert over["text"] == ('rank 2 on node n1 failed with exit code 7 without a traceback; its last line: "its last"')
    assert over["notes"] == ["ranks 0, 1 had ended with exit code 0; rank 3 had not exited, and seatrial ended it"]
    many = outcome(ends(1.0), *[WAITS] * 19, nproc_per_node=10)
    assert many["notes"] == ["ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more had not exited, and seatrial ended them"]


def test_a_rank_that_failed_later_was_not_ended_by_us() -> None:
    over = outcome(ends(3.0, 7), ends(3.6), ends(3.7), WAITS, nproc_per_node=2)
    assert over["notes"] == ["ranks 1, 2 failed afterwards; rank 3 had not exited, and seatrial ended it"]


def test_ranks_that_failed_at_the_same_time_are_listed() -> None:
    over = outcome(ends(3.0, 7), ends(3.1), ends(3.2), ends(3.7), nproc_per_node=2)
    assert over["notes"] == ["ranks 1, 2 failed at the same time; rank 3 failed afterwards"]


def test_all_ranks_that_failed_alike_are_one_phrase() -> None:
    over = outcome(ends(3.0, 2), ends(3.1, 2), ends(3.2, 2), ends(3.7, 2), nproc_per_node=2)
    assert over["notes"] == ["all 4 ranks failed with exit code 2"]
    assert outcome(ends(3.0, 7), ends(3.1, 7))["notes"] == ["both ranks failed with exit code 7"]


def test_of_several_nodes_on_one_machine_the_number_is_said() -> None:
    settings = config(watched=False, nproc_per_node=1, hosts=("vm", "vm"))
    over = SimulatedProgram(settings, {(0, 1): ends(3.0, 7), (0, 0): WAITS}).run()
    assert over["text"].startswith("rank 1 on node 1 (vm) failed with exit code 7")


@pytest.mark.parametrize("code", [-9, 137])
def test_a_sigkill_says_where_to_look(code: int) -> None:
    over = outcome(ends(3.0, code), ends(3.1))
    assert over["notes"] == [
        "rank 1 failed at the same time",
        "SIGKILL comes from the kernel when memory runs out, from a scheduler or from a person: see dmesg on node n0,"
        " and the memory limit of its job, container or cgroup",
    ]


def test_a_script_that_is_not_on_its_host_is_told_so() -> None:
    last = "python3: can't open file '/root/train.py': [Errno 2] No such file or directory"
    over = outcome(ends(3.0, 2, last=last), WAITS)
    assert over["notes"][-1] == (
        "the script is not on node n0, or not at that path: copy it there, or start it in a folder that all hosts share"
    )


def test_a_script_that_is_nowhere_is_told_so() -> None:
    last = "python3: can't open file '/root/trian.py': [Errno 2] No such file or directory"
    settings = config(watched=False, hosts=("n0", "n1"), lacks_script_here=True)
    over = SimulatedProgram(
        settings, {(0, 0): ends(3.0, 2, last=last)} | {(0, rank): WAITS for rank in (1, 2, 3)}
    ).run()
    assert over["notes"][-1] == "the script is not on node n0, and not on this machine either: check its path"


def test_a_torch_without_libuv_is_told_what_helps() -> None:
    last = "RuntimeError: use_libuv was requested but PyTorch was build without libuv support"
    over = outcome(ends(3.0, last=last), WAITS)
    assert over["notes"][-1] == "this torch was built without libuv: launch the script with --env USE_LIBUV=0"


def test_a_torch_without_mpi_is_told_of_the_backend_that_works_with_it() -> None:
    last = "RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build PyTorch from"
    over = outcome(ends(3.0, last=last), WAITS)
    assert over["notes"][-1] == (
        "this torch was built without MPI: in the script, import seatrial.mpi, name its BACKEND in place of"
        ' "mpi", and use --on mpirun (docs/mpi.md)'
    )


@pytest.mark.parametrize("exception", ["torch.AcceleratorError", "RuntimeError"])
def test_a_rank_whose_link_to_another_gpu_fails_is_a_witness(exception: str) -> None:
    """The healthy end of an NVLink says so before the other one, whose GPU is lost."""
    healthy = f"{exception}: CUDA error: uncorrectable NVLink error detected during the execution"
    lost = f"{exception}: CUDA error: unspecified launch failure"
    text = outcome(ends(3.0, last=healthy), ends(3.3, last=lost))["text"]
    assert text.startswith("rank 1 on node n1 failed with exit code 1")
