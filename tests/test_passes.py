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
        (f"{LINE} (partial: {STARVED}, links not asked for)\n", True),
        (f"{LINE} (partial: {STARVED}, network, links not asked for)\n", False),
        ("FINAL ACCEPTANCE: FAIL\n", False),
        ("", False),
    ],
)
def test_only_links_and_speeds_on_a_busy_machine_may_be_left_open(said: str, taken: bool) -> None:
    assert passes(said) is taken


def test_other_open_reasons_are_listed() -> None:
    assert left_open([STARVED, "training not asked for", STARVED]) == ["training not asked for"]
