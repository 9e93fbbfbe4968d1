"""A link of another user may lead to a private folder of ours: no file there is replaced by a name that we give."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial import start, ways
from seatrial.bundle import write_bundle
from seatrial.errors import RequestError
from seatrial.folders import open_above, open_with_links
from seatrial.run.handed_files import read_evidence
from seatrial.targets.hosts import hosts_of
from seatrial.targets.kubernetes.manifest.parse import read_patch
from seatrial.worker.rendezvous import meeting_place

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
    assert words == f"{link} is a link of user 12345"


READ = [lambda path: hosts_of(None, path), read_patch, lambda path: read_evidence([str(path)])]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("below", ["", "mine", "by my link"])
def test_no_file_of_ours_goes_elsewhere_by_such_a_link(
    read: Callable[[Path], Any], below: str, mode: int, tmp_path: Path
) -> None:
    """Hosts become arguments of ssh, which all users of the machine can read, and questions to name servers; the
    digest of evidence stands in the report. A file may be private by a closed folder alone, which a link of ours leads
    out of."""
    (mine := tmp_path / "mine").mkdir(mode=0o700)
    (secret := mine / "token").write_text("hf_secret")
    secret.chmod(mode)
    (shared := tmp_path / "shared").mkdir()
    (link := shared / "hosts").symlink_to(mine if below == "mine" else secret)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    typed = link / "token" if below == "mine" else link
    if below == "by my link":
        (mine / "project").symlink_to(shared)
        typed = mine / "project" / "hosts"
    words = f"{link} is a link of user 12345, so that one may want another file read; name the file by its own path"
    with pytest.raises(RequestError, match=words) as refused:
        read(typed)
    assert "hf_secret" not in str(refused.value)


def test_a_list_of_hosts_of_a_colleague_is_read_behind_that_ones_link(tmp_path: Path) -> None:
    (theirs := tmp_path / "theirs").write_text("node2\n")
    theirs.chmod(0o640)
    os.chown(theirs, 12345, 12345)
    (link := tmp_path / "current").symlink_to("theirs")
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert [host.name for host in hosts_of(None, link)] == ["node2"]
    os.chown(theirs, 4321, 4321)
    with pytest.raises(RequestError, match="so that one may want another file read"):
        hosts_of(None, link)


@pytest.mark.parametrize("read", READ)
def test_a_link_of_any_other_in_a_container_of_a_user(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows those of root and of all others as 65534's."""
    monkeypatch.setattr(start, "_has_own_numbers", lambda: True)
    monkeypatch.setattr(ways, "trusted_users", lambda is_below_open: start.trusted_users(False))
    (secret := tmp_path / "token").write_text("hf_secret")
    (link := tmp_path / "hosts").symlink_to(secret)
    os.chown(link, start.NOBODY, start.NOBODY, follow_symlinks=False)
    with pytest.raises(RequestError, match=f"{link} is a link of user {start.NOBODY}"):
        read(link)


@pytest.mark.parametrize("read", READ)
def test_a_file_system_of_another_user_on_the_way_is_not_asked(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "hosts").write_text("node1\n")

    def mounted_meanwhile(path: str, folder: str) -> Iterator[tuple[str, int, int, bool, bool]]:
        """Of a descriptor that is closed nothing can be asked."""
        return iter([("/tmp/theirs", -1, 12345, False, False)])

    monkeypatch.setattr(ways, "way_to", mounted_meanwhile)
    with pytest.raises(RequestError, match="/tmp/theirs is on a file system that user 12345 has mounted"):
        read(path)


@pytest.mark.parametrize("removes", [True, False])
def test_ranks_meet_at_no_file_behind_such_a_link(link: Path, removes: bool) -> None:
    """torch would read it, change it, and remove it at the end."""
    (link / "meet").touch()
    init = f"file://{link}/meet"
    words = f"--init {init}: {link} is a link of user 12345; name a new file in a folder by its own path"
    with pytest.raises(RequestError, match=words), meeting_place(init, removes=removes):
        pytest.fail("the place was opened")
    assert (link / "meet").exists()
    os.chown(link, 0, 0, follow_symlinks=False)
    with meeting_place(init, removes=removes) as place:
        assert place.endswith("/meet")
    assert (link / "meet").exists() != removes
