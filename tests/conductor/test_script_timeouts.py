"""Ranks of a script that gave up waiting by the timeout of the script: the rank that they waited for is named."""

from __future__ import annotations

from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

GAVE_UP = (
    "[rank0]: RuntimeError: [../tcp/unbound_buffer.cc:129] Timed out waiting 15000ms for send operation to complete"
)
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"
WATCHDOG = (
    "[rank0]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=2847, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600080 milliseconds"
    " before timing out."
)
TOLD = (
    "[rank3]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:1685] [PG ID 0 PG GUID 0 Rank 3] Received a dump signal due"
    " to a collective timeout from rank 0 and we will try our best to dump the debug info."
)
AT_WORK = """Process 47: python mytrain.py

Thread 47 (active): "MainThread"
    load_batch (mytrain.py:26)
    <module> (mytrain.py:41)
"""
IN_BACKWARD = """Process 47: python mytrain.py

Thread 47 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:979)
    <module> (mytrain.py:41)
"""
STILL = (Act(at_s=500.0, what="exit", last=("batch 150",)),)
THREE = "ranks 0, 1, 2 gave up waiting (timed out after 15 s)"


def ends(at_s: float, last: str = GAVE_UP, code: int = 1) -> tuple[Act, ...]:
    return (Act(at_s=at_s, what="exit", code=code, phase="", last=(last,)),)


def ended(*acts: tuple[Act, ...], stack: dict[str, Any] | None = None) -> SimulatedProgram:
    """``stack``: what the agent answers of rank 3; None: nothing."""
    script = {(0, rank): each for rank, each in enumerate(acts)}
    fleet = SimulatedProgram(config(watched=False), script, stacks={} if stack is None else {3: stack})
    fleet.run()
    return fleet


def text_of(*acts: tuple[Act, ...], stack: dict[str, Any] | None = None) -> str:
    (outcome,) = ended(*acts, stack=stack).recorded("outcome")
    return str(outcome["text"])


def test_the_one_rank_that_still_ran_is_named_with_its_stack() -> None:
    fleet = ended(ends(20.0), ends(20.1), ends(20.2), STILL, stack={"text": AT_WORK})
    (outcome,) = fleet.recorded("outcome")
    assert outcome["text"] == f"{THREE}; rank 3 on node n1 still ran and never arrived: load_batch (mytrain.py:26)"
    assert fleet.recorded("trouble")[0]["seen"][0]["rank"] == 3
    assert fleet.asked("dump_stack")[0][0] < fleet.asked("terminate")[0][0]
    (note,) = fleet.recorded("note")
    assert note["text"].startswith("some ranks gave up waiting for others; what each running rank does")


def test_a_pause_of_the_controller_leaves_time_for_answers() -> None:
    acts = {(0, rank): ends(20.0) if rank < 3 else STILL for rank in range(4)}
    fleet = SimulatedProgram(config(watched=False), acts)
    while not fleet.asked("dump_stack"):
        fleet.act_next()
    fleet.conductor.paused(100.0)
    later = fleet.now + 100.0
    assert not fleet.conductor.tick(later + 7.0, later + 7.0).events
    asked_again = fleet.conductor.interrupt("SIGQUIT", later + 7.0).send
    assert not any(command["kind"] == "dump_stack" and node == 1 for node, command in asked_again)
    assert "trouble" in {event["kind"] for event in fleet.conductor.tick(later + 8.1, later + 8.1).events}


def test_the_last_output_is_that_of_the_rank_that_still_ran() -> None:
    (outcome,) = ended(ends(20.0), ends(20.1), ends(20.2), STILL, stack={}).recorded("outcome")
    assert outcome["last_lines"] == ["its last"]  # of its end by SIGTERM


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        (None, "still ran"),
        ({"text": IN_BACKWARD}, "still ran, in _engine_run_backward (torch/autograd/graph.py:979), called by <module>"),
        ({"text": AT_WORK, "wchan": "futex_do_wait"}, "still ran, in load_batch (mytrain.py:26)"),
        ({"text": AT_WORK, "state": "S"}, "still ran, in load_batch (mytrain.py:26)"),
        ({"wchan": "hrtimer_nanosleep"}, "still ran, in hrtimer_nanosleep"),
        ({}, "still ran"),
        ({"state": "T"}, "was stopped (state T)"),
    ],
)
def test_a_rank_that_may_wait_too_is_not_said_to_have_never_arrived(stack: dict[str, Any], where: str) -> None:
    text = text_of(ends(20.0), ends(20.1), ends(20.2), STILL, stack=stack)
    assert text.startswith(f"{THREE}; rank 3 on node n1 {where}")
    assert "never arrived" not in text


def test_of_several_ranks_that_still_ran_none_is_named() -> None:
    text = text_of(ends(20.0), ends(20.1), STILL, STILL, stack={"text": AT_WORK})
    assert text == (
        "ranks 0, 1 gave up waiting (timed out after 15 s): RuntimeError: Timed out waiting 15000ms for send operation"
        " to complete; ranks 2, 3 had not exited, and seatrial ended them"
    )


def test_where_all_gave_up_none_is_named() -> None:
    assert text_of(ends(20.0), ends(20.1), ends(20.2), ends(28.0)) == (
        "all 4 ranks gave up waiting (timed out after 15 s): RuntimeError: Timed out waiting 15000ms for send operation"
        " to complete"
    )


def test_a_rank_that_fails_after_the_others_gave_up_comes_first() -> None:
    text = text_of(ends(20.0), ends(20.1), ends(20.2), ends(25.0, "ValueError: sample 4711"), stack={"text": AT_WORK})
    assert text == "rank 3 on node n1 failed with exit code 1: ValueError: sample 4711"


def test_ranks_that_lost_one_that_gave_up_are_witnesses() -> None:
    """Gloo closes its connections when it gives up."""
    text = text_of(ends(20.4), ends(20.0, CLOSED), ends(20.5, CLOSED), STILL, stack={"text": AT_WORK})
    assert text == (
        "rank 0 gave up waiting (timed out after 15 s), and ranks 1, 2 lost the connection; rank 3 on node n1 still ran"
        " and never arrived: load_batch (mytrain.py:26)"
    )


def test_a_connection_that_was_lost_long_before_is_no_timeout() -> None:
    text = text_of(ends(20.0, CLOSED), ends(30.0), STILL, STILL)
    assert text.startswith(
        "connection between ranks lost; rank 0 on node n0 failed with exit code 1 and reported it first"
    )


def test_a_rank_that_had_left_is_the_one_they_waited_for() -> None:
    assert text_of(ends(20.0), ends(20.1), ends(20.2), ends(5.0, "done", 0)) == (
        f"rank 3 on node n1 had ended with exit code 0, 15.0 s earlier; then {THREE}"
    )


def test_with_nccl_a_script_waits_for_its_gpu_at_any_line() -> None:
    aborted = [ends(20.0 + rank, WATCHDOG, -6) for rank in range(3)]
    text = text_of(*aborted, STILL, stack={"text": AT_WORK})
    assert text == (
        "ranks 0, 1, 2 gave up waiting (timed out after 600 s); rank 3 on node n1 still ran, in load_batch"
        " (mytrain.py:26)"
    )


def test_a_rank_that_nccl_ended_is_no_first_failure() -> None:
    """It may have begun the same operation seconds after the others, where the network carries nothing."""
    fleet = ended(*[ends(20.0 + rank, WATCHDOG, -6) for rank in range(3)], ends(19.0, TOLD, -6))
    (outcome,) = fleet.recorded("outcome")
    assert outcome["text"].startswith("ranks 0, 1, 2 gave up waiting (timed out after 600 s): Watchdog caught")
    assert outcome["text"].endswith("; rank 3 had not yet when NCCL's watchdog ended it")
    assert fleet.recorded("trouble")[0]["seen"][0]["rank"] == 0


@pytest.mark.parametrize("last", [(TOLD, WATCHDOG), (WATCHDOG, TOLD)])
def test_a_rank_that_gave_up_after_another_told_it(last: tuple[str, ...]) -> None:
    told = (Act(at_s=21.0, what="exit", code=-6, phase="", last=last),)
    text = text_of(*[ends(20.0 + rank, WATCHDOG, -6) for rank in range(3)], told)
    assert text.startswith("all 4 ranks gave up waiting (timed out after 600 s)")
    # One that still runs is the one that they waited for.
    running = ended(ends(20.0, WATCHDOG, -6), told, ends(20.2, WATCHDOG, -6), STILL, stack={"text": AT_WORK})
    assert running.recorded("trouble")[0]["seen"][0]["rank"] == 3


def test_an_exception_before_a_last_barrier_is_told_first() -> None:
    """A bug on one rank, and all ranks meet once more in ``finally``."""
    head = "Traceback (most recent call last):"
    link = "During handling of the above exception, another exception occurred:"
    bug = (head, "ValueError: bad batch in shard 3", "", link, "", head, GAVE_UP.removeprefix("[rank0]: "))
    again = (head, *bug[-1:], "", link, "", *bug[-2:])
    acts = [
        (Act(at_s=20.0 + n, what="exit", code=1, phase="", last=last),) for n, last in enumerate([again] * 3 + [bug])
    ]
    fleet = ended(*acts)
    (outcome,) = fleet.recorded("outcome")
    assert outcome["text"].startswith(
        "rank 3 on node n1 complained of others after ValueError: bad batch in shard 3; all 4 ranks gave up waiting"
    )
    assert outcome["last_lines"] == list(bug)


def test_the_address_that_a_rank_could_not_reach_is_said() -> None:
    last = "DistNetworkError: The client socket has timed out after 6000ms while trying to connect to (node0, 29998)."
    text = text_of(ends(20.0, last), ends(20.1, last), ends(20.2, last), STILL, stack={"text": AT_WORK})
    assert text.startswith("ranks 0, 1, 2 gave up waiting (timed out after 6 s); rank 3 on node n1 still ran")
    assert text.endswith(f"; the error: {last.rstrip('.')}")


def test_a_timeout_of_the_script_about_something_else_is_its_own_failure() -> None:
    last = "TimeoutError: timed out waiting 15000ms for the data server"
    assert text_of(ends(20.0, last), STILL, STILL, STILL) == f"rank 0 on node n0 failed with exit code 1: {last}"
