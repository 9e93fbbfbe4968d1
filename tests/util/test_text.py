"""Text for people: nothing hostile gets through."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.util.text import (
    as_name,
    fitted,
    format_number,
    format_size,
    format_time,
    plan_value,
    printable,
    printable_in_color,
)
from seatrial.util.toml_text import parse_toml


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
        *((f"a{blank}b", f"a\\u{ord(blank):04x}b") for blank in "\u115f\u1160\u2800\u3164\uffa0\u2003"),
    ],
)
def test_control_characters_become_escapes(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_words_that_blank_letters_join_are_no_name() -> None:
    assert [as_name("gpu-07"), as_name("all\u3164passed")] == ["gpu-07", '"all\\u3164passed"']


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (2.0, "2"), (0.98765, "0.9877"), (1234.56, "1235"), (123456.7, "123,457"), (1e-9, "1.000e-09")],
)
def test_numbers_have_four_significant_digits(value: float, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(8, "8 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (4 << 30, "4 GiB")])
def test_sizes(value: int, shown: str) -> None:
    assert format_size(value) == shown


def test_times_are_utc() -> None:
    assert format_time(1_767_323_045) == "2026-01-02 03:04:05"


def test_values_are_shown_as_in_a_plan_file() -> None:
    assert [plan_value(value) for value in (None, True, "a", 30.0, 0.5, ["fp32", None])] == [
        *("none", "true", '"a"', "30", "0.5", '["fp32", none]')
    ]


@given(st.text() | st.lists(st.text()))
@example('\x9b2J\u202e\x7f\x00\U000e0001\u00a0"\\x9b')
def test_a_value_of_a_plan_is_one_printable_line_of_toml(value: str | list[str]) -> None:
    written = plan_value(value)
    assert written.isprintable()
    assert parse_toml(f"a = {written}", "plan", instead="")["a"] == value


@pytest.mark.parametrize(
    ("width", "cut"),
    [
        (60, "GPU 1 holds 139.81 GiB, of which 1.12 GiB is free"),
        (40, "GPU 1 holds 139.81 GiB, of which..."),  # 1.12 alone has no unit
        (31, "GPU 1 holds 139.81 GiB, of..."),
        (22, "GPU 1 holds..."),
    ],
)
def test_a_text_is_cut_after_a_word_and_not_within_a_value(width: int, cut: str) -> None:
    assert fitted("GPU 1 holds 139.81 GiB, of which 1.12 GiB is free", width) == cut


def test_a_long_path_is_cut_within_itself() -> None:
    path = "/mnt/" + "checkpoints/" * 8
    assert fitted(f"cannot write to {path}", 60) == f"cannot write to {path}"[:57] + "..."


@pytest.mark.parametrize(
    "numbers",
    [
        "",
        "0",
        "1;32",
        "01;31",
        ";4",
        "2;3;4;7;9;21;22;23;24;25;27;28;29",
        "38;5;8",
        "38;5;48;1",
        "38;2;40;41;107",
        "38:2::48:5:8",
        "97;90;49;39",
    ],
)
def test_colors_of_a_rank_stay(numbers: str) -> None:
    assert printable_in_color(f"a\x1b[{numbers}mb") == f"a\x1b[{numbers}mb\x1b[0m"


@pytest.mark.parametrize(
    "numbers", ["8", "08", "1;8", "31;8;1", "38;5;1;8", "38;2;1;2;3;8", "38:5:1;8", "5", "6", "38;8", "200"]
)
def test_nothing_of_a_rank_is_hidden_or_blinks(numbers: str) -> None:
    assert printable_in_color(f"a\x1b[{numbers}mb") == f"a\\x1b[{numbers}mb"


@pytest.mark.parametrize(
    "numbers",
    [
        "30;40",
        "40",
        "047",
        "1;37;41;4",
        "38;5;16;48;5;16",
        "48;5;16;38;5;16",
        "38:5:16;48:5:16",
        "48;2;1;2;3",
        "38;2;1;2;3;48;2;1;2;3",
        "48:2::1:2:3",
        "107;97",
        ";100",
        "100;",
        "38;5;1;41",
    ],
)
def test_no_text_of_a_rank_has_the_color_of_its_background(numbers: str) -> None:
    assert printable_in_color(f"\x1b[30ma\x1b[{numbers}mb") == "\x1b[30ma\x1b[0mb\x1b[0m"
