"""What the tests take for a pass."""

from __future__ import annotations

import pytest
from passes import left_open, passes

LINE = "====\nFINAL ACCEPTANCE: PASS"
STARVED = "the bf16 speed of rank 3 could not be judged: other processes held the CPU"


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (f"{LINE}\n- GPU Available", True),
        (f"{LINE}\r\n", True),
        (f"{LINE} (partial: {STARVED})\n", True),
        (
            f"{LINE} (partial: {STARVED}, how fast rank 1 computes could not be judged: other processes held the CPU)",
            True,
        ),
        (f"{LINE} (partial: 1 rank)\n", False),
        (f"{LINE} (partial: {STARVED}, links not asked for)\n", False),
        ("FINAL ACCEPTANCE: FAIL\n", False),
        ("", False),
    ],
)
def test_only_speeds_on_a_busy_machine_may_be_left_open(said: str, taken: bool) -> None:
    assert passes(said) is taken


def test_what_else_is_open_is_told() -> None:
    assert left_open([STARVED, "training not asked for", STARVED]) == ["training not asked for"]
