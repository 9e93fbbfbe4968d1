"""Which ranks of a script stand elsewhere than the others: evidence for a person, from what the agents read."""

from __future__ import annotations

from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config
from event_streams import event_of

from seatrial.conductor.script_failures import py_spy_hint
from seatrial.conductor.script_stacks import main_thread_frames, ranks_apart

_IN_ALL_REDUCE = """Process 7: python train.py
Python v3.11.2

Thread 7 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:40)
    <module> (train.py:60)
Thread 8 (idle): "Thread-1"
    wait (threading.py:320)
"""
_IN_BATCH = """Process 8: python train.py

Thread 8 (idle)
    read_batch (train.py:12)
    <module> (train.py:58)
"""
_WAITS = [Act(at_s=500.0, what="exit")]


def stack(text: str = "", wchan: str = "") -> dict[str, Any]:
    return {"gen": 0, "number": 1, "state": "S", "wchan": wchan, "text": text, "quiet_s": 9.0, "last_line": ""}


def elsewhere(*stacks: dict[str, Any]) -> str:
    return ranks_apart(dict(enumerate(stacks)))


def test_the_main_thread_is_found_with_and_without_a_name() -> None:
    assert main_thread_frames(_IN_ALL_REDUCE)[::3] == [
        "all_reduce (torch/distributed/distributed_c10d.py:3252)",
        "<module> (train.py:60)",
    ]
    assert main_thread_frames(_IN_BATCH)[0] == "read_batch (train.py:12)"
    assert main_thread_frames("Error: Permission denied") == []


def test_a_rank_outside_of_the_operation_that_the_others_wait_in() -> None:
    inside = "all_reduce (torch/distributed/distributed_c10d.py:3252), called by train (train.py:40)"
    assert elsewhere(stack(_IN_ALL_REDUCE), stack(_IN_BATCH), stack(_IN_ALL_REDUCE)) == (
        f"rank 1 stands in read_batch (train.py:12), ranks 0, 2 in {inside}: if the job hangs, look at rank 1 first"
    )
    assert elsewhere(stack(_IN_ALL_REDUCE), stack(_IN_BATCH)).endswith("look at rank 1 first")


def test_ranks_that_all_stand_alike_are_not_told_apart() -> None:
    assert elsewhere(stack(_IN_ALL_REDUCE), stack(_IN_ALL_REDUCE)) == ""
    assert elsewhere(stack(_IN_BATCH), stack(_IN_BATCH)) == ""
    assert elsewhere() == ""


def test_two_places_without_a_majority_set_nobody_apart() -> None:
    sleeping, waiting = stack(wchan="hrtimer_nanosleep"), stack(wchan="futex_wait")
    assert elsewhere(sleeping, waiting) == ""
    assert elsewhere(stack(_IN_BATCH), stack(_IN_BATCH.replace("read_batch", "decode"))) == ""


def test_without_py_spy_the_kernel_function_is_compared() -> None:
    """A stack of one rank alone compares with nothing."""
    sleeping, waiting = stack(wchan="hrtimer_nanosleep"), stack(wchan="futex_wait")
    assert elsewhere(waiting, waiting, sleeping, waiting) == (
        "rank 2 stands in hrtimer_nanosleep, ranks 0, 1, 3 in futex_wait: if the job hangs, look at rank 2 first"
    )
    assert elsewhere(waiting, waiting, stack(_IN_BATCH)) == ""
    assert elsewhere(waiting, waiting, stack()) == ""
    assert elsewhere(waiting, waiting, {**stack(), "state": "R"}) == (
        "rank 2 stands in no function of the kernel (it runs), ranks 0, 1 in futex_wait: if the job hangs, look at"
        " rank 2 first"
    )


def answers(program: SimulatedProgram) -> None:
    """Three ranks answer, and the fourth ends before it can."""
    texts = [_IN_ALL_REDUCE, _IN_BATCH, _IN_ALL_REDUCE]
    for rank, text in enumerate(texts):
        node = rank // 2
        program.say(node, event_of(program.agents[node].source, "stack", rank=rank, **stack(text)))


def compared(program: SimulatedProgram) -> list[str]:
    return [note["text"] for note in program.recorded("note") if "if the job hangs" in note["text"]]


def test_the_comparison_is_told_once_all_have_answered_or_ended() -> None:
    script = {(0, rank): _WAITS for rank in range(3)} | {(0, 3): [Act(at_s=20.0, what="exit")]}
    events = ((10.0, lambda program: program.signal("SIGQUIT")), (11.0, answers))
    program = SimulatedProgram(config(watched=False), script, at_s=events)
    program.go_on_until(19.0)
    assert compared(program) == []
    program.go_on_until(30.0)
    assert len(compared(program)) == 1
    assert not [note for note in program.recorded("note") if "py-spy" in note["text"]]


def test_without_stacks_the_way_to_them_is_told_while_the_script_runs() -> None:
    def answer(program: SimulatedProgram) -> None:
        for node in (0, 1):
            program.say(node, event_of(program.agents[node].source, "stack", rank=node, **stack(wchan="futex_wait")))

    script = {(0, rank): _WAITS for rank in range(2)}
    events = ((10.0, lambda program: program.signal("SIGQUIT")), (11.0, answer))
    program = SimulatedProgram(config(watched=False, nproc_per_node=1), script, at_s=events)
    program.go_on_until(12.0)
    assert program.recorded("note")[-1]["text"] == (
        "for the Python stacks: install py-spy beside the Python of the ranks on nodes n0 and n1 (pip install py-spy),"
        " even now, and press Ctrl-\\ here; where pip refuses that, make a virtual environment with torch and py-spy on"
        " the hosts, and launch with --python VENV/bin/python"
    )


def test_the_interpreter_that_needs_py_spy_is_named() -> None:
    hosts = [f"n{number}" for number in range(10)]
    hint = py_spy_hint("/usr/bin/python3", hosts, ends=True)
    assert hint.startswith(
        "for the Python stacks: install py-spy beside /usr/bin/python3 on nodes n0, n1, n2, n3, n4, n5, n6, n7 and 2"
        " more (/usr/bin/python3 -m pip install py-spy), before the next launch; "
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_each_signal_that_ends_a_script_shows_where_its_ranks_are(name: str) -> None:
    script = {(0, rank): _WAITS for rank in range(4)}
    program = SimulatedProgram(config(watched=False), script, at_s=((10.0, lambda program: program.signal(name)),))
    program.go_on_until(10.2)
    assert {tuple(message["ranks"]) for _, _, message in program.asked("dump_stack")} == {(0, 1, 2, 3)}


def test_frames_of_any_length_make_a_short_sentence() -> None:
    frames = ["x" * 10**6, "y" * 10**6, "y" * 10**6]
    stacks = {rank: {"text": f'Process 1\n\nThread 1 (idle): "MainThread"\n    {at}'} for rank, at in enumerate(frames)}
    assert 0 < len(ranks_apart(stacks)) < 3_000
    assert 0 < len(ranks_apart({rank: {"text": "", "wchan": at} for rank, at in enumerate(frames)})) < 3_000


@pytest.mark.parametrize("field", ["text", "wchan"])
def test_words_of_an_agent_are_no_place(field: str) -> None:
    lie = "x: rank 7 on node gpu-7 is broken"
    said = {"text": f'Thread 1 (idle): "MainThread"\n    {lie}\n', "wchan": lie}
    usual = stack(_IN_BATCH if field == "text" else "", wchan="futex_wait")
    words = ranks_apart({0: usual, 1: {**usual, field: said[field]}, 2: usual})
    assert f'"{lie}"' in words
    assert lie not in words.replace(f'"{lie}"', "")
