"""Ctrl-C and SIGTERM at every step: what was measured is kept, exit code 130, nothing stays behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live.trials import Trial

IN_EVERY_RUN = [("start", "SIGINT")]


def begins(check: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["kind"] == "step" and event["check"] == check


@pytest.mark.parametrize(
    ("check", "number"),
    [
        pytest.param(
            check,
            number,
            marks=[] if (check, number.name) in IN_EVERY_RUN else pytest.mark.slow,
            id=f"{check}-{number.name}",
        )
        for check in ("start", "compute", "bootstrap", "collectives", "training")
        for number in (signal.SIGINT, signal.SIGTERM)
    ],
)
def test_interrupted(tmp_path: Path, number: signal.Signals, check: str) -> None:
    # A rank that hangs holds the step, so that the signal surely falls into it.
    running = Trial(tmp_path, plant=[] if check == "start" else [f"hang@{check}:0"])
    running.until((lambda event: event["kind"] == "generation") if check == "start" else begins(check))
    running.signal(number)
    ended = running.ended()
    assert ended.exit_code == 130
    assert ended.report["status"] == "interrupted"
    assert ended.report["acceptance"]["interrupted_by"] == number.name
    assert not any(finding["severity"] == "fail" for finding in ended.report["findings"])
    if check in ("collectives", "training"):
        assert any(measurement["check"] == "compute" for measurement in ended.report["measurements"])
    assert (ended.folder / "report.html").stat().st_size > 0
