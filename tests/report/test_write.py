"""Writing: whole files, in the folder of the run, never over another run's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from event_streams import RUN, SCENES, healthy
from fake_checks import fake_load

from seatrial.conductor.conclude import conclude
from seatrial.errors import RequestError
from seatrial.report import write
from seatrial.report.console import lines
from seatrial.report.parts import OPTIONAL, optional
from seatrial.report.show import wrong_request
from seatrial.report.write import write_reports


def test_all_formats_and_the_latest(tmp_path: Path) -> None:
    written = write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert names == [
        f"{RUN}/junit.xml",
        f"{RUN}/report.html",
        f"{RUN}/report.json",
        "cluster_test_report.json",
    ]
    assert written.latest.read_bytes() == written.json.read_bytes()
    assert json.loads(written.json.read_text())["acceptance"]["status"] == "PASS"


def test_formats_that_were_left_out_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_FORMATS", {})
    written = write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert names == [f"{RUN}/report.json", "cluster_test_report.json"]
    assert (written.html, written.junit, written.best) == (None, None, written.json)
    told = lines(conclude(healthy().events, load=fake_load), written.best)
    assert f"report: {written.json}" in told
    assert any(f"seatrial report {tmp_path / RUN} --out DIR" in line for line in told)


def test_the_same_run_may_be_told_again(tmp_path: Path) -> None:
    events = SCENES["killed"]().events
    write_reports(conclude(events[:-3], load=fake_load), tmp_path)
    written = write_reports(conclude(events, load=fake_load), tmp_path)
    assert json.loads(written.json.read_text())["missing"] == []


@pytest.mark.parametrize("content", ['{"test_timestamp": "2020-01-01 00:00:00"}', "not JSON", "[]"])
def test_another_trial_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "report.json").write_text(content)
    with pytest.raises(RequestError, match="another trial"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path)
    assert (tmp_path / RUN / "report.json").read_text() == content
    assert not (tmp_path / "cluster_test_report.json").exists()


@pytest.mark.parametrize("run", ["../evil", "/evil", ".", "a/b", "x\n", "-rf", "é"])
def test_a_run_cannot_choose_its_folder(tmp_path: Path, run: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name of a folder"):
        write_reports(conclude(healthy(run=run).events, load=fake_load), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_request_is_told_as_one() -> None:
    refusal = wrong_request(conclude(SCENES["refused"]().events, load=fake_load))
    assert refusal == "--device cuda: torch finds no usable device"
    for scene in ("healthy", "killed", "own", "interrupted"):
        assert wrong_request(conclude(SCENES[scene]().events, load=fake_load)) is None


def test_without_any_events_there_is_a_report_too(tmp_path: Path) -> None:
    written = write_reports(conclude([]), tmp_path)
    assert json.loads(written.json.read_text())["acceptance"]["status"] == "INCONCLUSIVE"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        write_reports(conclude(healthy().events, load=fake_load), tmp_path / "file")


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_the_file_that_travels_leaves_out_is_there_otherwise(name: str) -> None:
    assert optional(name) is not None
    assert optional("nothing") is None
