"""The entry script of the Dockerfile at the root, without an image: what it does to the folder of the reports."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.root
_ENTRY = Path(__file__).parents[2] / "deploy/images/entry.sh"


def started(reports: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script for another folder than /reports, with a ``tini`` that says as which user it was started."""
    script = folder / "entry.sh"
    script.write_text(_ENTRY.read_text().replace("/reports", str(reports)))
    tini = folder / "tini"
    tini.write_text('#!/bin/sh\necho "$(id -u):$(id -g) $*"\n')
    for path in (folder, tini):
        path.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = ["sh", str(script), "run", "smoke"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30, check=False, cwd="/")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("owner", [10001, 1234])
def test_it_becomes_the_user_of_the_image(owner: int, open_folder: Path) -> None:
    """And not the owner of the folder, who may be another user, and could kill what runs as him."""
    reports = open_folder / "reports"
    reports.mkdir()
    os.chown(reports, owner, 1234)
    reports.chmod(0o755 if owner == 10001 else 0o777)
    ended = started(reports, open_folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "10001:0 -- seatrial run smoke\n"
    assert reports.stat().st_uid == owner


def test_a_folder_of_another_user_is_refused(open_folder: Path) -> None:
    reports = open_folder / "reports"
    reports.mkdir(mode=0o755)
    os.chown(reports, 1234, 1234)
    ended = started(reports, open_folder)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert f'Error: user 10001 cannot write to {reports}, the folder of -v: add --user "$(id -u)"' in ended.stderr


@pytest.mark.parametrize("planted", ["empty folder", "folder with a file", "link", "file"])
def test_what_another_user_has_put_there_stays_as_it_is(planted: str, open_folder: Path) -> None:
    """Docker follows a link in place of the folder that it mounts, so that the folder of root is another one."""
    reports, other = open_folder / "reports", open_folder / "other"
    other.mkdir()
    if planted == "link":
        reports.symlink_to(other)
    elif planted == "file":
        reports.touch()
    else:
        reports.mkdir()
    if planted == "folder with a file":
        (reports / ".passwd").touch()
    ended = started(reports, open_folder)
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"Error: user 10001 cannot write to {reports}, the folder of -v:")
    assert {path.lstat().st_uid for path in (reports, other)} == {0}
