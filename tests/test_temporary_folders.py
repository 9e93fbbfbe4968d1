"""Folders among temporary files that no other user can use, or put another one in the place of."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from neighbor_mount import NEIGHBOR, mounted

from seatrial import folders, start
from seatrial.checks.storage import tokens
from seatrial.errors import RequestError
from seatrial.training.data import dataset_files


def _use(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these be where temporary files are, TMPDIR first."""
    monkeypatch.setattr(tempfile, "tempdir", str(places[0]))
    monkeypatch.setattr(folders, "TEMPORARY", tuple(map(str, places[1:])))


def test_a_temporary_folder_open_to_others_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe, none, sticky = tmp_path / "unsafe", tmp_path / "none", tmp_path / "sticky"
    for folder, mode in ((unsafe, 0o777), (sticky, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    _use([unsafe, none, sticky], monkeypatch)
    assert Path(folders.own_temporary_folder()).parent == Path(folders.new_temporary_folder()).parent == sticky
    assert list(unsafe.iterdir()) == []
    _use([unsafe, none], monkeypatch)
    said = f"other users can write to {unsafe}, so {unsafe / folders.own_folder_name()} may be exchanged; set TMPDIR"
    said += f"; {none}: No such file or directory"
    with pytest.raises(folders.NotPrivateError, match=re.escape(said)):
        folders.own_temporary_folder()


def test_the_folder_that_was_looked_at_is_the_one_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user exchanges a link on the way to TMPDIR between any two of our looks at it."""
    link, theirs, safe = tmp_path / "link", tmp_path / "theirs", tmp_path / "safe"
    theirs.mkdir()
    theirs.chmod(0o777)
    safe.mkdir()
    link.symlink_to(theirs)
    real = start.without_links

    def exchanged(path: str) -> str:
        found = real(path)
        if path == str(link):
            link.unlink()
            link.symlink_to(safe if found == str(theirs) else theirs)
        return found

    _use([link, safe], monkeypatch)
    monkeypatch.setattr(folders, "without_links", exchanged)
    assert Path(folders.own_temporary_folder()).parent == safe


def test_a_folder_that_is_exchanged_while_it_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened is the first one, and what has the name then is another one, whose way is in order."""
    (folder := tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (str(folder), "folder", "folder/../folder"):
        fd, exchanged_by = folders.open_judged(name)
        os.close(fd)
        assert exchanged_by == ""
    real = start.way_to

    def exchanged(path: str) -> Iterator[tuple[str, int, int, bool, bool]]:
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        return real(path)

    monkeypatch.setattr(folders, "way_to", exchanged)
    fd, exchanged_by = folders.open_judged(folder)
    assert os.path.samestat(os.fstat(fd), (tmp_path / "moved").stat())
    os.close(fd)
    assert exchanged_by == f"{folder} was exchanged meanwhile"


def test_a_folder_that_a_cleaner_takes_away_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed between the look at it and the lock, the second time by one that puts another one there."""
    _use([tmp_path], monkeypatch)
    folder, taken = tmp_path / folders.own_folder_name(), list[int]()

    def lock(fd: int, how: int) -> None:
        taken.append(os.fstat(fd).st_ino)
        if len(taken) < 3:
            folder.rmdir()
        if len(taken) == 2:
            (tmp_path / "x").mkdir()
            folder.mkdir(0o700)
        flock(fd, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lock)
    with folders.kept_folder(folders.own_temporary_folder, is_removed=False) as kept:
        assert (kept, len(taken)) == (str(folder), 3)
        assert os.stat(kept).st_ino == taken[-1]
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.root
def test_a_temporary_folder_that_another_user_can_exchange_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, shared, safe = tmp_path / "theirs" / "tmp", tmp_path / "shared" / "tmp", tmp_path / "safe"
    for folder in (theirs, shared, safe):
        folder.mkdir(parents=True)
    os.chown(theirs.parent, 65534, 65534)
    shared.parent.chmod(0o777)
    safe.chmod(0o1777)
    for unsafe in (theirs.parent, theirs, shared.parent, shared):
        _use([unsafe, safe], monkeypatch)
        assert Path(folders.own_temporary_folder()).parent == safe


@pytest.mark.root
def test_no_folder_on_the_file_system_of_a_neighbor_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows what it likes as ours."""
    theirs, safe = tmp_path / "theirs", tmp_path / "safe"
    theirs.mkdir(mode=0o700)
    safe.mkdir()
    with mounted(theirs, shown_owner=os.geteuid(), name="tmp"):
        for folder in (theirs, theirs / "new"):
            _use([folder, safe], monkeypatch)
            assert Path(folders.own_temporary_folder()).parent == safe
        _use([theirs], monkeypatch)
        with pytest.raises(folders.NotPrivateError, match=f"file system of user {NEIGHBOR}"):
            folders.own_temporary_folder()


def test_a_passing_file_leaves_no_folder_and_takes_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can exchange TMPDIR puts another folder of this user at its name."""
    (team := tmp_path / "team").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(team))
    with folders.passing_file(".json") as path:
        Path(path).touch()
        (made,) = team.iterdir()
        team.rename(tmp_path / "moved")
        made.mkdir(parents=True)
    assert made.is_dir()
    assert [*(tmp_path / "moved").iterdir()] == []


def test_a_host_whose_places_are_all_full_keeps_a_check_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbors can fill them; the folder in which the user types is sound all the same."""

    def full() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    assert tokens.candidate_folders(None) == (str(tmp_path), "/tmp")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    assert tokens.candidate_folders(None) == (str(tmp_path), str(tmp_path / "full"))
    monkeypatch.setattr(folders, "TEMPORARY", ())
    with pytest.raises(folders.NotPrivateError, match="full: No such file or directory"):
        folders.new_temporary_folder()
    assert dataset_files.make_default_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "seatrial" / "data"
    monkeypatch.setattr(dataset_files, "cache_folder", lambda environ: "")
    with pytest.raises(RequestError, match="name a directory with --data"):
        dataset_files.make_default_folder({})
