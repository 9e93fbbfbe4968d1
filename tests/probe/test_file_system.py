"""The file system of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.probe.file_system import file_system

TABLE = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
30 20 0:40 / {folder} rw,relatime shared:5 - nfs4 server:/export rw
31 30 0:41 / {folder}/inner\\040room rw - xfs /dev/sdb rw
32 20 0:42 / {folder}-other rw - tmpfs tmpfs rw
33 31 0:43 / {folder}/inner\\040room rw - tmpfs tmpfs rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text(TABLE.format(folder=tmp_path / "data"))
    for name in ("data/deep", "data/inner room/x", "data-other"):
        (tmp_path / name).mkdir(parents=True)
    return proc


@pytest.mark.parametrize(
    ("name", "kind", "in_memory"),
    [
        ("", "ext4", False),
        ("data/deep", "nfs4", False),
        ("data/inner room/x", "tmpfs", True),
        ("data-other", "tmpfs", True),
    ],
)
def test_the_innermost_mount_counts_and_of_two_at_one_place_the_later(
    table: Path, name: str, kind: str, in_memory: bool
) -> None:
    found = file_system(str(table.parent / name), table)
    assert (found.kind, found.in_memory) == (kind, in_memory)


def test_a_link_leads_to_where_the_files_are(table: Path) -> None:
    (table.parent / "link").symlink_to(table.parent / "data")
    assert file_system(str(table.parent / "link"), table).kind == "nfs4"


def test_free_space_is_that_of_the_folder(tmp_path: Path) -> None:
    found = file_system(str(tmp_path))
    assert found.kind != ""
    assert found.free_bytes == pytest.approx(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2)
    assert found.free_inodes is None or found.free_inodes > 0


def test_without_a_mount_table_the_kind_is_not_known(tmp_path: Path) -> None:
    assert file_system(str(tmp_path), tmp_path / "nowhere").kind == ""


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_system(str(tmp_path / "nowhere"))
