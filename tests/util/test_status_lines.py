"""Lines on standard error: no terminal obeys what a cluster or a rank said."""

from __future__ import annotations

import pytest

from seatrial.util.streams import print_status, print_status_lines

HOSTILE = "\x1b[2J\x1b]52;c;Y3VybA==\x07\r\u202e"
ESCAPED = r"\x1b[2J\x1b]52;c;Y3VybA==\x07\x0d\u202e"


def test_a_quoted_text_stays_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(f"seatrial: Slurm job 1 is waiting: {HOSTILE}\nseatrial smoke: PASS")
    assert capsys.readouterr().err == f"seatrial: Slurm job 1 is waiting: {ESCAPED}\\x0aseatrial smoke: PASS\n"


def test_a_long_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_status("x" * 1_000_000)
    assert capsys.readouterr().err == f"{'x' * 4_000} ... (cut)\n"


def test_the_lines_of_a_traceback_are_escaped_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_status_lines(f"Traceback:\n  File\nValueError: {HOSTILE}\n")
    assert capsys.readouterr().err == f"Traceback:\n  File\nValueError: {ESCAPED}\n"
