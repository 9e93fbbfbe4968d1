"""Programs whose launcher ends the agents of all hosts with those of one: nobody is named for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config

LONG = {(0, rank): (Act(at_s=500.0, what="exit"),) for rank in range(8)}
HOSTS = ("a", "b", "c", "d")
CLOSED = "the control connection was closed"
MAY = "the launcher may have ended them, after one of them or of the others: see its output"


def _loses(node: int) -> Callable[[SimulatedProgram], None]:
    return lambda program: program.lose(node)


def _told(lost: Sequence[tuple[float, int]], nodes: int, *, ends_together: bool | None, signaled: bool = False) -> str:
    """Return what a run tells whose nodes are lost one after the other: (at_s, node)."""
    settings = config(nodes=nodes, hosts=HOSTS[:nodes], ends_together=ends_together)
    acts = [(at_s, _loses(node)) for at_s, node in lost]
    if signaled:
        acts.insert(0, (9.9, lambda program: program.say(nodes - 1, {"kind": "signal", "number": 15})))
    return str(SimulatedProgram(settings, LONG, at_s=acts, heeds_sigterm_after_s=None).run()["text"])


@pytest.mark.parametrize(
    ("lost", "nodes", "ends_together", "text"),
    [
        # Host c has MPICH end the others, at once or one after the other, and goes on.
        (
            [(10.0, 1), (10.0, 0)],
            3,
            True,
            f"2 of 3 nodes were lost, node 1 (b) first: {CLOSED}; node 2 (c) was not; {MAY}",
        ),
        (
            [(10.0, 1), (13.0, 0)],
            3,
            True,
            f"2 of 3 nodes were lost, node 1 (b) first: {CLOSED}; node 2 (c) was not; {MAY}",
        ),
        ([(10.0, 1)], 2, True, f"1 of 2 nodes were lost, node 1 (b) first: {CLOSED}; node 0 (a) was not; {MAY}"),
        (
            [(10.0, 1), (10.0, 0)],
            4,
            False,
            f"2 of 4 nodes were lost, node 1 (b) first: {CLOSED}; node 2 (c), node 3 (d) were not; {MAY}",
        ),
        ([(10.0, 0), (10.1, 1), (10.9, 2)], 3, True, f"3 of 3 nodes were lost, node 0 (a) first: {CLOSED}; {MAY}"),
        # Less than half of the hosts, or no launcher of all of them.
        ([(10.0, 1)], 3, True, f"node 1 (b) was lost: {CLOSED}"),
        ([(10.0, 1)], 2, False, f"node 1 (b) was lost: {CLOSED}"),
        ([(10.0, 1), (10.0, 0)], 3, None, f"node 1 (b), node 0 (a) were lost: {CLOSED}"),
        ([(10.0, 1), (10.9, 0)], 3, None, f"node 1 (b) was lost: {CLOSED}"),
    ],
)
def test_nodes_that_a_launcher_may_have_ended_are_no_culprits(
    lost: list[tuple[float, int]], nodes: int, ends_together: bool | None, text: str
) -> None:
    assert _told(lost, nodes, ends_together=ends_together) == text


def test_so_it_is_where_a_signal_of_the_launcher_came_first() -> None:
    assert _told([(10.0, 1)], 3, ends_together=True, signaled=True) == f"node 1 (b) was lost: {CLOSED}"
    told = _told([(10.0, 1), (10.5, 0)], 3, ends_together=True, signaled=True)
    assert told == f"2 of 3 nodes were lost, node 1 (b) first: {CLOSED}; node 2 (c) was not; {MAY}"


def test_a_silent_node_was_not_ended_by_a_launcher() -> None:
    settings = config(nodes=2, hosts=HOSTS[:2], ends_together=True)
    text = SimulatedProgram(settings, LONG, at_s=[(10.0, lambda program: program.mute(1))]).run()["text"]
    assert str(text).startswith("node 1 (b) was lost: its agent sent nothing for ")
