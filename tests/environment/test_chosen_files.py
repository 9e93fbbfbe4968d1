"""Whether the user has chosen a file whose content leaves the machine, or another user has led its path there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.environment import working_folder
from seatrial.environment.working_folder import UnchosenError, chosen_file
from seatrial.start import way_to

_OTHER, _COLLEAGUE = 12002, 12003


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of ours with a script, and with a key that only we can read."""
    (home := tmp_path / "home").mkdir(mode=0o700)
    (home / "train.py").write_text("")
    (home / "key").write_text("")
    (home / "key").chmod(0o600)
    return home


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder that another user has made in one that is open to all."""
    (scratch := tmp_path / "scratch").mkdir()
    scratch.chmod(0o1777)
    (theirs := scratch / "exp").mkdir()
    os.chown(theirs, _OTHER, _OTHER)
    return theirs


def _put(path: Path, owner: int, *, leads_to: Path | None = None) -> None:
    if leads_to is None:
        path.write_text("")
    else:
        path.symlink_to(leads_to)
    os.lchown(path, owner, owner)


def refusal(folder: Path, path: str) -> str:
    """Return why a file is not ours to send; empty: it is."""
    try:
        found = chosen_file(str(folder), path)
    except UnchosenError as error:
        return str(error)
    assert os.path.samestat(found, os.stat(folder / path))
    return ""


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2770, 0o1777, 0o777])
def test_a_script_of_ours_goes_along_from_each_folder(mode: int, home: Path, tmp_path: Path) -> None:
    """File systems of Windows show all files as open to all users."""
    home.chmod(mode)
    (home / "latest").symlink_to(home)
    for path in ("train.py", "latest/train.py", f"{home}/train.py", "../home/train.py"):
        assert refusal(home, path) == ""
    assert refusal(tmp_path, f"{home}/train.py") == ""
    (home / "train.py").chmod(0o777)
    assert refusal(home, "train.py") == ""


@pytest.mark.parametrize(("mode", "is_ours"), [(0o755, True), (0o775, True), (0o1777, True), (0o777, False)])
def test_what_is_private_and_could_have_been_moved_there_stays(mode: int, is_ours: bool, home: Path) -> None:
    home.chmod(mode)
    words = f"all users can write to {home}, and not all can read {home}/key"
    assert refusal(home, "key") == ("" if is_ours else words)


@pytest.mark.parametrize(("mode", "is_ours"), [(0o755, True), (0o775, False), (0o1777, False)])
def test_a_private_file_with_several_names(mode: int, is_ours: bool, home: Path) -> None:
    (place := home / "place").mkdir()
    place.chmod(mode)
    os.link(home / "key", place / "train.py")
    assert ("has 2 names (hard links)" in refusal(place, "train.py")) is not is_ours
    os.link(home / "train.py", place / "public.py")
    assert refusal(place, "public.py") == ""


def test_a_file_that_is_not_there(home: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to("nowhere")
    for path in ("absent.py", "absent/train.py", str(tmp_path / "broken")):
        with pytest.raises(FileNotFoundError):
            chosen_file(str(home), path)


@pytest.mark.root
@pytest.mark.parametrize("level", ["file", "folder", "root"])
def test_a_link_of_another_user_leads_to_a_key(level: str, home: Path, theirs: Path, tmp_path: Path) -> None:
    """In the folder of that user the user trusts its owner, with what that one has put there."""
    if level == "file":
        _put(theirs / "train.py", _OTHER, leads_to=home / "key")
        path = "train.py"
    elif level == "folder":
        _put(theirs / "code", _OTHER, leads_to=home)
        path = "code/key"
    else:
        _put(theirs / "code", _OTHER, leads_to=Path("/"))
        path = f"code{home}/key"
    assert refusal(home, str(theirs / path)) == f"{theirs} belongs to user {_OTHER}"
    for folder, name in ((theirs, path), (theirs, str(theirs / path)), (theirs.parent, f"exp/{path}")):
        found = refusal(folder, name)
        assert f"is a link of user {_OTHER} to a file of user {os.geteuid()}" in found


@pytest.mark.root
def test_our_own_link_through_the_folder_of_another_user(home: Path, theirs: Path) -> None:
    _put(theirs / "key", _OTHER, leads_to=home / "key")
    (home / "mine.py").symlink_to(theirs / "key")
    assert refusal(home, str(home / "mine.py")) == f"{theirs} belongs to user {_OTHER}"
    assert "is a link of user" in refusal(home, "mine.py")


@pytest.mark.root
def test_the_script_of_a_colleague(home: Path, theirs: Path) -> None:
    """Who types its relative path, or types in its folder, has chosen it; an absolute path may be one of the pods."""
    _put(theirs / "train.py", _OTHER)
    (theirs / "train.py").chmod(0o640)
    _put(theirs / "latest.py", _OTHER, leads_to=theirs / "train.py")
    for name in ("train.py", "latest.py"):
        assert refusal(home, str(theirs / name)) == f"{theirs} belongs to user {_OTHER}"
        for folder, path in ((theirs, name), (theirs, str(theirs / name)), (home, f"../scratch/exp/{name}")):
            assert refusal(folder, path) == ""


@pytest.mark.root
def test_a_group_folder(home: Path, theirs: Path) -> None:
    """Its owner is trusted by who types there, and each member with the files that are that one's own."""
    theirs.chmod(0o2775)
    _put(theirs / "ours.py", os.geteuid())
    (theirs / "ours.py").chmod(0o600)
    _put(theirs / "theirs.py", _COLLEAGUE)
    _put(theirs / "link.py", _COLLEAGUE, leads_to=theirs / "theirs.py")
    for name in ("ours.py", "theirs.py", "link.py"):
        assert refusal(theirs, name) == ""
    _put(theirs / "key.py", _COLLEAGUE, leads_to=home / "key")
    assert "is a link of user" in refusal(theirs, "key.py")
    assert refusal(theirs, str(theirs / "theirs.py")) == f"{theirs}/theirs.py belongs to user {_COLLEAGUE}"


@pytest.mark.root
def test_a_folder_that_all_users_can_write_to(home: Path, theirs: Path) -> None:
    scratch = theirs.parent
    _put(scratch / "train.py", _OTHER, leads_to=home / "key")
    _put(scratch / "plain.py", _OTHER)
    assert refusal(home, f"{scratch}/train.py") == f"{scratch}/train.py belongs to user {_OTHER}"
    assert refusal(scratch, f"{scratch}/plain.py") == f"{scratch}/plain.py belongs to user {_OTHER}"
    assert "is a link of user" in refusal(scratch, "train.py")


def test_the_mount_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows each owner and mode that this user likes, so that what lies there is that user's."""
    (home / "mine.py").symlink_to(home / "key")

    def way(path: str, start: str = "/") -> object:
        for name, fd, _, is_last in way_to(path, start):
            yield name, fd, _OTHER if name.endswith("mine.py") else 0, is_last

    monkeypatch.setattr(working_folder, "way_to", way)
    assert f"is a link of user {_OTHER}" in refusal(home, "mine.py")
    assert f"user {_OTHER}" in refusal(home, f"{home}/mine.py")
