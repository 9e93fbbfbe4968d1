"""The interim report: rare, and never a problem for the trial."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from event_streams import RUN, SCENES, Event

from seatrial import folders
from seatrial.judge.conclude import Conclusion, conclude
from seatrial.report import interim as module
from seatrial.report.interim import Interim
from seatrial.report.write import write_somewhere


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
        assert interim.close() == ""
    assert len(written) == 1
    now += 9.9
    interim(trouble(1), [])
    assert interim.close() == ""
    assert len(written) == 1
    now += 0.2
    for gen in (0, 1):
        interim(trouble(gen), [])
        assert interim.close() == ""
        assert len(written) == 1 + gen


def test_a_disk_that_answers_nothing_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents heard nothing for 35 s and ended all ranks. This report must not replace the last one later."""
    answers, written = threading.Event(), list[int]()

    def slow(conclusion: Conclusion, out: Path) -> None:
        assert answers.wait(20)
        written.append(len(conclusion.findings))

    monkeypatch.setattr(module, "write_reports", slow)
    monkeypatch.setattr(module, "_LAST_WRITE_S", 0.2)
    events = SCENES["killed"]().events
    interim, began = Interim(tmp_path, clock=lambda: 50.0 + 20 * len(written)), time.monotonic()
    for gen in (0, 1):
        interim(trouble(gen), events)
    problem = interim.close()
    assert time.monotonic() - began < 10
    assert problem == f"--out {tmp_path}: the disk has not answered for 0 s."
    found, why = write_somewhere(conclude(events), tmp_path, problem)
    assert found is not None
    assert why == f"{problem} The report is in {found.folder.parent} instead."
    assert list(tmp_path.iterdir()) == []
    answers.set()
    assert interim.close() == ""
    assert len(written) == 1
    shutil.rmtree(found.folder.parent)


def test_a_report_goes_where_no_neighbor_can_exchange_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    temporary.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (sticky := tmp_path / "sticky").mkdir()
    sticky.chmod(0o1777)
    for places, expected in (((str(sticky),), sticky), ((), temporary)):
        monkeypatch.setattr(folders, "TEMPORARY", places)
        found, why = write_somewhere(conclude(SCENES["killed"]().events), tmp_path, "full.")
        assert found is not None, why
        assert found.folder.parent.parent == expected


def test_it_reports_the_events_so_far(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    at = next(number for number, event in enumerate(events) if event["kind"] == "trouble")
    interim = Interim(tmp_path)
    interim(events[at], events[: at + 1])
    assert interim.close() == ""
    assert (tmp_path / RUN / "report.json").is_file()


def test_it_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "write_reports", breaks)
    interim = Interim(tmp_path)
    interim(trouble(0), [])
    assert interim.close() == ""
    interim({"kind": "trouble", "gen": []}, [])


def test_it_reports_no_flood_of_one_agent(tmp_path: Path) -> None:
    """What an agent may send takes 45 s of a core to report, and the conductor needs that core."""
    events = SCENES["killed"]().events
    at = next(number for number, event in enumerate(events) if event["kind"] == "trouble")
    flood = {"kind": "facts", "facts": [{"value": [1] * 1_000}] * 600}
    interim = Interim(tmp_path)
    interim(events[at], [flood, *events[: at + 1]])
    assert interim.close() == ""
    assert not (tmp_path / RUN).exists()
