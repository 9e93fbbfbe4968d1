"""Ends of a rank that another one may have caused."""

from __future__ import annotations

import signal

import pytest

from seatrial.protocol.connecting import may_come_from_others


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("bootstrap/open the store", False),
        ("bootstrap/done store", True),
        ("bootstrap/begin world", True),
        ("bootstrap/meet at the store", True),
        ("bootstrap/first barrier", True),
        ("bootstrap/world formed", False),
        ("bootstrap/done world", False),
        ("start-up/meet the others", True),
        ("start-up/import torch", False),
        ("links/open the store", False),
        ("links/begin round 1", True),
        ("links/rendezvous at the store", True),
        ("links/nodes turn 3", True),
        ("links/nodes turn 3 transfers", False),
        ("collectives/begin measure", False),
        ("training/step 3 forward", False),
        ("compute/bootstrap/meet at the store", False),
        ("ready", False),
        ("", False),
    ],
)
def test_only_a_rank_that_connects_is_ended_by_others(phase: str, expected: bool) -> None:
    for code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        assert may_come_from_others(phase, -code, is_oom=False) is expected
    assert may_come_from_others(phase, -signal.SIGKILL, is_oom=True) is expected
    for own in (-signal.SIGKILL, -signal.SIGTERM, 0, 1, int(signal.SIGSEGV)):
        assert not may_come_from_others(phase, own, is_oom=False)
