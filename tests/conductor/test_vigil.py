"""One generation from step to step: who has finished, when a suspicion becomes trouble, whose stack is asked for."""

from __future__ import annotations

from conductor.simulated_records import BEHIND, INSIDE

from seatrial.conductor.vigil import MOST_STACKS, Vigil
from seatrial.conductor.watch import PATIENCE_S, Seen


def _vigil(ranks: int = 3, *, until: float = 100.0) -> Vigil:
    vigil = Vigil(range(ranks), until, 0.0)
    vigil.begin(range(ranks), until, 0.0, together=True)
    return vigil


def test_complete_once_all_who_were_asked_have_finished() -> None:
    vigil = _vigil(3)
    for rank in (2, 0, 0, 17):
        vigil.finished(rank)
    assert (vigil.complete, vigil.waiting(), vigil.done) == (False, [1], {0, 2})
    vigil.finished(1)
    assert (vigil.complete, vigil.waiting()) == (True, [])
    vigil.begin([1], 100.0, 0.0, together=False)
    assert (vigil.complete, vigil.waiting()) == (False, [1])


def test_the_first_to_speak_is_not_alone_in_the_trouble() -> None:
    vigil = _vigil()
    vigil.suspect(Seen(how="error", rank=0, detail="fabric"), 5.0)
    assert vigil.look(5.9) is None
    vigil.suspect(Seen(how="dead", rank=2), 5.9)
    assert vigil.look(6.0) == "trouble"
    assert vigil.guilty() == {2}
    assert [entry["rank"] for entry in vigil.told(4)["seen"]] == [0, 2]
    assert vigil.told(4)["waiting"] == [[1, ""]]


def test_who_complains_of_the_fabric_is_not_guilty_and_who_has_an_error_of_its_own_is() -> None:
    vigil = _vigil(6)
    for rank, how, detail in ((0, "error", "fabric"), (1, "error", "memory"), (2, "stuck", ""), (3, "late", "")):
        vigil.suspect(Seen(how=how, rank=rank, detail=detail), 1.0)  # type: ignore[arg-type]
    vigil.suspect(Seen(how="lost", node=5), 1.0)
    assert vigil.guilty() == {1, 3}


def _peek(vigil: Vigil, now: float) -> list[int]:
    """As the machine does: look, then ask for what is wanted."""
    assert vigil.look(now) is None
    return vigil.peek(now)


def test_nobody_is_asked_for_a_stack_while_somebody_enters_phases() -> None:
    vigil = _vigil(3)
    vigil.pulses[1].update(("R", 9.0, 0, ""), 2.0)
    vigil.pulses[2].entered_at = 1.0
    assert _peek(vigil, PATIENCE_S) == []
    assert _peek(vigil, PATIENCE_S + 1.0) == [0, 2, 1], "who is quiet comes first"
    assert _peek(vigil, PATIENCE_S + 1.5) == [], "once, as long as all stay as they are"


def test_nobody_is_asked_for_a_stack_while_all_use_their_cpu() -> None:
    vigil = _vigil(2)
    for second in range(60):
        for pulse in vigil.pulses.values():
            pulse.update(("R", float(second), 0, ""), float(second))
        assert _peek(vigil, second + 0.5) == []


def test_who_uses_cpu_time_is_looked_at_again_after_a_while() -> None:
    vigil = _vigil(2)
    computing, waiting = {0: BEHIND, 1: BEHIND}, {0: INSIDE, 1: BEHIND}
    asked: list[float] = []
    for second in range(1, 60):
        vigil.pulses[0].update(("R", float(second), 0, ""), float(second))
        outcome = vigil.look(float(second))
        if outcome is not None:
            assert (outcome, vigil.guilty()) == ("trouble", {1})
            break
        if vigil.peek(float(second)):
            asked.append(second)
            vigil.stacks = computing if second < 40 else waiting
    assert asked == [PATIENCE_S, 2 * PATIENCE_S, 3 * PATIENCE_S]
    assert second == 3 * PATIENCE_S + 1


def test_stacks_are_asked_of_some_when_there_are_many() -> None:
    vigil = _vigil(100)
    assert _peek(vigil, PATIENCE_S) == list(range(MOST_STACKS))
    vigil.suspect(Seen(how="dead", rank=77), 20.0)
    wanted = vigil.stacks_wanted()
    assert (wanted[0], len(wanted)) == (77, MOST_STACKS)


def test_the_stacks_name_who_never_entered() -> None:
    vigil = _vigil(3)
    _peek(vigil, PATIENCE_S)
    vigil.stacks = {0: INSIDE, 1: INSIDE}
    assert vigil.look(PATIENCE_S + 1.0) is None
    vigil.stacks[2] = BEHIND
    assert vigil.look(PATIENCE_S + 1.0) == "trouble"
    assert vigil.guilty() == {2}


def test_stacks_of_ranks_that_have_moved_since_say_nothing() -> None:
    vigil = _vigil(3)
    _peek(vigil, PATIENCE_S)
    vigil.pulses[2].update(("S", 0.0, 7, "on"), PATIENCE_S + 0.5)
    vigil.stacks = {0: INSIDE, 1: INSIDE, 2: BEHIND}
    assert vigil.look(PATIENCE_S + 1.0) is None
    assert vigil.stacks == {}
    assert _peek(vigil, 2 * PATIENCE_S + 1.0) == [0, 1, 2], "and are asked for again when nobody moves again"


def test_who_is_behind_but_waits_inside_is_not_named() -> None:
    vigil = _vigil(3)
    vigil.pulses[0].number = 9
    vigil.finished(0)
    assert _peek(vigil, PATIENCE_S) == [1, 2]
    vigil.stacks = {1: INSIDE, 2: INSIDE}
    assert vigil.look(PATIENCE_S + 1.0) is None
    vigil.stacks[2] = BEHIND
    assert vigil.look(PATIENCE_S + 1.0) == "trouble"
    assert vigil.guilty() == {2}


def test_who_is_behind_and_gives_no_stack_is_named() -> None:
    vigil = _vigil(2)
    vigil.pulses[0].number = 9
    vigil.finished(0)
    _peek(vigil, PATIENCE_S)
    assert vigil.look(PATIENCE_S + 2.9) is None
    assert vigil.look(PATIENCE_S + 3.0) == "trouble"
    assert vigil.guilty() == {1}


def _until_deadline(vigil: Vigil, now: float) -> None:
    """The stacks are asked for once more, and when they have come it is decided."""
    ranks = _peek(vigil, now)
    vigil.stacks = dict.fromkeys(ranks, INSIDE)
    assert vigil.look(now + 0.5) == "deadline"


def test_a_deadline_with_all_alike_names_nobody() -> None:
    vigil = _vigil(3, until=10.0)
    assert vigil.look(9.9) is None
    _until_deadline(vigil, 10.0)
    assert vigil.guilty() == set()
    assert {entry["how"] for entry in vigil.told(0)["seen"]} == {"stuck"}


def test_a_deadline_is_decided_though_somebody_moves_and_no_stack_comes() -> None:
    vigil = _vigil(2, until=10.0)
    _peek(vigil, 10.0)
    for tick in range(12):
        vigil.pulses[1].update(("R", 10.0 + tick, 1, "loop"), 10.25 + tick / 4)
        assert vigil.look(10.25 + tick / 4) is (None if tick < 11 else "deadline")


def test_missed_time_moves_the_deadline_too() -> None:
    vigil = _vigil(3, until=10.0)
    vigil.shift(60.0)
    assert vigil.look(69.9) is None
    _until_deadline(vigil, 70.0)


def test_who_works_alone_is_late_whatever_its_stack_says() -> None:
    vigil = Vigil(range(3), 100.0, 0.0)
    vigil.begin(range(3), 10.0, 0.0, together=False)
    vigil.finished(0)
    vigil.stacks = {1: INSIDE, 2: INSIDE}
    assert vigil.look(9.9) is None
    assert vigil.peek(9.9) == []
    assert vigil.look(10.0) == "deadline"
    assert vigil.guilty() == {1, 2}


def test_who_works_alone_and_does_not_move_is_named_once_another_is_done() -> None:
    vigil = Vigil(range(2), 100.0, 0.0)
    vigil.begin(range(2), 60.0, 0.0, together=False)
    assert vigil.look(PATIENCE_S) is None
    vigil.pulses[0].number = 2
    vigil.finished(0)
    assert vigil.look(PATIENCE_S) == "trouble"
    assert vigil.guilty() == {1}


def test_a_deadline_that_comes_while_all_are_getting_on_blames_nobody() -> None:
    for together in (True, False):
        vigil = Vigil(range(2), 100.0, 0.0)
        vigil.begin(range(2), 60.0, 0.0, together=together)
        for rank in range(2):
            vigil.pulses[rank].update(("R", 50.0, 21, "forward"), 58.0)
        vigil.look(60.0)
        for _ in _peek(vigil, 60.0) if together else ():
            vigil.stacks = {0: BEHIND, 1: INSIDE}
        assert vigil.look(60.5) == "deadline"
        assert {entry["how"] for entry in vigil.told(0)["seen"]} == {"working"}
        assert vigil.guilty() == set()


def test_who_is_still_at_work_when_another_is_done_is_late() -> None:
    vigil = Vigil(range(2), 100.0, 0.0)
    vigil.begin(range(2), 60.0, 0.0, together=False)
    vigil.finished(0)
    vigil.pulses[1].update(("R", 50.0, 21, "gemm"), 58.0)
    assert vigil.look(60.0) == "deadline"
    assert vigil.guilty() == {1}
