"""Ends of a rank that another one may have caused."""

from __future__ import annotations

import signal

import pytest

from seatrial.protocol.connecting import is_before_meeting, may_come_from_others


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
        assert may_come_from_others(phase, -code, (), is_oom=False) is expected
    assert may_come_from_others(phase, -signal.SIGKILL, (), is_oom=True) is expected
    for own in (-signal.SIGKILL, -signal.SIGTERM, 0, 1, int(signal.SIGSEGV)):
        assert not may_come_from_others(phase, own, (), is_oom=False)


def test_ranks_of_a_training_wait_for_others_from_their_meeting_on() -> None:
    assert all(map(is_before_meeting, ("", "start-up/import torch", "start-up/open device")))
    assert not any(map(is_before_meeting, ("start-up/meet the others", "load data", "step 1 forward", "end")))


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("Call to socket failed: Too many open files", True),
        ("Call to accept failed: Too many open files in system (23)", True),
        ("Call to malloc failed: Cannot allocate memory", True),
        ("Call to ibv_reg_mr failed: Cannot allocate memory", False),
        ("Cuda failure 2 'out of memory'", False),
        ("Cuda failure 214 'uncorrectable ECC error encountered'", False),
        ("Error: failed to extend /dev/shm/nccl-a to 33030532 bytes, error: No space left on device (28)", False),
    ],
)
@pytest.mark.parametrize("before", [(), ("CUDA error: uncorrectable ECC error encountered",)])
def test_what_others_take_of_a_host_is_no_fault_of_its_device(
    last: str, expected: bool, before: tuple[str, ...]
) -> None:
    lines = [
        "NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.3",
        "Last error:",
        last,
    ]
    said = may_come_from_others("bootstrap/meet at the store", -signal.SIGABRT, (*before, *lines), is_oom=False)
    assert said is (expected and not before)
