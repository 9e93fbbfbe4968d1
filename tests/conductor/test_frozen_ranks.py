"""From when on a rank in state T or D counts as frozen, in the step in which it is."""

from __future__ import annotations

import pytest
from conductor.simulated_program import config

from seatrial.conductor.hang_detector import HangDetector
from seatrial.conductor.program_conductor import ProgramConductor
from seatrial.conductor.rank_status import is_quiet

_HOSTS = {rank: f"host {rank}" for rank in range(3)}


@pytest.mark.parametrize("state", ["D", "T"])
def test_a_step_begins_without_the_past_of_its_ranks(state: str) -> None:
    """A wait for a disk while the rank starts, or at the end of the step before, is no fault of this step."""
    hang_detector = HangDetector(_HOSTS, 200.0, 0.0)
    for now in range(30, 41):
        hang_detector.statuses[2].update((state, 1.0, 1, "starting"), float(now))
    for began_at in (41.0, 50.0):
        hang_detector.begin(range(3), 400.0, began_at, together=False)
        assert hang_detector.poll(began_at + 0.5) is None
    for now in range(51, 67):
        assert hang_detector.poll(now - 0.5) is None
        hang_detector.statuses[2].update((state, 1.0, 1, "starting"), float(now))
    assert hang_detector.poll(66.5) == "trouble", "it was there for as long in this step, too"
    assert hang_detector.guilty() == {2}


@pytest.mark.parametrize("together", [True, False])
def test_a_stopped_rank_is_frozen_and_never_absent(together: bool) -> None:
    hang_detector = HangDetector(_HOSTS, 200.0, 0.0)
    hang_detector.begin(range(3), 400.0, 0.0, together=together)
    hang_detector.finished(0, 1.0)
    hang_detector.finished(1, 1.0)
    hang_detector.statuses[0].number = hang_detector.statuses[1].number = 9
    for tick in range(4, 80):
        if tick % 4 == 0:
            hang_detector.statuses[2].update(("T", 1.0, 1, "x"), tick * 0.2499)
        if hang_detector.poll(tick * 0.25):
            break
    assert [suspicion.how for suspicion in hang_detector.suspicions] == ["frozen"]


def test_a_rank_of_a_program_is_known_from_its_start_on() -> None:
    """The clock of the conductor does not begin with it: else its first statuses would seem to come late."""
    status = ProgramConductor(config(), 5_000.0)._statuses()[0]
    for second in range(1, 16):
        assert not is_quiet(status, 5_000.0 + second)
        status.update(("S", 0.0, 0, ""), 5_000.0 + second)
    assert is_quiet(status, 5_015.0)
