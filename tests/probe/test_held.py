"""For how long others kept a process from its cores: readings made by hand."""

from __future__ import annotations

import pytest

from seatrial.probe.cgroup import Throttling
from seatrial.probe.held import Held, Reading, held_until


def _reading(
    at_s: float, waits: dict[str, float], *, cpu_s: float = 0.0, cores: int = 1, stopped_s: float = 0.0
) -> Reading:
    quotas = {"own": Throttling(stopped_s, None), "above": Throttling(70.0, 90.0)}
    return Reading(at_s=at_s, cpu_s=cpu_s, cores=cores, waits=waits, quotas=quotas)


def _held_s(*readings: Reading) -> float:
    held: Held | None = None
    seconds = []
    for reading in readings:
        held = held_until(reading, held)
        seconds.append(held.held_s)
    assert seconds == sorted(seconds)
    return seconds[-1]


def test_the_longest_wait_of_a_thread_counts() -> None:
    """The main thread of a rank sleeps while those of Gloo and autograd work."""
    assert _held_s(_reading(0, {"1": 3.0, "2": 5.0}), _reading(1, {"1": 3.0, "2": 5.9})) == pytest.approx(0.9)
    both = [_reading(at_s, {"1": 0.2 * at_s, "2": 0.8 * at_s, "3": 0.0}) for at_s in range(11)]
    assert _held_s(*both) == pytest.approx(8.0)


def test_threads_that_come_and_go_neither_add_nor_take_away() -> None:
    """A thread that waited for long and ended, and one that gets its number."""
    assert _held_s(
        _reading(0, {"1": 0.0, "2": 50.0}),
        _reading(1, {"1": 0.0}),
        _reading(2, {"1": 0.0, "2": 0.5}),
        _reading(3, {"1": 0.0, "2": 0.25}),
    ) == pytest.approx(0.75)
    one_after_the_other = [_reading(at_s, {"1": 0.0, str(9 + at_s): 0.75}) for at_s in range(5)]
    assert _held_s(*one_after_the_other) == pytest.approx(3.0)


def test_a_wait_that_the_kernel_shows_at_its_end_counts_once() -> None:
    """It counts the wait of a thread once that runs again. Another thread may have waited at the same time."""
    late = [_reading(at_s, {"1": 0.0, "2": 5.0 if at_s == 5 else 0.0}) for at_s in range(6)]
    assert _held_s(*late) == pytest.approx(5.0)
    together = [_reading(at_s, {"1": 0.5 * at_s, "2": 5.0 if at_s == 5 else 0.0}) for at_s in range(6)]
    assert _held_s(*together) == pytest.approx(5.0)


def test_a_thread_waits_no_longer_than_the_time_since_it_was_seen() -> None:
    """Of many threads some are first seen when others have ended."""
    late = [_reading(0, {"1": 0.0}, cores=64), _reading(1, {"1": 0.0, "2": 3600.0}, cores=64)]
    assert _held_s(*late) == pytest.approx(1.0)


def test_threads_of_a_rank_that_spin_on_its_core_are_no_others() -> None:
    """A link carries nothing, and the threads that ask for its message take the core from one another."""
    spinning = [_reading(at_s, {"1": 0.5 * at_s, "2": 0.5 * at_s}, cpu_s=at_s) for at_s in range(11)]
    assert _held_s(*spinning) == 0.0
    on_two = [_reading(at_s, {"1": 0.6 * at_s}, cpu_s=1.5 * at_s, cores=2) for at_s in range(11)]
    assert _held_s(*on_two) == pytest.approx(5.0)


def test_a_wait_for_the_quota_of_the_control_group_is_none_for_others() -> None:
    """The kernel counts that, too, and the quota is how the host is set up."""
    stopped = [_reading(at_s, {"1": 0.8 * at_s}, cpu_s=0.2 * at_s, stopped_s=0.8 * at_s) for at_s in range(11)]
    assert _held_s(*stopped) == 0.0
    little = [_reading(at_s, {"1": 0.8 * at_s}, cpu_s=0.2 * at_s, stopped_s=0.1 * at_s) for at_s in range(11)]
    assert _held_s(*little) == pytest.approx(7.0)


def test_a_kernel_that_does_not_count_holds_nobody() -> None:
    assert _held_s(_reading(0, {}), _reading(9, {})) == 0.0
