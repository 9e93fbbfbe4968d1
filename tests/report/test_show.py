"""The exit code of the verdict does not depend on standard output."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import IO

import pytest
from event_streams import SCENES
from fake_checks import fake_load

from seatrial.judge.conclude import conclude
from seatrial.report.console import print_lines
from seatrial.report.show import show
from seatrial.report.write import write_reports


class Latin1Terminal(io.TextIOWrapper):
    """A terminal with 191 characters."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="latin-1")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "stdout",
    ["closed", pytest.param("full", marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full"))],
)
def test_the_report_is_named_where_it_cannot_be_printed(
    stdout: str, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conclusion = conclude(SCENES["killed"]().events, load=fake_load)
    written = write_reports(conclusion, tmp_path)
    stream: IO[str] | None = open("/dev/full", "w") if stdout == "full" else None  # noqa: SIM115 - closing it fails
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert show(conclusion, written, as_json=as_json) == 1
        assert show(conclusion, None, as_json=as_json) == 1
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("seatrial: FAIL; the report could not be printed (")
    assert f"it is in {written.files['json' if as_json else 'html']}." in first
    assert "no file of it was written." in second


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_that_lacks_a_character_shows_its_escape(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Latin1Terminal()
    print_lines(["node gpu–7 ✓ Größe"], stream)
    stream.flush()
    assert "node gpu-7 \\u2713 Größe".encode("latin-1") in stream.buffer.getvalue()  # type: ignore[attr-defined]
