"""The interim report: rare, and never a problem for the trial."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_streams import RUN, SCENES, Event

from seatrial.report import interim as module
from seatrial.report.interim import Interim


def trouble(gen: int) -> Event:
    return {"kind": "trouble", "gen": gen}


def test_once_a_generation_and_ten_seconds_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(module, "write_reports", lambda conclusion, out: written.append(1))
    now = 50.0
    interim = Interim(tmp_path, clock=lambda: now)
    interim({"kind": "note"}, [])
    assert len(written) == 0
    for _ in range(3):
        interim(trouble(0), [])
    assert len(written) == 1
    now += 9.9
    interim(trouble(1), [])
    assert len(written) == 1
    now += 0.2
    interim(trouble(0), [])
    assert len(written) == 1
    interim(trouble(1), [])
    assert len(written) == 2


def test_it_reports_the_events_so_far(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    at = next(number for number, event in enumerate(events) if event["kind"] == "trouble")
    Interim(tmp_path)(events[at], events[: at + 1])
    assert (tmp_path / RUN / "report.json").is_file()


def test_it_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "write_reports", breaks)
    Interim(tmp_path)(trouble(0), [])
    Interim(tmp_path)({"kind": "trouble", "gen": []}, [])


def test_it_reports_no_flood_of_one_agent(tmp_path: Path) -> None:
    """What an agent may send takes 45 s to report, and the conductor hears and says nothing meanwhile."""
    events = SCENES["killed"]().events
    at = next(number for number, event in enumerate(events) if event["kind"] == "trouble")
    flood = {"kind": "facts", "facts": [{"value": [1] * 1_000}] * 600}
    Interim(tmp_path)(events[at], [flood, *events[: at + 1]])
    assert not (tmp_path / RUN).exists()
