"""Stacks count as answers to the request that asked for them, and to no later one: a rank may be elsewhere by then."""

from __future__ import annotations

import pytest
from conductor.simulated_program import Act, SimulatedProgram, config
from conductor.simulated_records import BEHIND, INSIDE
from conductor.simulated_statuses import AttendedDetector
from conductor.test_script_stacks import stack
from event_streams import event_of

from seatrial.conductor.hang_detector import HangDetector
from seatrial.protocol.timeouts import PATIENCE_S


def _hang_detector() -> HangDetector:
    """Three ranks of three hosts in a step of ten minutes, the first two of them one phase ahead."""
    hang_detector = AttendedDetector({rank: f"host {rank}" for rank in range(3)}, 600.0, 0.0)
    hang_detector.begin(range(3), 600.0, 0.0, together=True)
    _report(hang_detector, 0.0, 6, 6, 5)
    return hang_detector


def _report(hang_detector: HangDetector, now: float, *numbers: int) -> None:
    for rank, number in enumerate(numbers):
        hang_detector.statuses[rank].update(("S", 0.0, number, "x"), now)


def _request(hang_detector: HangDetector, now: float) -> int:
    """Return the number of the request for stacks that is made now."""
    assert hang_detector.poll(now) is None
    assert hang_detector.stacks_to_request(now)
    return hang_detector.request_number


def test_an_answer_to_a_request_that_was_dropped_names_nobody_later() -> None:
    """A host that lies claims to have moved whenever it likes."""
    hang_detector = _hang_detector()
    first = _request(hang_detector, PATIENCE_S)
    _report(hang_detector, 16.0, 7, 6, 5)
    assert hang_detector.poll(16.0) is None
    for rank, text in enumerate((INSIDE, INSIDE, BEHIND)):
        hang_detector.answer(rank, first, text)
    _report(hang_detector, 20.0, 7, 6, 6)
    second = _request(hang_detector, 20.0 + PATIENCE_S)
    for rank, text in enumerate((INSIDE, INSIDE, BEHIND)):
        hang_detector.answer(rank, first, text)
        hang_detector.answer(rank, None, text)
    assert hang_detector.poll(36.0) is None
    for rank in range(3):
        hang_detector.answer(rank, second, INSIDE)
    assert hang_detector.poll(36.0) is None
    assert hang_detector.stacks == dict.fromkeys(range(3), INSIDE)


def test_an_answer_to_a_request_of_the_step_before_names_nobody() -> None:
    hang_detector = _hang_detector()
    first = _request(hang_detector, PATIENCE_S)
    hang_detector.begin(range(3), 600.0, 20.0, together=True)
    for rank, text in enumerate((INSIDE, INSIDE, BEHIND)):
        hang_detector.answer(rank, first, text)
    assert _request(hang_detector, 20.0 + PATIENCE_S) != first
    for rank, text in enumerate((INSIDE, INSIDE, BEHIND)):
        hang_detector.answer(rank, first, text)
    assert hang_detector.stacks == {}


def test_a_slow_answer_counts_although_another_agent_was_asked_again() -> None:
    hang_detector = _hang_detector()
    number = _request(hang_detector, PATIENCE_S)
    hang_detector.answer(0, number, "")
    assert _request(hang_detector, 17.0) == number
    for rank in (1, 2, 0):
        hang_detector.answer(rank, number, BEHIND if rank == 2 else INSIDE)
    assert hang_detector.poll(19.0) == "trouble"
    assert hang_detector.guilty() == {2}


def test_a_stack_of_a_rank_that_was_not_asked_for_it_counts_nowhere() -> None:
    hang_detector = _hang_detector()
    hang_detector.answer(2, hang_detector.request_number, BEHIND)
    assert hang_detector.stacks == {}


@pytest.mark.parametrize("asked_again_after_s", [5.0, 30.0])
def test_late_answers_of_a_script_are_compared_with_no_later_ones(asked_again_after_s: float) -> None:
    """Nor is an agent asked again that still owes answers: those that come soon count."""

    def answer(numbers: tuple[int, int], wchans: tuple[str, str], program: SimulatedProgram) -> None:
        for node in (0, 1):
            says = {**stack(wchan=wchans[node]), "number": numbers[node], "rank": node}
            program.say(node, event_of(program.agents[node].source, "stack", **says))

    script = {(0, rank): [Act(at_s=100.0, what="exit")] for rank in range(2)}
    second_at = 10.0 + asked_again_after_s
    second = 1 if asked_again_after_s == 5.0 else 2
    program = SimulatedProgram(
        config(watched=False, nproc_per_node=1),
        script,
        at_s=(
            (10.0, lambda program: program.signal("SIGQUIT")),
            (second_at, lambda program: program.signal("SIGQUIT")),
            (second_at + 1.0, lambda program: answer((1, 1), ("futex_wait", "pipe_read"), program)),
            (second_at + 2.0, lambda program: answer((second, second), ("futex_wait", "futex_wait"), program)),
        ),
    )
    program.go_on_until(second_at + 1.5)
    hints = [note for note in program.recorded("note") if "py-spy" in note["text"]]
    assert len(hints) == (1 if second == 1 else 0), "all have answered"
    program.go_on_until(second_at + 3.0)
    assert len([note for note in program.recorded("note") if "py-spy" in note["text"]]) == 1
