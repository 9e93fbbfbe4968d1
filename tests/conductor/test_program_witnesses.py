"""Ranks of a program that a library aborts, or that crash after they complained: others are named for their fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

HEAD = ("Traceback (most recent call last):", '  File "/job/train.py", line 7, in <module>')
NCCL = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.7",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "Last error:",
    "NET/IB: Got completion from peer 10.0.0.1<4001> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
)
GROUP = "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
THROWN = "terminate called after throwing an instance of 'c10::DistBackendError'"
CAUGHT = (
    "[rank3]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:683] [Rank 3] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds"
)


def watchdog(*error: str) -> tuple[str, ...]:
    first, *more = error
    return (f"[rank3]:[E1126 10:00:00.1 ProcessGroupNCCL.cpp:2068] {GROUP}{first}", *more, THROWN)


REMOTE, TIMEOUT = watchdog(*NCCL), (CAUGHT, THROWN)
GLOO_ABORTS = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /x/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
)
BROKEN = watchdog("CUDA error: uncorrectable ECC error encountered")
RUNS = [Act(at_s=900.0, what="move")]
COMPLAINT = tuple(f"[rank3]: {line}" for line in (*HEAD, f"torch.distributed.DistBackendError: {NCCL[0]}", *NCCL[1:]))
BUG = (*HEAD, "ValueError: bad sample 17")


def ends(at_s: float, code: int, last: tuple[str, ...], *, error: str = "") -> list[Act]:
    """``error``: the cause that the rank reports itself before that."""
    reported = [Act(at_s=at_s - 0.1, what="error", cause=error)] if error else []
    return [*reported, Act(at_s=at_s, what="exit", code=code, last=last)]


def lose_node_0(fleet: SimulatedProgram) -> None:
    fleet.mute(0)


def outcome(
    *acts: list[Act], watched: bool = False, at_s: list[tuple[float, Callable[[SimulatedProgram], None]]] | None = None
) -> dict[str, Any]:
    """``acts``: those of ranks 0 and 1 of node 0, and of 2 and 3 of node 1."""
    script = {(0, rank): each for rank, each in enumerate(acts)}
    return SimulatedProgram(config(watched=watched), script, at_s=at_s or []).run()


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("last", [REMOTE, TIMEOUT, GLOO_ABORTS])
def test_a_rank_that_a_library_aborts_is_a_witness(*, watched: bool, last: tuple[str, ...]) -> None:
    lost = outcome(RUNS, RUNS, RUNS, ends(22.0, -6, last), watched=watched, at_s=[(20.0, lose_node_0)])
    assert lost["text"].startswith("node 0 (n0) was lost")
    aborted = ends(20.0, -6, last)
    over = outcome(ends(20.6, 1, BUG, error="own"), RUNS, RUNS, aborted, watched=watched)
    assert over["text"].startswith("rank 0 on node n0 failed with exit code 1")
    alone = outcome(RUNS, ends(20.3, -6, last), RUNS, aborted, watched=watched)
    assert not alone["text"].startswith("rank ")
    assert alone["last_lines"] == list(last)


def test_a_stopped_rank_is_named_and_not_the_one_that_waited() -> None:
    stopped = [Act(at_s=5.0, what="stop"), *RUNS]
    over = outcome(stopped, RUNS, RUNS, ends(15.0, -6, TIMEOUT), watched=True)
    assert over["text"].startswith("rank 0 on node n0 made no progress for 15 s")


def test_where_the_ranks_are_that_others_gave_up_on() -> None:
    """A training whose rank 3 hung while it loaded its data said only that rank 0 had lost the connection."""
    loads = Act(at_s=1.0, what="move", phase="load data", number=2)
    gave_up = ends(30.0, 1, (), error="fabric")
    over = outcome(gave_up, RUNS, RUNS, [loads, *RUNS], watched=True)
    assert over["text"].startswith("connection between ranks lost; rank 0 on node n0 failed with exit code 1 and ")
    assert over["notes"] == ['rank 3 on node n1 had been in "load data" for 29 s']
    over = outcome(gave_up, RUNS, [loads, *RUNS], [loads, *RUNS], watched=True)
    assert over["notes"] == ['ranks 2, 3 had been in "load data" for 29 s']
    never = [Act(at_s=0.0, what="move", phase="", number=0)]
    over = outcome(gave_up, RUNS, RUNS, never, watched=True)
    assert over["notes"] == ["rank 3 on node n1 had entered no phase for 30 s"]
    just_behind = [replace(loads, at_s=27.0), *RUNS]
    assert "notes" not in outcome(gave_up, RUNS, RUNS, just_behind, watched=True)
    assert "notes" not in outcome(ends(30.0, 1, BUG, error="own"), RUNS, RUNS, [loads, *RUNS], watched=True)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("last", [BROKEN, (*REMOTE, *BROKEN), ("free(): invalid pointer",)])
def test_a_rank_that_its_device_or_itself_ends_is_named(*, watched: bool, last: tuple[str, ...]) -> None:
    over = outcome(RUNS, RUNS, RUNS, ends(20.0, -6, last), watched=watched)
    assert over["text"].startswith("rank 3 on node n1 was killed by signal 6 (SIGABRT)")


def test_a_device_that_ends_a_rank_after_its_complaint_is_named() -> None:
    """NCCL may hear of the device before the device says so."""
    over = outcome(RUNS, RUNS, RUNS, ends(20.0, -6, BROKEN, error="fabric"), watched=True)
    assert over["text"].startswith("rank 3 on node n1 was killed by signal 6 (SIGABRT)")
    assert "CUDA error: uncorrectable ECC error encountered" in over["text"]
    witness = outcome(RUNS, RUNS, RUNS, ends(20.0, -6, REMOTE, error="fabric"), watched=True)
    assert witness["text"].startswith("connection between ranks lost")


@pytest.mark.parametrize("code", [-6, -11, -7, -13])
@pytest.mark.parametrize("after", [(), ("free(): invalid pointer",)])
def test_a_crash_after_a_complaint_names_nobody(code: int, after: tuple[str, ...]) -> None:
    crash = (*COMPLAINT, *after)
    text = outcome(ends(20.0, 1, BUG), RUNS, RUNS, ends(20.1, code, crash))["text"]
    assert text.startswith('rank 0 on node n0 failed with exit code 1 in "step 7 forward": ValueError: bad sample 17')
    lost = outcome(RUNS, RUNS, ends(22.0, code, crash), ends(22.1, 1, COMPLAINT), at_s=[(20.0, lose_node_0)])
    assert lost["text"].startswith("node 0 (n0) was lost")


@pytest.mark.parametrize("code", [-13, -11, -6])
def test_of_two_ends_together_the_first_is_named(code: int) -> None:
    text = outcome(ends(20.0, 1, BUG), RUNS, RUNS, ends(20.1, code, ()))["text"]
    assert text.startswith("rank 0 on node n0 failed with exit code 1")
    text = outcome(ends(20.1, 1, BUG), RUNS, RUNS, ends(20.0, -11, ()))["text"]
    assert text.startswith("rank 3 on node n1 was killed by signal 11 (SIGSEGV)")


@pytest.mark.parametrize("code", [-9, 137])
def test_of_two_ends_the_one_that_no_peer_causes_is_named(code: int) -> None:
    text = outcome(ends(20.0, 1, BUG), RUNS, RUNS, ends(20.1, code, ()))["text"]
    assert text.startswith("rank 3 on node n1 ")


def test_a_write_to_a_closed_connection_is_a_complaint() -> None:
    lost = outcome(RUNS, RUNS, RUNS, ends(22.0, -13, ()), at_s=[(20.0, lose_node_0)])
    assert lost["text"].startswith("node 0 (n0) was lost")
    alone = outcome(RUNS, RUNS, RUNS, ends(22.0, -13, ()))["text"]
    assert alone.startswith("rank 3 on node n1 was killed by signal 13 (SIGPIPE): it wrote to a connection")


def passed_on(number: int) -> tuple[str, ...]:
    """What ``torch.distributed.checkpoint`` raises on all ranks of a group."""
    return (
        *HEAD,
        f"torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([{number}])",
        f"Traceback (most recent call last): (RANK {number})",
        '  File "/job/train.py", line 9, in write_data',
        "OSError: [Errno 28] No space left on device",
    )


@pytest.mark.parametrize("group", [(2, 3), (1, 3), (1, 2), (0, 3), (0, 2)])
def test_an_error_of_a_group_names_no_rank_by_its_number(group: tuple[int, ...]) -> None:
    acts = [ends(20.0 + rank, 1, passed_on(1)) if rank in group else RUNS for rank in range(4)]
    text = outcome(*acts)["text"]
    assert text.startswith(f"rank {group[0]} on ")
    assert "failed with exit code 1 and passed on an error of number 1 of its group: OSError: [Errno 28]" in text


def test_an_error_of_a_group_of_the_first_ranks_names_one() -> None:
    acts = [ends(20.0 + rank, 1, passed_on(1)) for rank in range(2)]
    assert outcome(*acts, RUNS, RUNS)["text"].startswith("rank 1 on node n0 failed with exit code 1 in")
    # The first rank of all has the number 0 in each group.
    acts = [ends(20.0, 1, passed_on(0)), RUNS, RUNS, ends(20.1, 1, passed_on(0))]
    assert outcome(*acts)["text"].startswith("rank 0 on node n0 failed with exit code 1 in")


@pytest.mark.parametrize("error", ["", "fabric"])
def test_a_host_without_descriptors_is_not_named_while_ranks_meet(error: str) -> None:
    """Strangers who connect to the store of the first rank can take all of its process."""
    lacks = watchdog(
        "NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3",
        "Last error:",
        "Call to accept failed: Too many open files",
    )
    for phase, is_named in (("start-up/meet the others", False), ("step 7 forward", True)):
        acts = [replace(act, phase=phase) for act in ends(3.0, -6, lacks, error=error)]
        text = outcome(acts, [], ends(3.1, 1, (), error="fabric"), [], watched=True)["text"]
        assert ("what came from them, is at fault" in text) is not is_named
        assert text.startswith("rank 0 on node n0 was killed by signal 6")
