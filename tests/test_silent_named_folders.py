"""A folder that is named, also by a default: nothing waits where a neighbor has put a mount or a link at its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from neighbor_mount import NEIGHBOR, mounted, mounted_and_unasked

from seatrial import files, start
from seatrial.bundle import write_bundle
from seatrial.cli.commands import data_fetch
from seatrial.errors import RequestError, SeatrialError
from seatrial.folders import make_folder, open_above, open_judged, open_with_links
from seatrial.judge.conclude import conclude
from seatrial.report import earlier_runs, write
from seatrial.report.earlier_runs import runs_for_limits
from seatrial.report.recorded_events import RECORD
from seatrial.report.write import write_reports, write_somewhere
from seatrial.run import run_trial
from seatrial.run.record import Recorder, new_folder
from seatrial.targets.kubernetes import log_copies
from seatrial.training.checkpoint import CheckpointFolder
from seatrial.training.data.datasets import DATASETS
from seatrial.training.data.fetch import fetch
from seatrial.training.profile import StepProfile
from seatrial.worker.rendezvous import meeting_place
from seatrial.worker.train_log import EpochLog

pytestmark = pytest.mark.root
_SAYS = f"is on a file system of user {NEIGHBOR}, who decides what it shows"


def _meet(folder: Path) -> None:
    with meeting_place(f"file://{folder.absolute()}/meet", removes=False):
        pass


_USES: dict[str, Callable[[Path], Any]] = {
    "--out": new_folder,
    "reports": lambda folder: write_reports(conclude([]), folder),
    "checkpoints": lambda folder: CheckpointFolder(folder).newest(),
    "--log": lambda folder: EpochLog(folder / "log", None, continued=False),
    "--profile": lambda folder: StepProfile(folder / "trace", torch.device("cpu")),
    "--init": _meet,
    "bundle": lambda folder: write_bundle(folder / "seatrial.pyz"),
    "a new folder": lambda folder: make_folder(folder / "new"),
    "open_above": lambda folder: open_above(folder / "file"),
    "open_judged": open_judged,
    "open_with_links": open_with_links,
}


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have this process begin now, and again at each call."""

    def begin() -> None:
        monkeypatch.setattr(start, "_FIRST_MOUNTS", start._mounts())

    begin()
    return begin


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (theirs := tmp_path / "theirs").mkdir()
    return theirs


def _plant(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.chown(link, NEIGHBOR, NEIGHBOR, follow_symlinks=False)


@pytest.mark.parametrize("use", _USES)
def test_nothing_is_asked_behind_a_link_of_a_neighbor(
    use: str, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _plant(tmp_path / "named", theirs / "sub")
    with mounted_and_unasked(theirs), pytest.raises((OSError, RequestError), match=f"{theirs} {_SAYS}"):
        _USES[use](Path("named"))


@pytest.mark.parametrize("mounts_at", [".", ".."])
@pytest.mark.parametrize("use", sorted({*_USES} - {"--init", "--log"}))
def test_a_mount_over_the_folder_of_the_user_in_a_container(
    use: str, mounts_at: str, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor makes it where the user types, or above, once the process is there. Whether root is trusted in a
    container of a user depends on the folders above, which are asked as they are open, and not by their names."""
    monkeypatch.setattr(start, "_has_own_numbers", lambda: True)
    (theirs / "reports").mkdir()
    monkeypatch.chdir(theirs)
    with mounted_and_unasked((theirs / mounts_at).resolve()):
        _USES[use](Path("reports"))


@pytest.mark.parametrize("owner", [0, NEIGHBOR])
@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_a_mount_in_a_folder_of_others_is_not_asked(
    owner: int, mode: int, theirs: Path, tmp_path: Path, begun: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(mode)
    os.chown(tmp_path, owner, owner)
    monkeypatch.chdir(tmp_path)
    is_shared = owner == NEIGHBOR or mode != 0o755
    with (
        mounted_and_unasked(theirs) if is_shared else mounted(theirs, shown_owner=NEIGHBOR, name="file"),
        pytest.raises(OSError, match=_SAYS) if is_shared else contextlib.nullcontext(),
    ):
        begun()
        for named in (theirs, theirs.name):
            os.close(start.open_named_folder(named))


def test_one_that_a_neighbor_mounts_before_the_first_folder_is_not_asked(theirs: Path) -> None:
    """A rank opens the folder of the storage check minutes after its start."""
    with mounted_and_unasked(theirs), pytest.raises(OSError, match=_SAYS):
        start.open_named_folder(theirs)


def test_no_link_of_a_neighbor_is_followed_where_all_can_make_some(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "ours").mkdir()
    (tmp_path / "own").symlink_to("ours")
    os.close(start.open_named_folder(tmp_path / "own"))
    _plant(tmp_path / "link", tmp_path / "ours")
    with pytest.raises(PermissionError, match=f"link is a link of user {NEIGHBOR}, in a folder where all users can"):
        start.open_named_folder(tmp_path / "link")
    # They have made the folder for their own users.
    os.chown(tmp_path, NEIGHBOR, NEIGHBOR)
    os.close(start.open_named_folder(tmp_path / "link"))


@pytest.mark.parametrize("name", ["theirs", "link", "above/theirs"])
def test_a_mount_that_the_user_has_chosen_is_used(
    name: str, theirs: Path, tmp_path: Path, begun: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a name and links of root or this user in folders of theirs, such as a disk that a service has mounted."""
    (tmp_path / "link").symlink_to(theirs)
    (tmp_path / "above").symlink_to(".")
    with mounted(theirs, shown_owner=NEIGHBOR, name="file"):
        begun()
        monkeypatch.chdir(tmp_path)
        for folder in (tmp_path / name, Path(name)):
            opened = start.open_named_folder(folder)
            assert os.fstat(opened).st_uid == NEIGHBOR
            os.close(opened)
        # Who works there has chosen it, whoever could have put it there.
        tmp_path.chmod(0o777)
        monkeypatch.chdir(theirs)
        for folder in (Path("."), Path("../theirs")):
            os.close(start.open_named_folder(folder))
        with pytest.raises(OSError, match=_SAYS):
            start.open_named_folder(tmp_path / name)


def test_an_out_that_is_exchanged_during_a_trial_costs_no_verdict(tmp_path: Path, theirs: Path) -> None:
    """A neighbor who can rename it puts a link there: the events are noted, and the report goes elsewhere."""
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    out = shared / "reports"
    run, folder = new_folder(out)
    recorder = Recorder(run, folder)
    out.rename(shared / "moved")
    _plant(out, theirs / "sub")
    with mounted_and_unasked(theirs):
        recorder.close()
        assert runs_for_limits(conclude([]), folder) == []
        with pytest.raises(OSError, match=_SAYS):
            log_copies._put_aside(folder / "pod.log")
        with pytest.raises(SystemExit):
            start._read(str(folder / "seatrial.pyz"))
        written, problem = write_somewhere(conclude([]), out, "")
        recorder.note("noted")
        run_trial._remove(folder, folder / RECORD)
    assert written is not None
    assert written.document.exists()
    assert problem.startswith(f"--out {out}: the report cannot be written there ({theirs} {_SAYS})")
    assert (shared / "moved" / run / RECORD).exists()


def test_a_folder_of_a_run_that_is_exchanged_while_it_is_read(
    tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run is looked at, and then read; a neighbor who can rename it puts a link there between both."""
    (out := tmp_path / "reports").mkdir()
    earlier = out / "20250101-000000-abcd"
    earlier.mkdir()
    (earlier / RECORD).write_text("{}\n")
    _, folder = new_folder(out)
    real = earlier_runs._is_such

    def exchanged(conclusion: Any, other: Path) -> bool:
        earlier.rename(out / "moved")
        _plant(earlier, theirs)
        return real(conclusion, other)

    monkeypatch.setattr(earlier_runs, "_is_such", exchanged)
    with mounted_and_unasked(theirs):
        assert runs_for_limits(conclude([]), folder) == []
    assert (out / "moved").exists()


def test_a_folder_of_a_run_that_is_exchanged_once_its_report_is_written(
    tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "reports"
    write_somewhere(conclude([]), out, "")
    run, folder = new_folder(out)
    conclusion = conclude([])
    conclusion = replace(conclusion, trial=replace(conclusion.trial, run=run))
    real = files.has_entry

    def exchanged(path: Path, named_folder: Path | None = None) -> bool:
        if path.name == RECORD:
            assert path.parent.name == run
            folder.rename(out / "moved")
            _plant(folder, theirs / "sub")
        return real(path, named_folder)

    monkeypatch.setattr(write, "has_entry", exchanged)
    with mounted_and_unasked(theirs):
        write_reports(conclusion, out)
    assert (out / "moved").exists()


@pytest.mark.parametrize("has_another_before", [False, True])
def test_a_mount_over_a_folder_of_a_group_during_a_trial(has_another_before: bool, tmp_path: Path) -> None:
    """One that the neighbor had before, and ends, leaves its number to the next."""
    (group := tmp_path / "group").mkdir()
    os.chown(group, 0, NEIGHBOR)
    group.chmod(0o2770)
    out = group / "own" / "reports"
    (other := tmp_path / "other").mkdir()
    with mounted_and_unasked(other) if has_another_before else contextlib.nullcontext():
        _, folder = new_folder(out)
    with mounted_and_unasked(group):
        assert runs_for_limits(conclude([]), folder) == []
        written, problem = write_somewhere(conclude([]), out, "")
    assert written is not None
    assert problem.startswith(f"--out {out}: the report cannot be written there ({group} {_SAYS})")


def test_data_fetch_refuses_a_folder_to_which_a_neighbor_leads(theirs: Path, tmp_path: Path) -> None:
    _plant(tmp_path / "named", theirs / "sub")
    options = {"name": "mnist", "folder": tmp_path / "named", "mirrors": []}
    with mounted_and_unasked(theirs), pytest.raises(RequestError, match=f"{theirs} {_SAYS}"):
        data_fetch.run(options, debug=False)


def test_so_it_does_when_the_neighbor_leads_there_later(theirs: Path, tmp_path: Path) -> None:
    """Between two looks at one name another folder may get it."""
    _plant(tmp_path / "named", theirs / "sub")
    with mounted_and_unasked(theirs), pytest.raises(SeatrialError, match=f"cannot write .*{theirs} {_SAYS}"):
        fetch(DATASETS["mnist"], tmp_path / "named", print_status=print, on_bytes=lambda *_: None)
