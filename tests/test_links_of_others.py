"""A link of another user may lead to a private folder of ours: no file there is replaced by a name that we give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.bundle import write_bundle
from seatrial.errors import RequestError
from seatrial.folders import open_above, open_with_links

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def link(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir(mode=0o700)
    link = tmp_path / "shared"
    link.symlink_to(tmp_path / "mine")
    os.chown(link, 12345, 12345, follow_symlinks=False)
    return link


@pytest.mark.parametrize("below", ["", "deep/"])
def test_a_file_behind_a_link_of_another_user_is_not_replaced(link: Path, below: str) -> None:
    (folder := link / below).mkdir(exist_ok=True)
    os.close(open_above(folder / "new"))
    (folder / "old").write_text("kept")
    with pytest.raises(OSError, match=f"{link} is a link of user 12345, and has led to a file of this name"):
        open_above(folder / "old")
    os.chown(link, 0, 0, follow_symlinks=False)
    os.close(open_above(folder / "old"))


def test_a_bundle_replaces_none(link: Path) -> None:
    write_bundle(link / "new.pyz")
    (link / "old.pyz").write_text("kept")
    with pytest.raises(RequestError, match="has led to a file of this name, which stays as it is"):
        write_bundle(link / "old.pyz")
    assert (link / "old.pyz").read_text() == "kept"


def test_a_relative_path_begins_where_the_user_is(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(link.parent)
    fd, words = open_with_links("shared")
    os.close(fd)
    assert words == "./shared is a link of user 12345"
