"""Whatever goes wrong with ourselves during a trial: a report, and the same verdict when it is judged again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from event_streams import SCENES, Event, healthy
from fake_checks import fake_load
from targets.jobs import A_JOB

from seatrial.checks import registry
from seatrial.cli.click_app import cli
from seatrial.errors import RequestError, SeatrialError
from seatrial.report.show import show
from seatrial.run import run_trial as module
from seatrial.targets.job import Job

Keep = Callable[[Event], None]
Conduct = Callable[..., int]


@pytest.fixture(autouse=True)
def _judged_by_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", fake_load)


def tells(scene: str, damaged: int = 0, error: Exception | None = None, until: int | None = None) -> Conduct:
    """A conductor that hands on the events of a scene, and then ends as it is told to."""

    def conduct_double(job: Job, folder: Path, keep: Keep, caught: list[int], rendezvous: Any, hear: Any) -> int:
        events = healthy(run=job.run).events if scene == "healthy" else SCENES[scene]().events
        for event in events[:until]:
            keep({**event, "run": job.run})
        if error is not None:
            raise error
        return damaged

    return conduct_double


def run_scene(tmp_path: Path, conduct: Conduct, monkeypatch: pytest.MonkeyPatch, *, debug: bool = False) -> int:
    monkeypatch.setattr(module, "conduct", conduct)
    printed = partial(show, as_json=True)
    return module.run_trial(A_JOB, tmp_path, None, (), location="here", show=printed, quiet=True, debug=debug)


def judged_again(tmp_path: Path) -> int:
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    result = CliRunner().invoke(cli, ["report", str(folder)], standalone_mode=False)
    assert isinstance(result.return_value, int), result.exception
    return result.return_value


@pytest.mark.parametrize(("scene", "code"), [("healthy", 0), ("killed", 1), ("interrupted", 130)])
def test_the_verdict_is_that_of_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str, code: int
) -> None:
    assert run_scene(tmp_path, tells(scene), monkeypatch) == code
    assert judged_again(tmp_path) == code


def test_damaged_lines_are_no_pass_then_nor_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_scene(tmp_path, tells("healthy", damaged=2), monkeypatch) == 3
    assert judged_again(tmp_path) == 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by 0"), "a bug in seatrial ended the trial (ZeroDivisionError: by 0)"),
        (
            RuntimeError("can't start new thread"),
            "the host gave no further thread or process; none is left there, or a limit allows no more (can't start",
        ),
        (OSError(24, "Too many open files"), "the host gave no further open file; none is left there, or a limit"),
        (SeatrialError("none of the ports is free."), "none of the ports is free."),
    ],
)
@pytest.mark.parametrize("until", [0, 9, None])
def test_our_own_mistake_is_a_report_and_no_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: str,
    until: int | None,
) -> None:
    assert run_scene(tmp_path, tells("healthy", error=error, until=until), monkeypatch) == 3
    told = json.loads(capsys.readouterr().out)
    assert any(words in finding["what"] for finding in told["findings"])
    assert judged_again(tmp_path) == 3


def test_debug_shows_the_traceback_of_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tells("healthy", error=ZeroDivisionError())
    assert run_scene(tmp_path / "quiet", broken, monkeypatch) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert run_scene(tmp_path / "loud", broken, monkeypatch, debug=True) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_refusal_of_the_ranks_is_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="--device cuda: torch finds no usable device"):
        run_scene(tmp_path, tells("refused"), monkeypatch)
    (written,) = tmp_path.glob("*/report.json")
    report = json.loads(written.read_text())
    assert (report["acceptance"]["status"], report["exit_code"]) == ("INCONCLUSIVE", RequestError.exit_code)
    assert judged_again(tmp_path) == RequestError.exit_code


def test_a_refusal_of_the_launcher_is_a_wrong_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = RequestError("sbatch refuses the job: Invalid partition name specified.")
    with pytest.raises(RequestError, match="sbatch refuses the job"):
        run_scene(tmp_path / "refused", tells("healthy", error=refusal, until=1), monkeypatch)
    # No report says anything else beside the exit code, and none lies beside those of other trials.
    assert not list((tmp_path / "refused").iterdir())
    assert run_scene(tmp_path / "failed", tells("killed", error=refusal), monkeypatch) == 1


def test_a_refusal_after_nodes_joined_has_one_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = RequestError("the pods cannot start: no such image")
    with pytest.raises(RequestError, match="the pods cannot start: no such image"):
        run_scene(tmp_path, tells("healthy", error=refusal, until=9), monkeypatch)
    (written,) = tmp_path.glob("*/report.json")
    report = json.loads(written.read_text())
    assert (report["acceptance"]["status"], report["exit_code"]) == ("INCONCLUSIVE", RequestError.exit_code)
    assert judged_again(tmp_path) == RequestError.exit_code


def test_a_report_elsewhere_says_why_it_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "out"
    healthy_double = tells("healthy")

    def conduct_double(job: Job, folder: Path, *others: Any) -> int:
        (folder / "report.html").mkdir()
        return healthy_double(job, folder, *others)

    assert run_scene(out, conduct_double, monkeypatch) == 3
    (elsewhere,) = tmp_path.glob("seatrial-*/*/report.json")
    assert json.loads(elsewhere.read_text()) == json.loads(capsys.readouterr().out)
    assert (elsewhere.parents[1] / "cluster_test_report.json").read_text() == elsewhere.read_text()


def test_an_out_that_is_exchanged_keeps_its_newest_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, others = tmp_path / "out", tmp_path / "others"
    others.mkdir()
    (others / "cluster_test_report.json").write_text("of other hosts")
    healthy_double = tells("healthy")

    def conduct_double(job: Job, folder: Path, *others_of_it: Any) -> int:
        out.rename(tmp_path / "moved")
        out.symlink_to(others)
        return healthy_double(job, folder, *others_of_it)

    # 3 where the events were not open yet: their file is not found any more.
    assert run_scene(out, conduct_double, monkeypatch) in (0, 3)
    assert (others / "cluster_test_report.json").read_text() == "of other hosts"
    assert f"{out} is another folder than when this run began" in capsys.readouterr().err


def test_no_copy_of_the_newest_report_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    latest = tmp_path / "cluster_test_report.json"
    latest.mkdir()
    assert run_scene(tmp_path, tells("healthy"), monkeypatch) == 0
    shown, told = capsys.readouterr()
    assert f"seatrial: {latest} is no copy of this report (Is a directory), and what lies there is a folder of" in told
    (written,) = tmp_path.glob("*-*/report.json")
    assert json.loads(written.read_text()) == json.loads(shown)
