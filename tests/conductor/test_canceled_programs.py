"""A job that is ended from outside: its processes get the signal, and end, in any order."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config
from event_streams import event_of

WAITS = Act(at_s=300.0, what="exit")
EXIT = {"gen": 0, "rank": 3, "code": 1, "ours": False, "phase": "", "last_lines": []}


def signal(fleet: SimulatedProgram, node: int) -> None:
    fleet.say(node, {"kind": "signal", "number": 15})


def rank_3_exits(fleet: SimulatedProgram) -> None:
    fleet.say(1, event_of(fleet.agents[1].source, "exit", **EXIT))


def lose_node_1(fleet: SimulatedProgram) -> None:
    fleet.lose(1)


@pytest.mark.parametrize("is_signaled", [True, False])
def test_a_signal_to_a_node_counts_although_its_rank_has_failed(*, is_signaled: bool) -> None:
    """Slurm signals all processes: the script exits with 1, its agent ends, and no machine was lost."""
    news: list[Any] = [
        (4.1, partial(signal, node=0)),
        (4.2, rank_3_exits),
        (4.3, partial(signal, node=1)),
        (4.5, lose_node_1),
    ]
    at_s = news if is_signaled else [news[0], news[1], news[3]]
    script = {(0, rank): [WAITS] for rank in range(4)}
    outcome = SimulatedProgram(config(watched=False), script, at_s=at_s, heeds_sigterm_after_s=5.0).run()
    assert outcome["how"] == ("interrupted" if is_signaled else "failed")
    begin = "stopped by signal 15 (SIGTERM) to the agent of node 0" if is_signaled else "node 1 (n1) was lost"
    assert outcome["text"].startswith(begin)
