"""Who is frozen, absent, late or stuck, by statuses and times alone."""

from __future__ import annotations

import pytest
from conductor.simulated_records import BEHIND, INSIDE

from seatrial.conductor.watch import PATIENCE_S, Pulse, at_deadline, idle, outside, stopped, suspects, working

NOW = 1_000.0
LONG_AGO = NOW - PATIENCE_S


def _pulse(
    number: int = 5,
    state: str = "S",
    moved_at: float = LONG_AGO,
    held_since: float | None = None,
    entered_at: float = LONG_AGO,
) -> Pulse:
    return Pulse(
        state=state,
        number=number,
        phase=f"phase {number}",
        moved_at=moved_at,
        held_since=held_since,
        entered_at=entered_at,
    )


def _told(seen: list) -> list[tuple[str, int | None]]:  # type: ignore[type-arg]
    return [(entry.how, entry.rank) for entry in seen]


def test_a_rank_is_held_from_the_first_status_that_says_so() -> None:
    pulse = Pulse(moved_at=0.0)
    for at, state in enumerate("STTDDR", start=1):
        pulse.update((state, 0.0, 1, "x"), float(at))
        assert pulse.held_since == {"S": None, "T": 2.0, "D": 2.0, "R": None}[state]


def test_cpu_time_moves_a_rank_and_noise_does_not() -> None:
    pulse = Pulse(moved_at=0.0, number=1, cpu_s=3.0)
    pulse.update(("S", 3.1, 1, "x"), 10.0)
    assert pulse.moved_at == 0.0
    pulse.update(("S", 3.3, 1, "x"), 11.0)
    assert pulse.moved_at == 11.0
    pulse.update(("S", 3.3, 2, "y"), 12.0)
    assert (pulse.moved_at, pulse.number, pulse.phase) == (12.0, 2, "y")
    pulse.update(("S", 9.9, 2, "y"), 13.0)
    assert (pulse.moved_at, pulse.entered_at) == (13.0, 12.0)


def test_missed_time_is_nobodys_silence() -> None:
    pulse = _pulse(state="T", held_since=LONG_AGO)
    pulse.shift(60.0)
    assert suspects({0: pulse, 1: _pulse(6)}, [0, 1], False, NOW + 60.0 - 0.01, together=True) == []


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_held_rank_is_frozen_after_the_time_of_patience_alone_or_not(state: str) -> None:
    pulses = {0: _pulse(9), 1: _pulse(state=state, held_since=LONG_AGO), 2: _pulse(state=state, held_since=NOW - 14.9)}
    for together in (True, False):
        assert _told(suspects(pulses, [0, 1, 2], False, NOW, together=together)) == [("frozen", 1)]
    assert suspects(pulses, [0, 2], False, NOW, together=False) == []


def test_a_start_up_that_waits_for_a_disk_is_no_fault_and_a_stopped_one_is() -> None:
    pulses = {0: _pulse(state="D", held_since=LONG_AGO), 1: _pulse(state="T", held_since=LONG_AGO)}
    assert _told(stopped(pulses, [0, 1], NOW)) == [("frozen", 1)]


def test_absent_is_who_is_behind_and_does_not_move() -> None:
    pulses = {0: _pulse(6), 1: _pulse(5), 2: _pulse(5, moved_at=NOW - 1), 3: _pulse(7, moved_at=NOW)}
    assert _told(suspects(pulses, list(pulses), False, NOW, together=True)) == [("absent", 1)]


def test_who_only_waits_is_not_absent() -> None:
    alike = {rank: _pulse(6) for rank in range(4)}
    assert suspects(alike, list(alike), False, NOW, together=True) == []
    behind_but_alone = {0: _pulse(6), 1: _pulse(5)}
    assert suspects(behind_but_alone, [0, 1], False, NOW, together=False) == []
    # The one with the fewest still works: nobody else is to blame meanwhile.
    working = {0: _pulse(7), 1: _pulse(6), 2: _pulse(5, moved_at=NOW)}
    assert suspects(working, [0, 1, 2], False, NOW, together=True) == []


def test_by_stacks_only_those_outside_are_named_and_only_if_some_are_inside() -> None:
    pulses = {rank: _pulse() for rank in range(4)}
    assert _told(outside(pulses, {0: INSIDE, 1: BEHIND, 2: INSIDE, 3: INSIDE}, NOW)) == [("absent", 1)]
    assert outside(pulses, dict.fromkeys(pulses, INSIDE), NOW) == []
    assert outside(pulses, dict.fromkeys(pulses, BEHIND), NOW) == []


def test_idle_is_who_is_quiet_with_the_fewest_phases_while_nobody_enters_one() -> None:
    pulses = {0: _pulse(), 1: _pulse(moved_at=NOW), 2: _pulse(6)}
    assert idle(pulses, [0, 1, 2], NOW) == [0]
    assert idle(pulses, [1, 2], NOW) == []
    assert idle({**pulses, 2: _pulse(6, moved_at=NOW, entered_at=NOW)}, [0, 1, 2], NOW) == []
    assert idle(pulses, [], NOW) == []


def _in(place: str) -> str:
    """A stack whose innermost frame is there."""
    return INSIDE.replace("/x/torch/distributed/c10d.py", place)


@pytest.mark.parametrize(
    ("place", "waits"),
    [
        ("/x/seatrial/worker/mpi_group.py", True),
        ("/x/seatrial/worker/mpi_work.py", True),
        ("/x/torch/cuda/__init__.py", True),
        ("/x/seatrial/worker/mpi_staging.py", False),
        # Backward waits for others, or computes: who uses CPU time in it may be the one that is waited for.
        ("/x/torch/autograd/graph.py", False),
    ],
)
def test_who_spins_waits_by_its_stack_and_who_computes_holds_back_every_accusation(place: str, waits: bool) -> None:
    pulses = {0: _pulse(moved_at=NOW), 1: _pulse(), 2: _pulse()}
    stacks = {0: _in(place), 1: BEHIND, 2: INSIDE}
    assert _told(outside(pulses, stacks, NOW)) == ([("absent", 1)] if waits else [])


def test_who_sleeps_in_backward_waits_for_others() -> None:
    pulses = {0: _pulse(), 1: _pulse()}
    assert _told(outside(pulses, {0: _in("/x/torch/autograd/graph.py"), 1: BEHIND}, NOW)) == [("absent", 1)]


def test_a_stack_that_says_nothing_of_the_step_loop_accuses_nobody() -> None:
    pulses = {rank: _pulse() for rank in range(3)}
    other_thread = 'Thread 0x2 (most recent call first):\n  File "/x/threading.py", line 9 in wait\n'
    assert outside(pulses, {0: INSIDE, 1: "", 2: other_thread}, NOW) == []
    assert _told(outside(pulses, {0: INSIDE, 1: f"{other_thread}\n{BEHIND}", 2: INSIDE}, NOW)) == [("absent", 1)]


def test_at_the_deadline_all_alike_are_stuck_and_the_last_of_some_is_late() -> None:
    alike = {rank: _pulse(6) for rank in range(3)}
    stuck = [("stuck", 0), ("stuck", 1), ("stuck", 2)]
    assert _told(at_deadline(alike, [0, 1, 2], False, {}, (), NOW)) == stuck
    behind = {0: _pulse(6), 1: _pulse(5), 2: _pulse(4)}
    assert _told(at_deadline(behind, [0, 1, 2], False, {}, (), NOW)) == [("late", 2)]
    assert _told(at_deadline({0: _pulse(7), 1: _pulse(6)}, [1], True, {}, (), NOW)) == [("late", 1)]


def test_at_the_deadline_who_waits_inside_is_not_late() -> None:
    behind = {0: _pulse(7), 1: _pulse(6), 2: _pulse(6)}
    assert _told(at_deadline(behind, [1, 2], True, {1: INSIDE, 2: INSIDE}, (1, 2), NOW)) == [("stuck", 1), ("stuck", 2)]
    assert _told(at_deadline(behind, [1, 2], True, {1: INSIDE, 2: BEHIND}, (1, 2), NOW)) == [("late", 2)]


def test_at_the_deadline_those_that_were_not_asked_for_their_stacks_are_not_blamed() -> None:
    # Wrong would be to take who was never asked for one that gave no answer.
    pulses, asked = {rank: _pulse(6) for rank in range(40)}, range(16)
    all_inside = dict.fromkeys(asked, INSIDE)
    assert _told(at_deadline(pulses, range(40), False, all_inside, asked, NOW)) == [("stuck", rank) for rank in pulses]
    assert _told(at_deadline(pulses, range(40), False, {**all_inside, 7: BEHIND}, asked, NOW)) == [("late", 7)]
    silent = {rank: INSIDE for rank in asked if rank != 3}
    assert _told(at_deadline(pulses, range(40), False, silent, asked, NOW)) == [("late", 3)]


def test_at_the_deadline_a_moment_in_state_d_is_no_fault_and_a_stop_is() -> None:
    def held(state: str, since: float) -> dict[int, Pulse]:
        return {0: _pulse(6), 1: _pulse(6, state=state, held_since=since)}

    assert _told(at_deadline(held("D", NOW - 1), [0, 1], False, {}, (), NOW)) == [("stuck", 0), ("stuck", 1)]
    assert _told(at_deadline(held("D", NOW - 16), [0, 1], False, {}, (), NOW)) == [("frozen", 1)]
    assert _told(at_deadline(held("T", NOW - 1), [0, 1], False, {}, (), NOW)) == [("frozen", 1)]


def test_state_d_with_progress_is_not_held() -> None:
    pulse = _pulse(1)
    for second in range(20):
        pulse.update(("D", float(second), second, "phase"), NOW + second)
    assert suspects({0: pulse, 1: _pulse(99)}, [0], True, NOW + 20, together=True) == []


def test_at_the_deadline_who_was_getting_on_is_at_work() -> None:
    going = {rank: _pulse(entered_at=NOW - 4, moved_at=NOW - 1) for rank in range(3)}
    alike = [("working", 0), ("working", 1), ("working", 2)]
    assert _told(working(going, range(3), {}, NOW)) == alike
    assert _told(working(going, range(3), {0: INSIDE, 1: BEHIND}, NOW)) == alike
    assert working(going, range(3), dict.fromkeys(range(3), INSIDE), NOW) == [], "all wait for one another"
    assert working({**going, 1: _pulse(entered_at=NOW - 6, moved_at=NOW - 1)}, range(3), {}, NOW) == []
    assert working({**going, 1: _pulse(state="T", entered_at=NOW - 4, held_since=NOW - 1)}, range(3), {}, NOW) == []
