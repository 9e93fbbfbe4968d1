"""Scripts that stand still are reported once, and whoever asks learns where the ranks are."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

STAYS = [Act(at_s=300.0, what="exit")]
STACK = {"text": 'Thread 1 (idle): "MainThread"\n    f (x.py:1)\n', "state": "S", "wchan": ""}
ANSWERS = dict.fromkeys(range(4), STACK)
PRINTS = (0.0, 0.0)
WORKS = (0.0, 90.0)
PAUSES = (20.0, 90.0)
"""It may stand still, or work again in a moment."""


def still(fleet: SimulatedProgram, *told: tuple[float, float] | float) -> None:
    """The agents tell for how long each of the ranks 0 to 3 has stood still, and printed nothing."""
    pairs = [[*of_rank] if isinstance(of_rank, tuple) else [of_rank, of_rank] for of_rank in told]
    for node in (0, 1):
        of_ranks = {str(rank): pairs[rank] for rank in (2 * node, 2 * node + 1)}
        fleet.say(node, {"kind": "status", "ranks": {}, "still": of_ranks})


def questions(
    *told: tuple[tuple[float, float] | float, ...],
    watched: bool = False,
    script: dict[tuple[int, int], list[Act]] | None = None,
) -> list[str]:
    """Return the notes, each of which has asked both agents. ``told``: for each second what the agents tell."""
    at_s = [
        (10.0 + number, lambda fleet, seconds=seconds: still(fleet, *seconds)) for number, seconds in enumerate(told)
    ]
    ranks = {(0, rank): STAYS for rank in range(4)} | (script or {})
    fleet = SimulatedProgram(config(watched=watched), ranks, at_s=at_s, stacks=ANSWERS)
    fleet.run()
    texts = [note["text"] for note in fleet.recorded("note")]
    asked = fleet.asked("dump_stack")
    assert len(asked) == 2 * len(texts)
    return texts


@pytest.mark.parametrize("field", ["text", "wchan", "state"])
def test_the_stacks_of_one_node_are_compared_in_no_time(field: str) -> None:
    """They are compared in one call, and while that lasts no agent is heard: megabytes of eight ranks took 19 s."""
    line = "    of_a_liar (/torch/x.py:1)\n"
    stack = {"text": 'Thread 1 (idle): "MainThread"\n    f (x.py:1)\n', "state": "S", "wchan": ""}
    lies = {**stack, field: stack[field] + line * 100_000}
    ranks = {(0, rank): STAYS for rank in range(16)}
    fleet = SimulatedProgram(
        config(nproc_per_node=8, watched=False),
        ranks,
        at_s=[(10.0, lambda fleet: fleet.signal("SIGQUIT"))],
        stacks={rank: lies if rank < 8 else stack for rank in range(16)},
    )
    began = time.process_time()
    fleet.go_on_until(15.0)
    assert time.process_time() - began < 0.5
    kept = fleet.conductor._stacks
    assert kept.keys() == set(range(16))
    assert max(len(dict[str, Any](event)[field]) for event in kept.values()) <= 1 << 16


def test_all_ranks_still_for_a_minute_are_reported_once() -> None:
    (text,) = questions((61.0, 60.0, 60.0, 65.0), (62.0, 61.0, 61.0, 66.0), (600.0,) * 4)
    assert text.startswith("no rank has printed anything or used CPU time for 60 s; what each running rank does")


@pytest.mark.parametrize(
    "told",
    [
        (60.0, 60.0, 60.0, 59.0),
        (500.0, 500.0, 500.0, PRINTS),
        (500.0, 500.0, PAUSES, WORKS),
        (59.0, WORKS, WORKS, WORKS),
        (WORKS, WORKS, WORKS, WORKS),
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_a_rank_that_prints_pauses_or_works_with_all_others_is_enough(told: tuple[tuple[float, float] | float]) -> None:
    assert questions(told) == []


def test_ranks_that_loop_while_the_others_wait_are_reported() -> None:
    """Once for the same ranks: that one computes for minutes may be how the script is."""
    one = (61.0, WORKS, 60.0, 60.0)
    texts = questions(one, one, (62.0, WORKS, 61.0, WORKS), one, (90.0,) * 4)
    asks = "what each running rank does (last output, state, stack)"
    assert texts == [
        f"no rank has printed anything for 60 s; rank 1 uses CPU time, ranks 0, 2, 3 none; {asks}",
        f"no rank has printed anything for 60 s; ranks 1, 3 use CPU time, ranks 0, 2 none; {asks}",
        f"no rank has printed anything or used CPU time for 60 s; {asks}",
    ]


def test_an_agent_that_tells_something_else_each_second_is_bounded() -> None:
    """For each question the stacks of all ranks are taken."""
    waits = (61.0, 61.0)
    others = [tuple(WORKS if number >> rank & 1 else waits for rank in range(4)) for number in range(10)]
    assert len(questions(*others)) == 8


def test_a_training_is_judged_by_its_phases() -> None:
    assert questions((90.0,) * 4, (90.0, WORKS, 90.0, 90.0), watched=True) == []


def test_the_ranks_that_have_ended_are_listed_and_not_asked() -> None:
    ended = {(0, 1): [Act(at_s=5.0, what="exit")], (0, 2): [Act(at_s=6.0, what="exit")]}
    (text,) = questions((60.0, 0.0, 0.0, 60.0), script=ended)
    assert text.endswith("; ranks 1, 2 had ended with 0")


def interrupted(*names: str) -> SimulatedProgram:
    at_s: list[Any] = [
        (10.0 + number, lambda fleet, name=name: fleet.signal(name)) for number, name in enumerate(names)
    ]
    ranks = {(0, rank): STAYS for rank in range(4)}
    fleet = SimulatedProgram(config(watched=False), ranks, at_s=at_s, stacks=ANSWERS)
    fleet.run()
    return fleet


def test_sigquit_asks_and_goes_on() -> None:
    fleet = interrupted("SIGQUIT", "SIGQUIT")
    assert [message["ranks"] for _, _, message in fleet.asked("dump_stack")] == [[0, 1, 2, 3]] * 4
    assert not fleet.asked("terminate")
    assert fleet.recorded("outcome")[0]["how"] == "ended"


def test_ctrl_c_asks_before_the_ranks_are_ended() -> None:
    fleet = interrupted("SIGINT")
    kinds = [message["kind"] for _, node, message in fleet.sent if node == 1]
    assert kinds.index("dump_stack") < kinds.index("terminate")
    assert fleet.recorded("outcome")[0]["how"] == "interrupted"


def test_whoever_asks_is_told_which_ranks_use_cpu_time() -> None:
    at_s: list[Any] = [
        (10.0, lambda fleet: still(fleet, 20.0, PRINTS, 20.0, 20.0)),
        (10.1, lambda fleet: fleet.signal("SIGQUIT")),
        (12.0, lambda fleet: still(fleet, 20.0, 20.0, 20.0, 20.0)),
        (12.1, lambda fleet: fleet.signal("SIGINT")),
    ]
    fleet = SimulatedProgram(config(watched=False), {(0, rank): STAYS for rank in range(4)}, at_s=at_s)
    fleet.run()
    asks = "what each running rank does (last output, state, stack)"
    assert [note["text"] for note in fleet.recorded("note")] == [
        f"SIGQUIT: rank 1 printed or used CPU time within 15 s, ranks 0, 2, 3 did neither; {asks}",
        f"SIGINT: {asks}",
    ]


def test_an_agent_that_has_not_answered_is_not_asked_again() -> None:
    """It takes seconds for each answer, and SIGTERM to its ranks waited behind all questions of a person at Ctrl-\\."""
    ranks = {(0, rank): STAYS for rank in range(4)}
    at_s = [(10.0 + number / 10, lambda fleet: fleet.signal("SIGQUIT")) for number in range(50)]
    later = (20.0, lambda fleet: fleet.signal("SIGQUIT"))
    fleet = SimulatedProgram(config(watched=False), ranks, at_s=[*at_s, later])
    fleet.go_on_until(16.0)
    assert len(fleet.asked("dump_stack")) == 2
    fleet.go_on_until(21.0)
    assert len(fleet.asked("dump_stack")) == 4


def test_an_agent_that_has_answered_is_asked_again() -> None:
    at_s = [(10.0 + number, lambda fleet: fleet.signal("SIGQUIT")) for number in range(3)]
    answers = dict.fromkeys((0, 1), STACK)  # node 1 does not
    ranks = {(0, rank): STAYS for rank in range(4)}
    fleet = SimulatedProgram(config(watched=False), ranks, at_s=at_s, stacks=answers)
    fleet.go_on_until(14.0)
    assert [node for _, node, _ in fleet.asked("dump_stack")] == [0, 1, 0, 0]
