"""Words for people: nothing hostile gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.report.text import amount, moment, printable, size


@given(st.text())
def test_nothing_unprintable_is_left(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("gpu-07", "gpu-07"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nFINAL ACCEPTANCE: PASS", "a\\x0aFINAL ACCEPTANCE: PASS"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("Größe ✓", "Größe ✓"),
    ],
)
def test_control_characters_become_escapes(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (2.0, "2"), (0.98765, "0.9877"), (1234.56, "1235"), (123456.7, "123,457"), (1e-9, "1.000e-09")],
)
def test_amounts_keep_four_figures(value: float, shown: str) -> None:
    assert amount(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(8, "8 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (4 << 30, "4 GiB")])
def test_sizes(value: int, shown: str) -> None:
    assert size(value) == shown


def test_moments_are_utc() -> None:
    assert moment(1_767_323_045) == "2026-01-02 03:04:05"
