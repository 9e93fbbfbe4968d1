"""Nothing waits for a neighbor who has mounted a file system (FUSE) that answers nothing: nobody could end the wait."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from neighbor_mount import NEIGHBOR, mounted_and_unasked

from seatrial import files, folders, start
from seatrial.agent import mpi_rank, program_ranks, py_spy
from seatrial.checks.storage import tokens
from seatrial.environment import working_folder
from seatrial.environment.working_folder import FolderTrust
from seatrial.errors import RequestError
from seatrial.judge.conclude import conclude
from seatrial.report import earlier_runs, formats, recorded_events
from seatrial.report.write import write_reports
from seatrial.request import script_request
from seatrial.run import job_secret, run_trial
from seatrial.targets import processes
from seatrial.targets.command import Command
from seatrial.targets.kubernetes import carried_script
from seatrial.targets.ssh import bootstrap
from seatrial.training.data import dataset_files

pytestmark = pytest.mark.root
_NOBODY = FolderTrust()
_SAYS = f"is on a file system of user {NEIGHBOR}, who decides what it shows"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "job").mkdir()
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (file := tmp_path / "file").write_text("")
    return file


def test_a_folder_that_should_be_private(folder: Path) -> None:
    with mounted_and_unasked(folder):
        for use in (folders.make_private, folders.require_private):
            with pytest.raises(folders.NotPrivateError, match=_SAYS):
                use(folder)
        with pytest.raises(SystemExit):
            start._private_folder(str(folder))


def test_a_file_that_decides_what_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with mounted_and_unasked(file):
        for path in (file, file.name):
            with pytest.raises(OSError, match=f"file {_SAYS}"):
                files.read_trusted(path, 10)


def test_a_file_in_a_shared_folder(file: Path) -> None:
    with mounted_and_unasked(file):
        for use in (files.open_lock, files.open_to_append, files.open_to_overwrite, files.require_ours):
            with pytest.raises(OSError, match=f"file {_SAYS}"):
                use(file)
        with pytest.raises(OSError, match=f"file {_SAYS}"):
            files.open_to_read(file, run_folder=True)
        with pytest.raises(OSError, match=f"file {_SAYS}"):
            files.write_atomically(file, b"", only_ours=True)


@pytest.mark.parametrize("name", ["file", "name"])
def test_the_folder_of_a_run_that_is_mounted_over(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be open to a group. The user has named the folder above."""
    monkeypatch.chdir(folder.parent)
    openers = (files.create, files.open_to_append, files.open_to_overwrite, files.open_to_read, files.remove)
    with mounted_and_unasked(folder):
        for path in (folder / name, Path(folder.name, name)):
            for opener in openers:
                with pytest.raises(OSError, match=f"job {_SAYS}"):
                    opener(path, run_folder=True)
            with pytest.raises(OSError, match=f"job {_SAYS}"):
                files.write_atomically(path, b"", run_folder=True)
            with pytest.raises(SystemExit):
                start._read(str(path))
            with pytest.raises(OSError, match=f"job {_SAYS}"):
                recorded_events.event_files(folder, folder.parent)


@pytest.mark.parametrize("place", ["", *(report.file for report in formats.load().values())])
def test_the_report_of_a_run(place: str, tmp_path: Path) -> None:
    path = tmp_path / "unknown-run" / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("") if place else path.mkdir()
    with mounted_and_unasked(path):
        with pytest.raises(RequestError, match=str(path)):
            write_reports(conclude([]), tmp_path)
        run_trial._remove(tmp_path / "unknown-run", tmp_path / "unknown-run" / "controller.events")


def test_the_newest_report_in_a_shared_folder(tmp_path: Path) -> None:
    latest = tmp_path / "cluster_test_report.json"
    latest.write_text("{}")
    (tmp_path / "unknown-run").mkdir()
    (tmp_path / "unknown-run" / recorded_events.RECORD).touch()
    with mounted_and_unasked(latest):
        written = write_reports(conclude([]), tmp_path)
    assert written.not_copied.startswith(f"{latest} is no copy of this report (")
    assert written.not_copied.endswith(f"): {latest.name} {_SAYS}.")
    assert written.document.exists()


def test_the_log_of_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 10)
    agents = processes.Agents()
    program = "import sys; sys.stderr.write('x' * 100); sys.stderr.flush(); import time; time.sleep(60)"
    argv = (sys.executable, "-S", "-c", program)
    agents.submit([Command(argv=argv, env={}, nodes=(0,))], tmp_path, [], lambda *_: None)
    log = tmp_path / "node0.log"
    while log.stat().st_size < 100:
        time.sleep(0.01)
    with mounted_and_unasked(log):
        assert agents.poll(()) is None
        agents.kill()
        assert agents.cleanup() == []
    assert log.read_text() == f"{processes.REMOVED}\n"


@pytest.mark.parametrize("below", ["", "x", "../job/x", "x/../../y"])
def test_a_temporary_folder(below: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (link := folder.parent / "link").symlink_to(folder)
    for name in (folder, link):
        monkeypatch.setattr(tempfile, "tempdir", str(name / below))
        with mounted_and_unasked(folder):
            assert not folders.new_temporary_folder().startswith(str(folder))


@pytest.mark.parametrize("below", ["", "x", "../job/x"])
def test_the_folder_of_a_run(below: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    typed = str(folder / below)
    nobody = dataclasses.asdict(_NOBODY)
    place = {"path": typed, **nobody}
    with mounted_and_unasked(folder):
        assert working_folder.refusal(typed, "", _NOBODY) == f"{folder} {_SAYS}"
        bootstrap._enter(place, start.trusted_users, start.way_to)
        mpi_rank.enter(json.dumps(place))
        program = {"cwd": typed, "script": "", "cwd_trust": nobody, "script_trust": nobody}
        start_in, refused, note = program_ranks.start_folder(program)  # type: ignore[arg-type]
    assert (start_in, refused) == (str(tmp_path), "")
    assert note.startswith(f"{folder} {_SAYS} on this host, so the ranks start in {tmp_path}")
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("script", ["job/train.py", "link/train.py", "link.py"])
def test_a_script(script: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("job")
    (tmp_path / "link.py").symlink_to("job/train.py")
    with mounted_and_unasked(folder):
        assert working_folder.refusal(str(tmp_path), script, _NOBODY) == f"{folder} {_SAYS}"


def test_a_folder_whose_owner_might_own_all_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder above is a neighbor's, who has mounted the one below."""
    os.chown(folder.parent, NEIGHBOR, NEIGHBOR)
    with mounted_and_unasked(folder):
        found = working_folder.refusal(str(folder), str(folder.parent / "train.py"), _NOBODY)
    assert found == f"{folder.parent} belongs to user {NEIGHBOR}"


def test_a_run_of_a_neighbor(folder: Path) -> None:
    (run := folder / "20260102-030405-0001").mkdir()
    with mounted_and_unasked(run):
        assert [*earlier_runs._own_runs(folder / "20260102-030405-0002")] == []


def test_the_data_of_a_user_without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "own_folder_name", lambda: folder.name)
    with mounted_and_unasked(folder), pytest.raises(RequestError, match=_SAYS):
        dataset_files.find("mnist", folder / "data")


def test_a_folder_of_programs(folder: Path) -> None:
    with mounted_and_unasked(folder):
        found, refused = py_spy.find("/nowhere/python", {"PATH": f"{folder}:{folder}/bin"})
    assert found is None or not found.startswith(str(folder))
    assert found is not None or refused.startswith(f"{folder}/py-spy was not run: other users may change {folder}")


def test_a_file_with_the_name_of_a_killed_trial(tmp_path: Path) -> None:
    """A neighbor chooses it, in a folder that all can write to."""
    (ours := tmp_path / "seatrial-storage-bbbbbbbbbbbbbbbb-1.data").touch()
    (theirs := tmp_path / "seatrial-storage-aaaaaaaaaaaaaaaa-0.token").touch()
    for path in (ours, theirs):
        os.utime(path, (0, 0))
    with mounted_and_unasked(theirs):
        assert tokens.remove_leftovers(str(tmp_path), time.time()) == [ours.name]


def test_a_token_in_the_place_of_ours(tmp_path: Path) -> None:
    """Where others may remove ours, they may put one there."""
    key, folder = "0" * 16, str(tmp_path)
    ours = [tokens.Token(folder, key, rank) for rank in (0, 1)]
    for token in ours:
        token.leave()
    with mounted_and_unasked(Path(tokens.file_path(folder, key, 1, "token"))):
        assert tokens.visible_ranks(folder, key, os.geteuid(), [0, 1, 2]) == ([0], [1])
        assert [token.is_in_place() for token in ours] == [True, False]
        ours[1].remove()


def test_a_folder_of_another_login(folder: Path) -> None:
    """After ``su`` XDG_RUNTIME_DIR is still that of the other user."""
    with mounted_and_unasked(folder):
        for name in (f"{folder}", f"{folder}/"):
            assert not job_secret._is_own_folder(name)
    assert job_secret._is_own_folder(f"{folder}/")


def test_a_name_in_the_folder_where_the_user_types(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of a program on PATH, or of a module that a script imports."""
    monkeypatch.chdir(file.parent)
    (file.parent / "link").symlink_to("file")
    with mounted_and_unasked(file):
        for name in ("file", "link", str(file)):
            options = {"script": [name], "module": False, "no_python": False}
            assert not script_request.lacks_script_here(options)
    (file.parent / "module.py").touch()
    (package := file.parent / "package").mkdir()
    assert carried_script._is_module(Path(), "module")
    for place in (file.parent / "module.py", package):
        with mounted_and_unasked(place):
            assert not carried_script._is_module(Path(), place.stem)
