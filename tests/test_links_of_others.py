"""A link of another user may lead to a private folder of ours: no file there is replaced by a name that we give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial.bundle import write_bundle
from seatrial.errors import RequestError
from seatrial.folders import open_above, open_with_links
from seatrial.targets.hosts import hosts_of
from seatrial.targets.kubernetes.manifest.parse import read_patch

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


@pytest.mark.parametrize("read", [lambda path: hosts_of(None, path), read_patch])
@pytest.mark.parametrize("below", ["", "deep"])
def test_no_private_file_goes_elsewhere_by_such_a_link(read: Callable[[Path], Any], below: str, tmp_path: Path) -> None:
    """Hosts become arguments of ssh, which all users of the machine can read, and questions to name servers."""
    (secret := tmp_path / "token").write_text("hf_secret")
    secret.chmod(0o600)
    (link := tmp_path / "hosts").symlink_to(tmp_path if below else secret)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    words = f"{link} is a link of user 12345, and not all users can (read|enter) .*; name the file by a path without"
    with pytest.raises(RequestError, match=words) as refused:
        read(link / "token" if below else link)
    assert "hf_secret" not in str(refused.value)


def test_a_list_of_hosts_behind_a_link_of_a_colleague_is_read(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    (ours := shared / "ours").write_text("node1\n")
    (theirs := shared / "theirs").write_text("node2\n")
    theirs.chmod(0o600)
    os.chown(theirs, 12345, 12345)
    (shared / "hosts").symlink_to(ours)
    (shared / "current").symlink_to("theirs")
    for name in ("hosts", "current"):
        os.chown(shared / name, 12345, 12345, follow_symlinks=False)
    # The team's folder is closed to all others, and the link was in it.
    shared.chmod(0o770)
    assert [host.name for host in hosts_of(None, shared / "hosts")] == ["node1"]
    assert [host.name for host in hosts_of(None, shared / "current")] == ["node2"]
    ours.chmod(0o600)
    with pytest.raises(RequestError, match="not all users can read"):
        hosts_of(None, shared / "hosts")
