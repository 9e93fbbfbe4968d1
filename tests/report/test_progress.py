"""Progress: never in the way of the trial, and nothing raw on the terminal."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from seatrial.report.progress import Progress

STEP: dict[str, Any] = {
    "kind": "step",
    "step": 0,
    "check": "compute",
    "stage": "measure",
    "ranks": [0],
    "timeout_s": 60.0,
}


def test_what_ranks_send_is_not_raw() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress({"kind": "generation", "gen": 0, "ranks": [[0, 0, 0]]})
    progress({"kind": "rank", "device": "GPU\x1b[2J\nFINAL ACCEPTANCE: PASS"})
    assert stream.getvalue().count("\n") == 2
    assert "\x1b" not in stream.getvalue()
    assert "GPU\\x1b[2J\\x0aFINAL" in stream.getvalue()


def test_a_reader_that_is_gone_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = open(write, "w", buffering=1)  # noqa: SIM115 - it cannot be closed in order
    progress = Progress(stream)
    for _ in range(3):
        progress(STEP)
    progress.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_stream_that_is_closed_or_was_never_there_is_no_failure() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        progress = Progress(stream)
        progress(STEP)
        progress.close()


def test_a_terminal_that_goes_away_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = os.openpty()
    with open(terminal, "w") as stream:
        progress = Progress(stream)
        progress(STEP)
        os.close(controller)
        progress(STEP)
        progress.close()


@pytest.mark.parametrize(
    "event", [{"kind": "rank"}, {"kind": "step_end", "outcome": "x", "step": 0, "seconds": "long"}]
)
def test_an_event_of_the_wrong_shape_is_passed_over(event: dict[str, Any]) -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress({"kind": "generation", "gen": 0, "ranks": [[0, 0, 0]]})
    told = stream.getvalue()
    progress(event)
    assert stream.getvalue() == told


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "trouble", "seen": ["rank 0"]},
        {"kind": "step", "step": 0, "check": "compute", "stage": "repeat", "ranks": [], "timeout_s": 1.0},
        {"kind": "step", "step": 0, "check": "compute", "stage": "measure", "ranks": [0], "timeout_s": 10**400},
    ],
)
def test_fields_of_the_wrong_shape_are_passed_over(event: dict[str, Any]) -> None:
    stream = io.StringIO()
    Progress(stream)(event)
    assert stream.getvalue() == ""
