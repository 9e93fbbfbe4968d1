"""How many bytes of events one agent may have kept."""

from __future__ import annotations

from seatrial.conductor.event_allowance import BURST_BYTES, BYTES_PER_S, EventAllowance


def test_a_burst_then_a_rate() -> None:
    allowance = EventAllowance(100.0)
    assert allowance.take(BURST_BYTES, 100.0)
    assert not EventAllowance(100.0).take(BURST_BYTES + 1, 100.0)
    assert all(allowance.take(BYTES_PER_S, 101.0 + second) for second in range(10_000))
    assert not allowance.take(1, 10_100.0)


def test_a_quiet_agent_gets_no_more_than_the_burst() -> None:
    allowance = EventAllowance(0.0)
    assert not allowance.take(BURST_BYTES + 1, 1e9)
